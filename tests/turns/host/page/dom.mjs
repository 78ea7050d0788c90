// A document that knows what the page needs and nothing more: no way to set markup, so none is set.

export class Element extends EventTarget {
  #hidden = false;

  constructor(tag) {
    super();
    Object.assign(this, {
      tag, className: "", id: "", value: "", style: {}, attributes: {}, children: [], parent: null,
    });
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

  replaceChildren(...added) {
    this.elements.forEach((child) => child.remove());
    this.children = [];
    this.append(...added);
  }
  get childElementCount() { return this.elements.length; }
  get firstChild() { return this.children[0] ?? null; }
  classList = { add: (name) => { this.className += ` ${name}`; }, remove: () => {} };

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

const parts = new Map(); // by id, made when they are asked for: index.html has them all
export const byId = (id) => {
  if (!parts.has(id)) parts.set(id, new Element("div"));
  return parts.get(id);
};

globalThis.document = {
  activeElement: null,
  createElement: (tag) => new Element(tag),
  getElementById: byId,
};
globalThis.setInterval = () => 1; // the time that passes is none of this
globalThis.clearInterval = () => {};

export const settled = () => new Promise((resolve) => setImmediate(resolve));
