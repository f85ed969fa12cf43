/** Results of all systems in columns, and where each ranks the gold. */

import { bars, split } from "./bars.js";
import { button, make, words } from "./elements.js";
import { term } from "./glossary.js";
import { milliseconds, rankOf, shown } from "./numbers.js";
import { open, read } from "./state.js";

const SHARES = 4; // bars of a hit
const GOLD = 2; // gold documents that are not folded

/** The elements that show what /api/search said about a query. */
export function resultColumns(systems, query, found) {
  const byNumber = new Map(systems.map((system) => [system.number, system]));
  const columns = found.systems.map((list) => column(byNumber.get(list.number), query, list));
  const lines = found.gold.map((gold) => goldLine(systems, query, gold));
  const more = lines.length > GOLD ? make("details", {},
    make("summary", {}, `${lines.length - GOLD} more gold documents`), ...lines.slice(GOLD)) : null;
  return [...lines.slice(0, GOLD), more ?? "", make("div", { class: "columns" }, ...columns)];
}

/** Shows a document with a query in a system. */
export function openPair(system, query, document, tab) {
  const { known, k, among } = read(); // of the search, to which a person may return
  open({ view: "pair", system, q: query, known, doc: document, tab, k, among });
}

/** A button with a document's title that opens it with a query in a system. */
export function documentLink(system, query, document) {
  return make("button", { type: "button", class: "link", title: document.id,
    onclick: () => openPair(system.number, query, document.id) }, words("bdi", document.title || document.id));
}

/** A gold document: where each system ranks it; a click says why. */
function goldLine(systems, query, gold) {
  const whys = systems.map((system, place) => {
    const missed = gold.ranks[place] === null;
    const label = `${system.label}: ${missed ? "not found" : `rank ${gold.ranks[place]}`} – why?`;
    const explain = () => openPair(system.number, query, gold.id, "why");
    return button(label, explain, { class: missed ? "missed" : null, dir: "auto" });
  });
  return make("section", { class: "gold-line", "aria-label": "Gold document" },
    make("p", {}, make("strong", {}, term("Gold"), ": "), words("bdi", gold.title || gold.id),
      make("span", { class: "quiet" }, ` ${gold.id}`)),
    make("div", { class: "whys" }, ...whys));
}

function column(system, query, list) {
  const head = make("header", {}, words("h3", system.label, { title: system.run }), make("p", { class: "quiet small" },
    term(system.paradigm.replace("_", "-")), `, ${milliseconds(list.milliseconds)}`));
  const section = make("section", { class: "column", "aria-label": `Results of ${system.label}` }, head);
  if (list.error) section.append(make("p", { class: "error" }, list.error));
  else if (!list.hits.length) section.append(make("p", { class: "quiet" }, "This system found no document."));
  else section.append(make("ol", { class: "hits" }, ...list.hits.map((hit) => card(system, query, hit))));
  return section;
}

function card(system, query, hit) {
  const title = make("button", { type: "button", class: "hit-title",
    onclick: () => openPair(system.number, query, hit.id) },
  make("span", { class: "hit-rank" }, rankOf(hit.rank)), " ", words("bdi", hit.title || hit.id));
  const facts = make("p", { class: "small quiet" }, `${hit.id}, `, term("score", "score in the search"), ` ${shown(hit.score)}`,
    hit.gold ? make("strong", { class: "gold-mark" }, "gold") : null);
  return make("li", { class: hit.gold ? "hit gold" : "hit" }, title, facts,
    words("p", hit.snippet, { class: "snippet" }), largestShares(hit));
}

function largestShares(hit) {
  if (!hit.shares.length) return null;
  const [largest, others] = split(hit.shares, SHARES);
  return bars(largest, others + (hit.rest ?? 0));
}
