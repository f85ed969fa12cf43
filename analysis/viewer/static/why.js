/** Why a system ranks a document where it does: against its first document, and where a beam lost it. */

import { Panel, ask } from "./api.js";
import { documentLink, open, read } from "./state.js";
import { bars, button, differenceTable, make, percent, shown, spoken, table, term, words, written } from "./viewer.js";

const FIRST = 12; // generated identifiers before "show all"
const KEPT = 4; // of what a step kept
const EXAMPLES = 3; // documents that a line names

export class WhyView {
  constructor() {
    this.reason = new Panel({ class: "reason", "aria-label": "In short" });
    this.element = make("section", { class: "why-view", "aria-label": "Why this rank" });
  }

  show(system, query, document) {
    const asked = { system: system.number, query, document };
    const busy = `Searching again, to ${system.generates ? "watch the beam" : "explain the rank"} …`;
    this.reason.fill(busy, asked, (signal) => {
      this.element.replaceChildren();
      return ask("explain", asked, signal);
    }, (told) => {
      this.reason.body.replaceChildren(words("p", told.reason));
      this.draw(told, system, query, document);
    });
  }

  /** Without a document of the collection there is no rank to explain. */
  clear(message) {
    this.reason.clear("");
    this.element.replaceChildren(make("p", { class: "quiet" }, message));
  }

  draw({ best, hit, steps, lost, replaced_by: replaced, generated }, system, query, document) {
    const other = best && best.id !== document ? best : null;
    this.best = other?.id;
    const parts = [
      other ? make("p", {}, "First is ", documentLink(system, query, other), ". ", button("Compare the two", () => compareWith(other.id))) : null,
      hit && other ? make("section", { "aria-label": "Against the first document" }, make("h3", {}, "How it differs from the first document"),
        differenceTable({ name: "this", ...hit }, { name: "first", ...other }, system.shares_of)) : null,
      steps?.length ? beamSteps(steps, lost, replaced) : null,
      system.paradigm === "generative" && hit ? make("section", {}, make("h3", {}, "Shares of the ", term("score in the search")), bars(hit.shares, hit.score)) : null,
      generated ? generatedList(system, query, generated) : null,
    ];
    this.element.replaceChildren(...parts.filter(Boolean));
  }
}

/** The same query with another document of the collection: the given one, or a copy of this one to edit. */
export function compareWith(id) {
  const { q, doc, title, text, edited, system } = read();
  const other = id && id !== doc ? { doc2: id } : { doc2: doc, title2: title, text2: text, edited2: edited };
  open({ view: "compare", system, q, doc, title, text, edited, q2: q, ...other });
}

function beamSteps(steps, lost, replaced) {
  const columns = [["step", null], ["best beginning of this document", "name"], [term("probability"), null], [term("rank"), null],
    ["in the beam", "name"], ["the beam kept", "name"]];
  const rows = steps.map(({ best, rank, alive, kept }, place) => ({
    kind: place + 1 === lost ? "lost" : null,
    values: [`${place + 1}`, best ? words("bdi", written(best.text)) : "–", percent(best?.probability), rank ?? "–",
      alive ? "yes" : place + 1 === lost ? "lost here" : "no",
      make("ul", { class: "kept" }, kept.slice(0, KEPT).map((one) => make("li", {},
        words(one.text === best?.text ? "b" : "bdi", written(one.text)), make("span", { class: "quiet" }, ` ${percent(one.probability)}`))))],
  }));
  return make("section", { "aria-label": "Steps of the beam" }, make("h3", {}, "Step by step through the ", term("beam")),
    summary(steps, lost, replaced), table(columns, rows, { class: "steps" }));
}

function summary(steps, lost, replaced) {
  if (!lost) return make("p", {}, "This document stayed in the beam to the end.");
  const best = steps[lost - 1].best;
  return make("p", { class: "lost-line" }, `The beam lost this document at step ${lost}`,
    best ? [": ", words("bdi", spoken(best.text)), ` had a probability of ${percent(best.probability)}`] : null,
    replaced ? ["; the last place in the beam went to ", words("bdi", spoken(replaced.text)), ` with ${percent(replaced.probability)}`] : null, ".");
}

/** The n-grams or docids that were generated for a query, and the documents that each names. */
function generatedList(system, query, generated) {
  const columns = [["generated", "name"], [term("log p", "log-probability"), null], ["documents", "name links"]];
  const row = (one) => ({ values: [words("bdi", written(one.text)), shown(one.log_probability, 2), documentLinks(system, query, one.documents, one.count)] });
  const holder = make("div", {}, table(columns, generated.slice(0, FIRST).map(row), { class: "generated" }));
  if (generated.length > FIRST) {
    holder.append(button(`Show all ${generated.length}`, () => holder.replaceChildren(table(columns, generated.map(row))), { class: "link" }));
  }
  return make("section", { "aria-label": "What was generated" }, make("h3", {}, "What was generated"),
    generated.length ? holder : make("p", { class: "quiet" }, "Nothing was generated."));
}

/** Links to the first of some documents, and how many more there are. */
export function documentLinks(system, query, documents, count) {
  const links = documents.slice(0, EXAMPLES).map((document) => documentLink(system, query, document));
  return count > links.length ? [...links, make("span", { class: "quiet" }, `and ${count - links.length} more`)] : links;
}
