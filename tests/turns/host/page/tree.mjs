// Draws turns as the page does, on a document that knows what the tree needs and nothing more: no
// way to set markup, so none is set. Reads steps from its input, writes what was seen after them.

import { readFileSync } from "node:fs";

class Element extends EventTarget {
  #hidden = false;

  constructor(tag) {
    super();
    Object.assign(this, { tag, className: "", id: "", attributes: {}, children: [], parent: null });
  }

  get hidden() { return this.#hidden; }
  set hidden(hidden) {
    this.#hidden = hidden;
    if (hidden && this.contains(document.activeElement)) document.activeElement = null;
  }

  get textContent() {
    return this.children.map((child) => typeof child === "string" ? child : child.textContent).join("");
  }
  set textContent(text) { this.children = [String(text)]; }

  append(...added) { added.forEach((each) => this.#add(each, this.children.length)); }
  prepend(added) { this.#add(added, 0); }
  #add(added, at) {
    if (typeof added !== "string") {
      added.remove();
      added.parent = this;
    }
    this.children.splice(at, 0, added);
  }
  remove() {
    if (this.parent !== null) this.parent.children = this.parent.children.filter((child) => child !== this);
    this.parent = null;
  }

  setAttribute(name, value) { this.attributes[name] = value; }
  getAttribute(name) { return this.attributes[name] ?? null; }
  removeAttribute(name) { delete this.attributes[name]; }

  get elements() { return this.children.filter((child) => typeof child !== "string"); }
  contains(other) { return other === this || this.elements.some((child) => child.contains(other)); }
  get isShown() { return !this.hidden && (this.parent === null || this.parent.isShown); }
  focus() { if (this.isShown) document.activeElement = this; }
  find(test) {
    for (const child of this.elements) {
      const found = test(child) ? child : child.find(test);
      if (found) return found;
    }
    return null;
  }
}

const parts = { turns: new Element("aside"), "turn-list": new Element("ol") };
parts.turns.append(parts["turn-list"]);
globalThis.document = {
  activeElement: null,
  createElement: (tag) => new Element(tag),
  getElementById: (id) => parts[id],
};
globalThis.setInterval = () => 1; // the time that passes is none of this
globalThis.clearInterval = () => {};

const { TurnTree } = await import(process.argv[2]);
const asked = [];
const said = [];
let goesWell = true;
const tree = new TurnTree(async (path, body) => {
  asked.push([path, body]);
  return goesWell;
}, (text) => said.push(text));

const shown = (element) => element !== null && element.isShown;
const within = (item, className) => item.find((each) => each.className.split(" ")[0] === className);

// An item as a person sees it.
function drawn(item) {
  const text = (className) => {
    const found = item.elements.find((each) => each.className === className) ?? within(item, className);
    return shown(found) ? found.textContent : "";
  };
  const buttons = [];
  for (const part of item.elements.filter((each) => each.tag === "div" && each.isShown)) {
    const shown = part.elements.filter((each) => each.tag === "button" && each.isShown);
    buttons.push(...shown.map((each) => each.textContent));
  }
  const below = item.elements.find((each) => each.tag === "ol");
  return {
    state: text("turn-state"),
    prompt: text("turn-prompt"),
    about: text("turn-about"),
    question: shown(within(item, "turn-question")) ? within(item, "turn-question-text").textContent : "",
    buttons,
    below: below.elements.map(drawn),
  };
}

function itemOf(id) {
  return parts["turn-list"].find((each) => each.tag === "li" && within(each, "turn-prompt").id === `prompt-of-${id}`);
}

const press = {
  button(item, name) {
    const button = item.find((each) => each.tag === "button" && each.textContent === name && each.isShown);
    if (button === null) throw new Error(`there is no button ${name}`);
    button.focus();
    button.dispatchEvent(new Event("click"));
  },
  remember(item) { item.find((each) => each.type === "checkbox").checked = true; },
  words(item, text) {
    within(item, "turn-steering").find((each) => each.tag === "input").value = text;
    within(item, "turn-steering").dispatchEvent(new Event("submit", { cancelable: true }));
  },
};

for (const [what, ...given] of JSON.parse(readFileSync(0, "utf8"))) {
  if (what === "turns") tree.replace(given[0]);
  else if (what === "turns.changed") tree.change(given[0]);
  else if (what === "goes wrong") goesWell = false;
  else press[what](itemOf(given[0]), given[1]);
  await new Promise((resolve) => setImmediate(resolve));
}

console.log(JSON.stringify({
  drawn: parts["turn-list"].elements.map(drawn),
  isShown: parts.turns.isShown,
  live: tree.live?.id ?? null,
  focus: document.activeElement === null ? null : document.activeElement.textContent || document.activeElement.tag,
  asked,
  said,
}));
