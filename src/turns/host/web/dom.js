// What models and people wrote goes into the page as text only (textContent), never as markup.

export const byId = (id) => document.getElementById(id);

export function make(tag, className, text) {
  const node = document.createElement(tag);
  node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// What reorders the text around it, or shows nothing, spelled out: who allows a command must not be
// shown another one. Line feeds and tabs stay.
export function spelledOut(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu, (character) =>
    character === "\n" || character === "\t" ? character : `\\u{${character.codePointAt(0).toString(16)}}`);
}

// Hides a part; a focus in it would be nowhere then.
export function hide(part, hidden, instead) {
  if (hidden && part.contains(document.activeElement)) instead.focus();
  part.hidden = hidden;
}
