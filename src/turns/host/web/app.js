"use strict";

// What models and people wrote goes into the page as text only (textContent), never as markup.

const byId = (id) => document.getElementById(id);
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
  stop: byId("stop"),
  text: byId("text"),
  token: byId("token"),
  workspace: byId("workspace"),
  workspaceForm: byId("workspace-form"),
};

const DEFAULT_WORKSPACE = "default";
const RECONNECT_MS = 1500;
const SILENCE_MS = 20000;   // four heartbeats: a connection can die without a word
const REASONS = {
  user: "stopped by you",
  startup: "stopped before it began",
  system: "interrupted: the server was stopped, or another message came",
};

let workspace = new URLSearchParams(location.search).get("workspace") || DEFAULT_WORKSPACE;
let source = null;          // the EventSource
let cursor = "";            // how far we have heard: the server tells what came after it
let reconnectTimer = null;
let silenceTimer = null;
let retryAt = null;         // when a failed answer is tried again, if it is
let retryToldAgain = false; // by what this connection was told of before
let live = null;            // {id, message, timestamp} of the message that is being answered
let failed = null;          // {id, text} of the last failure: one before the first word has no row
let unsent = null;          // {text, id}: sent again under the same id if the answer got lost

// ---- talking to the server

function api(path) {
  return `/api/workspaces/${encodeURIComponent(workspace)}/${path}`;
}

class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function call(path, body) {
  let response;
  try {
    response = await fetch(path, body === undefined ? {} : {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, "The server can't be reached.");
  }
  if (response.ok) return response.status === 204 || response.status === 202 && path.endsWith("/stop")
    ? null : response.json();
  let detail = `The server answered ${response.status}.`;
  try {
    detail = (await response.json()).detail || detail;
  } catch { /* no problem JSON: the status has to do */ }
  throw new Refused(response.status, detail);
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

function make(tag, className, text) {
  const node = document.createElement(tag);
  node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// A message as it is drawn: its blocks in the order in which they were said.
class Message {
  constructor(role) {
    this.item = make("li", `message ${role}`);
    this.item.append(make("p", "who", role === "user" ? "You" : "Model"));
    this.block = null;      // {kind, text}: the block that is being said
    this.tools = new Map(); // by call id
    this.usage = null;
  }

  add(kind, text) {
    if (text === "") return;
    if (this.block === null || this.block.kind !== kind) {
      this.block = { kind, text: this.place(kind) };
    }
    this.block.text.append(text);
  }

  place(kind) {
    const text = make("p", kind === "said" ? "said" : "thought-text");
    if (kind === "said") this.item.append(text);
    else this.item.append(this.fold("thought", "Reasoning", text));
    return text;
  }

  fold(className, title, ...content) {
    const fold = make("details", className);
    fold.append(make("summary", "", title), ...content);
    return fold;
  }

  tool(id, name, input) {
    if (this.tools.has(id)) return this.tools.get(id);
    this.block = null;
    const state = make("span", "tool-state", "called");
    const fold = this.fold("tool", `Tool: ${name} `);
    fold.firstChild.append(state);
    if (input !== undefined && input !== null) fold.append(make("pre", "tool-input", asText(input)));
    this.item.append(fold);
    const tool = { fold, state, done: false };
    this.tools.set(id, tool);
    return tool;
  }

  toolRuns(id, name) {
    const tool = this.tool(id, name);
    if (!tool.done) tool.state.textContent = "running";
  }

  toolEnds(id, name, output) {
    const tool = this.tool(id, name);
    if (tool.done) return;
    tool.done = true;
    const failed = output !== null && typeof output === "object" && output.success === false;
    tool.state.textContent = failed ? "failed" : "done";
    tool.fold.append(make("pre", "tool-output", asText(output)));
  }

  cost(usage) {
    const counts = [
      ["in", usage.inputTokens], ["out", usage.outputTokens], ["reasoning", usage.reasoningTokens],
      ["cached", usage.cachedInputTokens],
    ].filter(([, count]) => typeof count === "number");
    if (counts.length === 0) return;
    if (this.usage === null) this.usage = make("p", "usage");
    this.usage.textContent = `tokens: ${counts.map(([name, count]) => `${count} ${name}`).join(", ")}`;
    this.item.append(this.usage); // last of all
  }

  parts(parts) {
    for (const part of parts) {
      if (part.type === "text") this.add("said", part.text);
      else if (part.type === "reasoning") this.add("thought", part.text);
      else if (part.type === "dynamic-tool") {
        this.tool(part.toolCallId, part.toolName, part.input);
        if (part.state === "output-available") this.toolEnds(part.toolCallId, part.toolName, part.output);
      } else if (part.type === "file") {
        this.block = null;
        this.item.append(make("p", "file", `File: ${part.filename || part.mediaType || "unnamed"}`));
      }
    }
  }
}

function asText(value) {
  if (value === undefined || value === null) return "nothing";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

function addBadge(item, text, failed) {
  item.append(make("p", failed ? "badge failed" : "badge", text));
}

function makeRow(row) {
  const message = new Message(row.role);
  message.parts(row.parts || []);
  const about = row.metadata || {};
  if (about.usage) message.cost(about.usage);
  if (about.error) addBadge(message.item, `failed: ${about.error}`, true);
  else if (about.partial) {
    addBadge(message.item, REASONS[about.abortReason] || "interrupted: it failed, or the server was killed", false);
  }
  return message.item;
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
  page.stop.hidden = live === null && retryAt === null;
  page.stop.disabled = false;
  page.empty.hidden = live !== null || page.messages.childElementCount > 0;
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

// ---- events

function connect() {
  disconnect();
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
    showLive();
    showHistorySafely();
  });
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

page.composer.addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = page.text.value;
  if (text.trim() === "" || page.send.disabled) return;
  if (unsent === null || unsent.text !== text) unsent = { text, id: newId() };
  page.send.disabled = true;
  showError("");
  try {
    const { messageId } = await call(api("messages"), { text, clientMessageId: unsent.id });
    unsent = null;
    page.text.value = "";
    fitText();
    page.announcer.textContent = `Sent. ${messageId ? "The answer begins." : ""}`;
  } catch (error) {
    onRefused(error);
  } finally {
    page.send.disabled = false;
    page.text.focus();
  }
});

page.text.addEventListener("keydown", (event) => {
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
  if (live === null && retryAt === null) return;
  page.stop.disabled = true;
  try {
    // Without an id it also calls off a try that is waited for.
    await call(api("stop"), live === null ? {} : { messageId: live.id });
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
