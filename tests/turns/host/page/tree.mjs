// Draws turns as the page does. Reads steps from its input, writes what was seen after them.

import { readFileSync } from "node:fs";

import { byId, settled } from "./dom.mjs";

const list = byId("turn-list");
byId("turns").append(list);

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
  return list.find((each) => each.tag === "li" && within(each, "turn-prompt").id === `prompt-of-${id}`);
}

const press = {
  button(item, name, clicks = 1) {
    const button = item.find((each) => each.tag === "button" && each.textContent === name && each.isShown);
    if (button === null) throw new Error(`there is no button ${name}`);
    button.focus();
    button.dispatchEvent(Object.assign(new Event("click"), { detail: clicks }));
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
  else press[what](itemOf(given[0]), ...given.slice(1));
  await settled();
}

console.log(JSON.stringify({
  drawn: list.elements.map(drawn),
  isShown: byId("turns").isShown,
  live: tree.live?.id ?? null,
  focus: document.activeElement === null ? null : document.activeElement.textContent || document.activeElement.tag,
  asked,
  said,
}));
