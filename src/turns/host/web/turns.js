// The turns of the workspace as a tree: where each stands, what it asks, and what can be asked of it.

import { byId, hide, make, spelledOut } from "./dom.js";

const STATES = {
  queued: "queued",
  starting: "starting",
  running: "running",
  waiting: "waiting for an answer",
  completed: "completed",
  interrupted: "interrupted",
  error: "failed",
};
const INTERRUPTS = { graceful: "asked to end", hard_abort: "asked to end at once" };
const ORPHANS = {
  parent_finished: "nobody took its result: the turn above had ended",
  parent_finished_waiting: "nobody took its result: the turn above ended meanwhile",
  panic: "nobody took its result: it could not be handed over",
  interrupted: "nobody took its result: it was interrupted",
};
const ENDED = new Set(["completed", "interrupted", "error"]);
const LIVE = new Set(["starting", "running", "waiting"]);
const TICK_MS = 1000;

function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${seconds % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function button(text, className, act) {
  const node = make("button", className, text);
  node.type = "button";
  node.addEventListener("click", (event) => {
    // The rest of a double click would answer the question that came meanwhile, unread.
    if (event.detail < 2) act(node);
  });
  return node;
}

function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
  node.hidden = text === "";
}

// One turn as it is drawn. `ask(path, body)` posts below its handle and gives whether that went well.
class Turn {
  constructor(node, ask) {
    this.ask = ask;
    this.item = make("li", "turn");
    this.line = make("p", "turn-line");
    this.line.tabIndex = -1;
    this.state = make("span", "turn-state");
    this.prompt = make("span", "turn-prompt");
    this.prompt.id = `prompt-of-${node.id}`;
    this.time = make("span", "turn-time");
    this.line.append(this.state, " ", this.prompt, " ", this.time);
    this.about = make("p", "turn-about");
    this.item.append(this.line, this.about);
    if (node.handleId !== undefined) {
      this.item.append(this.makeQuestion(node), this.makeActions());
    }
    this.below = make("ol", "turns");
    this.below.setAttribute("role", "list"); // without marks it is none to some readers
    this.item.append(this.below);
    this.show(node);
  }

  makeQuestion(node) {
    this.question = make("div", "turn-question");
    this.question.setAttribute("role", "group");
    this.questionText = make("p", "turn-question-text");
    this.questionText.id = `question-of-${node.id}`;
    this.question.setAttribute("aria-labelledby", this.questionText.id);
    this.remember = make("input", "");
    this.remember.type = "checkbox";
    this.subject = make("span", "");
    const label = make("label", "turn-remember");
    label.append(this.remember, " ", this.subject);
    this.question.append(
      this.questionText,
      button("Allow", "primary", (pressed) => this.answer(pressed, true)),
      button("Deny", "stop", (pressed) => this.answer(pressed, false)),
      label,
    );
    return this.question;
  }

  makeActions() {
    this.actions = make("div", "turn-actions");
    this.actions.setAttribute("role", "group");
    this.actions.setAttribute("aria-labelledby", this.prompt.id);
    this.steer = button("Steer", "", () => this.openSteering(this.steering.hidden));
    this.steer.setAttribute("aria-expanded", "false");
    this.stop = button("Stop", "stop", (pressed) => this.do(pressed, "interrupt", { hard: false }));
    this.stop.title = "It gives a last answer, without tools";
    this.stopNow = button("Stop now", "stop", (pressed) => this.do(pressed, "interrupt", { hard: true }));
    this.actions.append(this.steer, this.stop, this.stopNow, this.makeSteering());
    return this.actions;
  }

