/** Shares of a score as bars with numbers: blue adds to it, orange takes from it. */

import { button, make, words } from "./elements.js";
import { shown } from "./numbers.js";
import { bar } from "./tables.js";

const SHORT = 20; // as many are shown in their own order; of more the largest come first
const NOTHING = 1e-9; // a rest that rounding leaves

/** Rows of name, bar and number; `rest` is the sum of what is not listed. */
export function bars(shares, rest = 0) {
  const largest = Math.max(1e-12, ...shares.map((share) => Math.abs(share.value ?? 0)));
  const line = (name, filled, value) => make("li", {}, name, filled, make("span", { class: "bar-value" }, shown(value)));
  const name = (text) => words("span", readable(text), { class: "bar-name", title: text });
  const lines = shares.map(({ text, value }) => line(name(text), bar(value, largest), value));
  const others = make("span", { class: "bar-name quiet" }, "all others");
  if (Math.abs(rest) > NOTHING) lines.push(line(others, make("span"), rest)); // its bar would dwarf the others
  return make("ul", { class: "bars" }, ...lines);
}

/** As `bars`, but of a long list only the largest, until a person asks for all. */
export function foldedBars(shares) {
  if (shares.length <= SHORT) return bars(shares);
  const holder = make("div");
  const [largest, others] = split(shares, SHORT);
  const all = button(`Show all ${shares.length}, in the order of the text`, () => {
    const list = bars(shares);
    list.tabIndex = -1;
    holder.replaceChildren(list);
    list.focus();
  }, { class: "link" });
  holder.append(bars(largest, others), all);
  return holder;
}

/** The largest shares, and the sum of all others. */
export function split(shares, count) {
  const ordered = [...shares].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  return [ordered.slice(0, count), ordered.slice(count).reduce((sum, share) => sum + share.value, 0)];
}

/** A token or a text of several, as the tokeniser writes it: its word mark tells "▁debug" from "debug". */
export function readable(text) {
  return text.trim() || "␣";
}
