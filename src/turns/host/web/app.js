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
  send: byId("send"),
  stop: byId("stop"),
  text: byId("text"),
  token: byId("token"),
  workspace: byId("workspace"),
  workspaceForm: byId("workspace-form"),
};

const DEFAULT_WORKSPACE = "default";
const RECONNECT_MS = 1500;
const REASONS = {
  user: "stopped by you",
  startup: "stopped before it began",
  system: "interrupted: the server was stopped, or another message came",
};

let workspace = new URLSearchParams(location.search).get("workspace") || DEFAULT_WORKSPACE;
let source = null;          // the EventSource
let reconnectTimer = null;
let live = null;            // {id, text, node} of the message that is being answered
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

function textOf(row) {
  return (row.parts || []).filter((part) => part.type === "text").map((part) => part.text).join("");
}

function makeMessage(role, text) {
  const item = document.createElement("li");
  item.className = `message ${role}`;
  const who = document.createElement("p");
  who.className = "who";
  who.textContent = role === "user" ? "You" : "Model";
  const said = document.createElement("p");
  said.className = "said";
  said.textContent = text;
  item.append(who, said);
  return item;
}

function addBadge(item, text, failed) {
  const badge = document.createElement("p");
  badge.className = failed ? "badge failed" : "badge";
  badge.textContent = text;
  item.append(badge);
}

function makeRow(row) {
  const item = makeMessage(row.role, textOf(row));
  const about = row.metadata || {};
  if (about.error) addBadge(item, `failed: ${about.error}`, true);
  else if (about.partial) {
    addBadge(item, REASONS[about.abortReason] || "interrupted: it failed, or the server was killed", false);
  }
  return item;
}

function isAtBottom() {
  return page.main.scrollTop + page.main.clientHeight >= page.main.scrollHeight - 80;
}

function keepingBottom(change) {
  const follow = isAtBottom();
  change();
  if (follow) page.main.scrollTop = page.main.scrollHeight;
}

function showLive() {
  page.stop.hidden = live === null;
  page.stop.disabled = false;
  page.empty.hidden = live !== null || page.messages.childElementCount > 0;
}

function begin(id, text) {
  if (live !== null && live.id === id) {
    if (live.text !== text) {
      live.text = text;
      live.said.textContent = text;
    }
    return;
  }
  dropLive();
  const node = makeMessage("assistant", text);
  node.classList.add("live");
  live = { id, text, node, said: node.querySelector(".said") };
  keepingBottom(() => page.messages.append(node));
  showLive();
}

function dropLive() {
  if (live !== null) live.node.remove();
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
    if (live !== null) page.messages.append(live.node);
  });
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
  source = new EventSource(api("events"));
  source.onopen = () => showConnection("ok", "connected");
  source.onerror = (event) => {
    if (event instanceof MessageEvent) return; // one of ours, named "error"
    showConnection("lost", "reconnecting");
    // A refusal ends an EventSource for good; a broken connection doesn't.
    if (source.readyState === EventSource.CLOSED) reconnectLater();
  };
  const on = (type, act) => source.addEventListener(type, (event) => {
    if (event instanceof MessageEvent) act(JSON.parse(event.data));
  });
  on("snapshot", (event) => {
    showError("");
    if (event.messageId === null) dropLive();
    else begin(event.messageId, event.text);
    showLive();
    showHistorySafely();
  });
  on("stream-start", (event) => {
    begin(event.messageId, live !== null && live.id === event.messageId ? live.text : "");
    showHistorySafely();
  });
  on("stream-delta", (event) => {
    if (live === null || live.id !== event.messageId) return;
    live.text += event.delta;
    keepingBottom(() => live.said.append(event.delta));
  });
  on("stream-end", (event) => ended(event, "The answer is complete."));
  on("stream-abort", (event) => ended(event, "The answer was stopped."));
  on("error", (event) => ended(event, `The answer failed: ${event.error}`));
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
    live.node.classList.remove("live");
    live = null;
  }
  page.announcer.textContent = announcement;
  showLive();
  showHistorySafely();
}

function disconnect() {
  clearTimeout(reconnectTimer);
  if (source !== null) source.close();
  source = null;
}

function reconnectLater() {
  clearTimeout(reconnectTimer);
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
  if (live === null) return;
  page.stop.disabled = true;
  try {
    await call(api("stop"), { messageId: live.id });
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
  dropLive();
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
