/** Shares of two scores compared: the same token, word or n-gram in both, and what parts them. */

import { readable } from "./bars.js";
import { make, words } from "./elements.js";
import { shown, signed } from "./numbers.js";
import { barCell, row, table } from "./tables.js";

const ROWS = 20;

/** [{text, a, b, difference}], the largest difference first; the n-th of equal texts meets the n-th. */
export function differences(first, second) {
  const rows = new Map();
  for (const [side, shares] of [["a", first], ["b", second]]) {
    const seen = new Map();
    for (const { text, value } of shares) {
      const turn = (seen.get(text) ?? 0) + 1;
      seen.set(text, turn);
      const key = JSON.stringify([text, turn]);
      rows.set(key, { text, a: 0, b: 0, ...rows.get(key), [side]: value });
    }
  }
  return [...rows.values()].map((one) => ({ ...one, difference: one.a - one.b }))
    .sort((x, y) => Math.abs(y.difference) - Math.abs(x.difference));
}

/** A table of two lists of shares, with sums; of a long one the largest differences. */
export function differenceTable(first, second, [firstName, secondName], what) {
  const all = differences(first, second);
  const largest = Math.max(1e-12, ...all.map((one) => Math.abs(one.difference)));
  const line = (kind, name, one) => row([kind(name), ...numbers(one), barCell(one.difference, largest)]);
  const text = (name) => words("td", readable(name), { class: "name" });
  const others = (name) => make("td", { class: "name quiet" }, name);
  const rows = all.slice(0, ROWS).map((one) => line(text, one.text, one));
  if (all.length > ROWS) rows.push(line(others, `${all.length - ROWS} others`, sum(all.slice(ROWS))));
  const foot = row([make("th", { class: "name", scope: "row" }, "Sum"), ...numbers(sum(all)), ""]);
  const columns = [[what, "name"], [firstName, null], [secondName, null], ["difference", null], ["", null]];
  return table(columns, rows, foot, { class: "differences" });
}

function numbers({ a, b, difference }) {
  return [shown(a), shown(b), signed(difference)];
}

function sum(rows) {
  const add = (total, one) => ({ a: total.a + one.a, b: total.b + one.b, difference: total.difference + one.difference });
  return rows.reduce(add, { a: 0, b: 0, difference: 0 });
}
