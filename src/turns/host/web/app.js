// The page: one conversation, as its event stream tells it.

import { call, Refused } from "./api.js";
import { byId, hide } from "./dom.js";
import { makeRow, Message } from "./message.js";
import { TurnTree } from "./turns.js";

const page = {
  announcer: byId("announcer"),
  composer: byId("composer-form"),
  connection: byId("connection"),
  empty: byId("empty"),
  error: byId("error"),
  login: byId("login"),
  loginForm: byId("login-form"),
  main: byId("main"),
  messages: byId("messages"),
  retry: byId("retry"),
  send: byId("send"),
  sendAnyway: byId("send-anyway"),
  sendTurn: byId("send-turn"),
  steerInstead: byId("steer-instead"),
  stop: byId("stop"),
  takesOver: byId("takes-over"),
  text: byId("text"),
  token: byId("token"),
  workspace: byId("workspace"),
  workspaceForm: byId("workspace-form"),
};

const DEFAULT_WORKSPACE = "default";
const RECONNECT_MS = 1500;
const SILENCE_MS = 20000;   // four heartbeats: a connection can die without a word

let workspace = new URLSearchParams(location.search).get("workspace") || DEFAULT_WORKSPACE;
let source = null;          // the EventSource
let cursor = "";            // how far we have heard: the server tells what came after it
let reconnectTimer = null;
let silenceTimer = null;
let retryAt = null;         // when a failed answer is tried again, if it is
let retryToldAgain = false; // by what this connection was told of before
let turnsTold = false;      // by this connection
let live = null;            // {id, message, timestamp} of the message that is being answered
let failed = null;          // {id, text} of the last failure: one before the first word has no row
let inTheWay = null;        // the turn of which the person was told that a message interrupts it
let unsent = null;          // {path, text, id}: sent again under the same id if the answer got lost

function api(path) {
  return `/api/workspaces/${encodeURIComponent(workspace)}/${path}`;
}

// ---- showing

function showError(text) {
  page.error.textContent = text;
  page.error.hidden = text === "";
}

function showConnection(state, text) {
  page.connection.className = `connection ${state}`;
  page.connection.textContent = text;
}

function isAtBottom() {
  return page.main.scrollTop + page.main.clientHeight >= page.main.scrollHeight - 80;
}

function keepingBottom(change) {
  const follow = isAtBottom();
  change();
  if (follow) page.main.scrollTop = page.main.scrollHeight;
}

function showRetry(at, text) {
  retryAt = at;
  page.retry.textContent = text;
  page.retry.hidden = text === "";
  showLive();
}

function showLive() {
  page.stop.hidden = live === null && retryAt === null && turns.live === null;
  page.stop.disabled = false;
  page.stop.title = turns.live === null ? "" : "It stops the turn that runs; what that said stays";
  page.empty.hidden = live !== null || page.messages.childElementCount > 0;
  if (turns.live?.id !== inTheWay?.id) inTheWay = null;
  hide(page.takesOver, inTheWay === null, page.text);
}

function warnOf(turn) {
  inTheWay = turn;
  showLive();
}

function begin(id) {
  if (live !== null && live.id === id) return;
  dropLive();
  const message = new Message("assistant");
  message.item.classList.add("live");
  live = { id, message, timestamp: 0 };
  keepingBottom(() => page.messages.append(message.item));
  showLive();
}

function dropLive() {
  if (live !== null) live.message.item.remove();
  live = null;
}

let showing = 0;
async function showHistory() {
  const mine = ++showing;
  const asked = workspace;
  const { rows } = await call(api("history"));
  if (mine !== showing || asked !== workspace) return; // a later one is under way
  keepingBottom(() => {
    page.messages.replaceChildren(...rows.filter((row) => live === null || row.id !== live.id).map(makeRow));
    if (live !== null) page.messages.append(live.message.item);
  });
  if (failed !== null && !rows.some((row) => row.id === failed.id)) showError(failed.text);
  showLive();
}

async function showHistorySafely() {
  try {
    await showHistory();
  } catch (error) {
    onRefused(error);
  }
}

function onRefused(error) {
  if (!(error instanceof Refused)) throw error;
  if (error.status === 401) askForToken();
  else showError(error.message);
}

const turns = new TurnTree(
  async (path, body) => {
    try {
      await call(path, body);
      showError("");
      return true;
    } catch (error) {
      onRefused(error);
      return false;
    }
  },
  (text) => { page.announcer.textContent = text; },
);

// ---- events

