/** Tables whose columns are words (left) or numbers (right). */

import { make } from "./elements.js";

/**
 * A table that scrolls within the page.
 *
 * `columns`: [heading, kind], kind "name" for words, null for numbers. `rows`: elements of tbody, or rows of `row`.
 */
export function table(columns, rows, foot = null, attributes = {}) {
  const heads = columns.map(([heading, kind]) => make("th", { scope: "col", class: kind }, heading));
  return make("div", { class: "wide" }, make("table", attributes, make("thead", {}, make("tr", {}, ...heads)),
    make("tbody", {}, ...rows), foot ? make("tfoot", {}, foot) : null));
}

/** A row: a text or an element becomes a cell of numbers; what is a cell already stays. */
export function row(cells, attributes = {}) {
  const isCell = (cell) => cell instanceof HTMLTableCellElement;
  return make("tr", attributes, ...cells.map((cell) => (isCell(cell) ? cell : make("td", {}, cell))));
}

/** A cell of words, or of elements with words. */
export function nameCell(...content) {
  return make("td", { class: "name" }, ...content);
}

/** A cell with a bar of `value` in proportion to `largest`; the number itself is in another cell. */
export function barCell(value, largest) {
  return make("td", { class: "bar-cell", "aria-hidden": "true" }, bar(value, largest));
}

/** A bar: blue for what is positive, orange for what is negative. */
export function bar(value, largest) {
  const filled = make("span", { class: value < 0 ? "bar minus" : "bar" });
  filled.style.width = `${Math.min(100, (100 * Math.abs(value ?? 0)) / largest)}%`;
  return make("span", { class: "bar-room", "aria-hidden": "true" }, filled);
}