  makeSteering() {
    this.steering = make("form", "turn-steering");
    this.steering.autocomplete = "off";
    this.steering.hidden = true;
    this.words = make("input", "");
    this.words.type = "text";
    this.words.required = true;
    const label = make("label", "");
    label.append(make("span", "hidden-text", "What it shall hear"), this.words);
    const send = make("button", "primary", "Send");
    send.type = "submit";
    this.steering.append(label, send);
    this.steering.addEventListener("submit", async (event) => {
      event.preventDefault();
      const text = this.words.value;
      if (text.trim() === "" || !await this.do(send, "steer", { text })) return;
      this.words.value = "";
      this.openSteering(false);
    });
    this.steering.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.openSteering(false);
    });
    return this.steering;
  }

  openSteering(open, instead = this.steer) {
    hide(this.steering, !open, instead);
    this.steer.setAttribute("aria-expanded", String(open));
    if (open) this.words.focus();
  }

  answer(pressed, allow) {
    const { requestId } = this.node.question;
    const remember = this.remember.checked;
    return this.do(pressed, `permissions/${encodeURIComponent(requestId)}`, { allow, remember });
  }

  async do(pressed, path, body) {
    // Not `disabled`: the focus would be nowhere.
    if (pressed.getAttribute("aria-disabled") === "true") return false;
    pressed.setAttribute("aria-disabled", "true");
    const went = await this.ask(`/api/turns/${encodeURIComponent(this.node.handleId)}/${path}`, body);
    pressed.removeAttribute("aria-disabled");
    return went;
  }

  show(node) {
    const asked = node.question?.requestId;
    if (this.remember && this.node?.question?.requestId !== asked) this.remember.checked = false;
    this.node = node;
    this.item.className = `turn ${node.state}`;
    set(this.state, STATES[node.state] || node.state);
    this.prompt.textContent = node.prompt;
    set(this.about, this.aboutOf(node));
    this.tick();
    if (node.handleId === undefined) return;
    set(this.questionText, spelledOut(node.question?.question ?? ""));
    this.subject.textContent = `Remember the answer for "${node.question?.subject ?? ""}"`;
    hide(this.question, asked === undefined, this.line);
  }

  // Of a root: whether it, or something below it, can be stopped. What is below may outlive it.
  showActions(isBusy) {
    // One that is queued hears nothing yet, and has no last answer to give.
    const isLive = LIVE.has(this.node.state);
    if (!isLive) this.openSteering(false, this.line);
    for (const each of [this.steer, this.stop]) hide(each, !isLive, this.line);
    hide(this.actions, !isBusy, this.line);
    this.stopNow.title = ENDED.has(this.node.state)
      ? "What runs below it ends at once"
      : "It ends at once, and what it said is taken back";
  }

  aboutOf(node) {
    return [
      node.critical ? "critical" : "",
      ENDED.has(node.state) ? "" : INTERRUPTS[node.interrupt] ?? "",
      node.steered > 0 ? `steered ${node.steered}\u00d7` : "",
      node.reason ?? "",
      node.cause ? `cause: ${node.cause}` : "",
      ORPHANS[node.orphan] ?? "",
    ].filter((words) => words !== "").join(" \u00b7 ");
  }

  tick() {
    const { createdAtMs, startedAtMs, endedAtMs, state } = this.node;
    const began = startedAtMs ?? (ENDED.has(state) ? createdAtMs : undefined);
    set(this.time, began === undefined ? "" : duration((endedAtMs ?? Date.now()) - began));
  }
}

// All of them. `ask` as above; `announce(text)` says something to who can't see the page.
export class TurnTree {
  constructor(ask, announce) {
    this.ask = ask;
    this.announce = announce;
    this.section = byId("turns");
    this.roots = byId("turn-list");
    this.turns = new Map(); // by the turn's id
    this.timer = null;
  }

  // The root that runs now, if one does: {id, handleId, ...}.
  get live() {
    for (const { node } of this.turns.values()) {
      if (node.handleId !== undefined && LIVE.has(node.state)) return node;
    }
    return null;
  }

  replace(nodes) {
    const kept = new Set(nodes.map((node) => node.id));
    this.change({ nodes, gone: [...this.turns.keys()].filter((id) => !kept.has(id)) }, true);
  }

  change({ nodes = [], gone = [] }, silent = false) {
    for (const id of gone) {
      this.turns.get(id)?.item.remove();
      this.turns.delete(id);
    }
    for (const node of nodes) {
      const before = this.turns.get(node.id)?.node;
      this.put(node);
      if (!silent) this.tellOf(node, before);
    }
    const busy = this.busyRoots();
    for (const [id, turn] of this.turns) if (turn.actions !== undefined) turn.showActions(busy.has(id));
    this.section.hidden = this.turns.size === 0;
    this.keepTime();
  }

  put(node) {
    const known = this.turns.get(node.id);
    // A new server counts subturns anew: one of the same name may be below another turn.
    if (known !== undefined && known.node.parentId === node.parentId) {
      known.show(node);
      return;
    }
    known?.item.remove();
    const turn = new Turn(node, this.ask);
    this.turns.set(node.id, turn);
    const parent = this.turns.get(node.parentId);
    // Roots with the newest first: what is of interest is in sight.
    if (parent === undefined) this.roots.prepend(turn.item);
    else parent.below.append(turn.item);
  }

  busyRoots() {
    const busy = new Set();
    for (let { node } of this.turns.values()) {
      if (ENDED.has(node.state)) continue;
      while (this.turns.has(node.parentId)) node = this.turns.get(node.parentId).node;
      busy.add(node.id);
    }
    return busy;
  }

  tellOf(node, before) {
    if (node.question !== undefined && node.question.requestId !== before?.question?.requestId) {
      this.announce(`A turn asks: ${spelledOut(node.question.question)}`);
    } else if (node.handleId !== undefined && ENDED.has(node.state) && node.state !== before?.state) {
      this.announce(`A turn has ended: ${node.reason ?? STATES[node.state]}`);
    }
  }

  keepTime() {
    const isLive = [...this.turns.values()].some(({ node }) => !ENDED.has(node.state));
    if (isLive === (this.timer !== null)) return;
    if (isLive) {
      this.timer = setInterval(() => this.turns.forEach((turn) => turn.tick()), TICK_MS);
    } else {
      clearInterval(this.timer);
      this.timer = null;
    }
  }
}