function connect() {
  disconnect();
  turnsTold = false;
  showConnection("", "connecting");
  const query = cursor === "" ? "" : `?cursor=${encodeURIComponent(cursor)}`;
  source = new EventSource(api("events") + query);
  source.onopen = () => showConnection("ok", "connected");
  listenOn();
  source.onerror = (event) => {
    if (event instanceof MessageEvent) return; // one of ours, named "error"
    showConnection("lost", "reconnecting");
    // A refusal ends an EventSource for good; a broken connection doesn't.
    if (source.readyState === EventSource.CLOSED) reconnectLater();
  };
  const on = (type, act) => source.addEventListener(type, (event) => {
    if (!(event instanceof MessageEvent)) return;
    listenOn();
    if (event.lastEventId !== "") cursor = event.lastEventId;
    act(JSON.parse(event.data));
  });
  // Of the live message only, and nothing that we have already.
  const onLive = (type, act) => on(type, (event) => {
    if (live === null || live.id !== event.messageId) return;
    if (event.timestamp !== undefined) {
      if (event.timestamp <= live.timestamp) return;
      live.timestamp = event.timestamp;
    }
    keepingBottom(() => act(live.message, event));
  });
  on("caught-up", (event) => {
    cursor = event.cursor ?? "";
    showError("");
    if (event.replay === "live") dropLive();
    // Not told again: it began while nobody listened, or was called off.
    if (!retryToldAgain) showRetry(null, "");
    retryToldAgain = false;
    if (!turnsTold) turns.replace([]);
    showLive();
    showHistorySafely();
  });
  on("turns", (event) => {
    turnsTold = true;
    turns.replace(event.nodes);
    showLive();
  });
  on("turns.changed", (event) => {
    turns.change(event);
    showLive();
  });
  on("turn.error", (event) => showError(`A turn has a problem: ${event.error}`));
  // A turn that was ended at once takes back what it said.
  on("turn.end", () => showHistorySafely());
  on("stream-start", (event) => {
    showRetry(null, "");
    if (failed !== null) showError("");
    failed = null;
    begin(event.messageId);
    if (!event.replay) showHistorySafely();
  });
  onLive("stream-delta", (message, event) => message.add("said", event.delta));
  onLive("reasoning-delta", (message, event) => message.add("thought", event.delta));
  onLive("tool-call-start", (message, event) => message.tool(event.toolCallId, event.toolName, event.args));
  onLive("tool-call-execution-start", (message, event) => message.toolRuns(event.toolCallId, event.toolName));
  onLive("tool-call-end", (message, event) => message.toolEnds(event.toolCallId, event.toolName, event.result));
  onLive("usage-delta", (message, event) => message.cost(event.cumulativeUsage));
  on("stream-end", (event) => ended(event, "The answer is complete."));
  on("stream-abort", (event) => ended(event, "The answer was stopped."));
  on("error", (event) => {
    failed = { id: event.messageId, text: `The answer failed: ${event.error}` };
    ended(event, failed.text);
  });
  on("auto-retry-scheduled", (event) => {
    if (event.replay) retryToldAgain = true;
    const seconds = Math.ceil(event.delayMs / 1000);
    showRetry(Date.now() + event.delayMs, `Try ${event.attempt} begins in ${seconds} s.`);
  });
  on("auto-retry-starting", (event) => showRetry(Date.now(), `Try ${event.attempt} begins.`));
  on("auto-retry-abandoned", (event) => showRetry(null, retryAt === null ? "" : `No further try: ${event.reason}.`));
  on("heartbeat", () => {});
  on("overflow", () => { source.close(); connect(); });
  on("shutting-down", () => {
    source.close();
    showConnection("lost", "server stopped");
    reconnectLater();
  });
}

function ended(event, announcement) {
  if (live !== null && live.id === event.messageId) {
    // It stays as it is until the history has replaced it.
    live.message.item.classList.remove("live");
    live = null;
  }
  page.announcer.textContent = announcement;
  showLive();
  showHistorySafely();
}

// Something was heard, or is about to be.
function listenOn() {
  clearTimeout(silenceTimer);
  silenceTimer = setTimeout(() => {
    connect();
    showConnection("lost", "reconnecting");
  }, SILENCE_MS);
}

function disconnect() {
  clearTimeout(reconnectTimer);
  clearTimeout(silenceTimer);
  if (source !== null) source.close();
  source = null;
}

function reconnectLater() {
  clearTimeout(reconnectTimer);
  clearTimeout(silenceTimer);
  reconnectTimer = setTimeout(async () => {
    try {
      await showHistory(); // also tells whether we are still known
      connect();
    } catch (error) {
      if (error.status === 401) askForToken();
      else reconnectLater();
    }
  }, RECONNECT_MS);
}

