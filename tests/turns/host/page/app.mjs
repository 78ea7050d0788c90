// Runs the whole page against a server that only takes notes. Reads steps from its input, writes
// what was asked of the server, and what could be seen.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

import { byId, settled } from "./dom.mjs";

globalThis.location = { search: "", hash: "", pathname: "/" };
globalThis.history = { replaceState: () => {} };
globalThis.MessageEvent = class extends Event {
  constructor(type, fields) {
    super(type);
    Object.assign(this, fields);
  }
};
globalThis.EventSource = class extends EventTarget {
  static CLOSED = 2;
  static now = null;

  constructor(url) {
    super();
    this.url = url;
    EventSource.now = this;
  }
  close() {}
};
// Of the timers none is waited for.
globalThis.setTimeout = () => 1;
globalThis.clearTimeout = () => {};

const asked = [];
let refusal = null;
globalThis.fetch = async (path, { method, body } = {}) => {
  if (method === "POST") asked.push([path, JSON.parse(body)]);
  else asked.push([path]);
  const refused = refusal !== null && method === "POST";
  const answer = refused ? { detail: refusal } : path.endsWith("/history") ? { rows: [] } : {};
  return {
    ok: !refused,
    status: refused ? 409 : 200,
    headers: new Headers({ "Content-Type": "application/json" }),
    json: async () => answer,
  };
};

await import(pathToFileURL(process.argv[2]));
await settled();
byId("turns").append(byId("turn-list"));

const take = {
  told: (message) => EventSource.now.dispatchEvent(new MessageEvent(message.type, {
    data: JSON.stringify(message), lastEventId: "",
  })),
  write(text) { byId("text").value = text; },
  press: (id, clicks = 0) => byId(id).dispatchEvent(Object.assign(new Event("click"), { detail: clicks })),
  key: (id, key) => byId(id).dispatchEvent(Object.assign(new Event("keydown", { cancelable: true }), { key })),
  submit: (id) => byId(id).dispatchEvent(new Event("submit", { cancelable: true })),
  refuse(detail) { refusal = detail; },
};
const before = asked.length;
for (const [what, ...given] of JSON.parse(readFileSync(0, "utf8"))) {
  take[what](...given);
  for (let turn = 0; turn < 3; turn += 1) await settled();
}

console.log(JSON.stringify({
  asked: asked.slice(before).filter(([path]) => !path.endsWith("/history")),
  looks: asked.slice(before).filter(([path]) => path.endsWith("/history")).length,
  turns: byId("turn-list").elements.length,
  canStop: byId("stop").isShown,
  stops: byId("stop").title,
  text: byId("text").value,
  warned: byId("takes-over").isShown,
  error: byId("error").textContent,
  said: byId("announcer").textContent,
}));
process.exit(0);
