/** What a generative system generated, and at which step its beam lost the gold. */

import { readable } from "./bars.js";
import { button, make, words } from "./elements.js";
import { term } from "./glossary.js";
import { percent, rankOf, shown } from "./numbers.js";
import { documentLink } from "./results.js";
import { nameCell, row, table } from "./tables.js";

const FIRST = 12; // generated identifiers before "show all"
const KEPT = 4; // of what a step kept
const EXAMPLES = 3; // documents that a line names

/** The steps of the beam, from /api/explain. */
export function beamSteps({ steps, lost, replaced_by: replaced }) {
  const columns = [["step", null], ["best way to this document", "name"], [term("probability"), null], [term("rank"), null],
    ["in the beam", "name"], ["the beam kept", "name"]];
  const rows = steps.map((step) => row([
    make("th", { scope: "row" }, `${step.depth}`),
    nameCell(step.gold_token ? words("bdi", readable(step.gold_token)) : "–"),
    percent(step.gold_probability), rankOf(step.gold_rank),
    nameCell(step.alive ? "yes" : step.depth === lost ? "lost here" : "no"), nameCell(kept(step)),
  ], { class: step.depth === lost ? "lost" : null }));
  return make("section", { "aria-label": "Steps of the beam" }, make("h3", {}, "Step by step through the ", term("beam")),
    summary(lost, steps, replaced), table(columns, rows, null, { class: "steps" }));
}

function summary(lost, steps, replaced) {
  if (lost === null || lost === undefined) return make("p", {}, "This document stayed in the beam to the end.");
  const token = (text) => words("bdi", readable(text));
  const step = steps.find((one) => one.depth === lost);
  const parts = [`The beam lost this document at step ${lost}`];
  if (step?.gold_token) {
    parts.push(": “", token(step.gold_token), `” had a probability of ${percent(step.gold_probability)}`);
  }
  if (replaced) parts.push("; the last place in the beam went to “", token(replaced.text), `” with ${percent(replaced.probability)}`);
  return make("p", { class: "lost-line" }, ...parts, ".");
}

function kept(step) {
  const name = (text) => words(text === step.gold_token ? "b" : "bdi", readable(text)); // this document's own
  const items = step.kept.slice(0, KEPT).map((one) => make("li", {}, name(one.text),
    make("span", { class: "quiet" }, ` ${percent(one.probability)}`)));
  return make("ul", { class: "kept" }, ...items);
}

/** The n-grams or docids that were generated for a query, and the documents that each names. */
export function generatedList(system, query, generated) {
  const line = (one) => {
    const links = one.documents.slice(0, EXAMPLES).map((document) => documentLink(system, query, document));
    const more = one.count > links.length ? make("span", { class: "quiet" }, `and ${one.count - links.length} more`) : null;
    return row([nameCell(words("bdi", readable(one.text))), shown(one.log_probability, 2),
      make("td", { class: "name links" }, ...links, more)]);
  };
  const found = table([["generated", "name"], [term("log p", "log-probability"), null], ["documents", "name"]],
    generated.slice(0, FIRST).map(line), null, { class: "generated" });
  const all = button(`Show all ${generated.length}`, () => {
    found.querySelector("tbody").append(...generated.slice(FIRST).map(line));
    all.remove();
  }, { class: "link" });
  return make("section", { "aria-label": "What was generated" }, make("h3", {}, "What was generated"),
    generated.length ? found : make("p", { class: "quiet" }, "Nothing was generated."),
    generated.length > FIRST ? all : null);
}
