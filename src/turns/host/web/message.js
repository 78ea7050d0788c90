// A message of the conversation, as it is drawn.

import { make } from "./dom.js";

const REASONS = {
  user: "stopped by you",
  startup: "stopped before it began",
  system: "interrupted: the server was stopped, or another message came",
};

// A message as it is drawn: its blocks in the order in which they were said.
export class Message {
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

export function makeRow(row) {
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