// ---- what the person does

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Said once, however often it has to be sent.
async function post(path, text, fields) {
  if (unsent === null || unsent.path !== path || unsent.text !== text) unsent = { path, text, id: newId() };
  await call(path, fields(unsent.id));
  unsent = null;
}

async function sendText(path, fields, said) {
  const text = page.text.value;
  if (text.trim() === "" || page.send.disabled) return;
  page.send.disabled = page.sendTurn.disabled = true;
  showError("");
  warnOf(null);
  try {
    await post(path, text, (id) => fields(text, id));
    page.text.value = "";
    fitText();
    page.announcer.textContent = said;
  } catch (error) {
    onRefused(error);
  } finally {
    page.send.disabled = page.sendTurn.disabled = false;
    page.text.focus();
  }
}

function sendMessage() {
  sendText(api("messages"), (text, id) => ({ text, clientMessageId: id }), "Sent. The answer begins.");
}

page.composer.addEventListener("submit", (event) => {
  event.preventDefault();
  // Nothing is sent before the person has chosen; Enter pressed twice is no choice.
  if (turns.live !== null && page.text.value.trim() !== "") warnOf(turns.live);
  else sendMessage();
});

// The rest of a double click on what stood there before would choose unread.
page.sendAnyway.addEventListener("click", (event) => {
  if (event.detail < 2 && inTheWay !== null) sendMessage();
});

page.steerInstead.addEventListener("click", (event) => {
  if (event.detail > 1 || inTheWay === null) return;
  const path = `/api/turns/${encodeURIComponent(inTheWay.handleId)}/steer`;
  sendText(path, (text) => ({ text }), "Sent. The turn hears it.");
});

page.sendTurn.addEventListener("click", () => {
  sendText(api("turns"), (text, id) => ({ prompt: text, clientTurnId: id }), "Sent. The turn begins.");
});

page.text.addEventListener("keydown", (event) => {
  if (event.key === "Escape") warnOf(null);
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    page.composer.requestSubmit();
  }
});

function fitText() {
  page.text.style.height = "auto";
  page.text.style.height = `${page.text.scrollHeight + 2}px`;
}
page.text.addEventListener("input", fitText);

page.stop.addEventListener("click", async () => {
  const turn = turns.live;
  if (turn === null && live === null && retryAt === null) return;
  page.stop.disabled = true;
  try {
    // A stop names what it means: the turn that runs, or the message. Without a name it also calls
    // off a try that is waited for.
    const message = live === null ? {} : { messageId: live.id };
    await call(api("stop"), turn === null ? message : { turnId: turn.id });
  } catch (error) {
    page.stop.disabled = false;
    onRefused(error);
  }
});

page.workspaceForm.addEventListener("submit", (event) => {
  event.preventDefault();
  open(page.workspace.value);
});

function open(id) {
  workspace = id;
  page.workspace.value = id;
  const query = id === DEFAULT_WORKSPACE ? "" : `?workspace=${encodeURIComponent(id)}`;
  history.replaceState(null, "", `${location.pathname}${query}`);
  document.title = `${id} - fiberscope`;
  showError("");
  cursor = "";
  dropLive();
  failed = null;
  showRetry(null, "");
  page.messages.replaceChildren();
  turns.replace([]);
  page.login.hidden = true;
  page.composer.hidden = false;
  reconnectNow();
}

async function reconnectNow() {
  disconnect();
  showing++;
  try {
    await showHistory();
    connect();
  } catch (error) {
    if (error.status === 0) reconnectLater();
    onRefused(error);
  }
}

function askForToken() {
  disconnect();
  showConnection("lost", "not logged in");
  cursor = "";
  dropLive();
  page.messages.replaceChildren();
  turns.replace([]);
  warnOf(null);
  page.empty.hidden = true;
  page.login.hidden = false;
  page.composer.hidden = true;
  page.token.focus();
}

async function logIn(token) {
  await call("/api/session", { token });
}

page.loginForm.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await logIn(page.token.value.trim());
    page.token.value = "";
    showError("");
    open(workspace);
  } catch (error) {
    if (error instanceof Refused) showError(error.message);
    else throw error;
  }
});

async function start() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token !== null) {
    // Out of the address at once, so that it is in no bookmark and no screenshot.
    history.replaceState(null, "", location.pathname + location.search);
    try {
      await logIn(token);
    } catch (error) {
      showError(error.message);
    }
  }
  open(workspace);
}

start();
