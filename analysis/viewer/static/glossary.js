/** Terms with a dotted underline: what they mean is one hover, or one Tab, away. */

import { make } from "./elements.js";

let meanings = new Map();
let number = 0;

/** `glossary`: term → explanation. */
export function setGlossary(glossary) {
  meanings = new Map(Object.entries(glossary).map(([name, meaning]) => [name.toLowerCase(), meaning]));
}

/** A word of the page, marked where the glossary explains it. */
export function term(label, name = label) {
  const meaning = meanings.get(name.toLowerCase());
  if (!meaning) return make("span", {}, label);
  const tip = make("span", { role: "tooltip", class: "tip", id: `tip-${(number += 1)}`, hidden: true }, meaning);
  const word = make("span", { class: "term", tabindex: "0", "aria-describedby": tip.id }, label);
  const holder = make("span", { class: "term-holder" }, word, tip);
  const show = () => {
    tip.hidden = false;
    keepInside(tip, word);
  };
  const hide = () => (tip.hidden = true);
  word.addEventListener("mouseenter", show);
  word.addEventListener("focus", show);
  word.addEventListener("mouseleave", hide);
  word.addEventListener("blur", hide);
  word.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  return holder;
}

/** Places the explanation under its word, within the window's width. */
function keepInside(tip, word) {
  const box = word.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(8, left)}px`;
  const below = box.bottom + 4;
  const fits = below + tip.offsetHeight < document.documentElement.clientHeight;
  tip.style.top = `${fits ? below : box.top - tip.offsetHeight - 4}px`;
}
