/** Search: a query of any kind, what every system retrieves for it, and where the relevant documents are. */

import { Panel, begin, delayed, documentLink, open, openPair } from "./state.js";
import { button, hitCards, labelled, make, term, words } from "./viewer.js";

const K = 10;
const LISTED = 100; // known queries that the server lists at most
const GOLD = 2; // relevant documents that are not folded

export class SearchView {
  constructor({ systems }) {
    this.systems = systems;
    this.query = make("input", { type: "search", name: "q", dir: "auto", autocomplete: "off", required: true });
    this.k = make("input", { type: "number", name: "k", min: 1, max: 100, value: K });
    this.panel = new Panel({ class: "results", "aria-label": "Results" });
    const form = make("form", { class: "search-form", role: "search", onsubmit: (event) => this.submit(event) },
      labelled("Query", this.query, { class: "wide-label" }), labelled("Documents", this.k),
      make("button", { type: "submit", class: "main" }, "Search"));
    this.element = make("div", { class: "search-view" }, this.makeList(), make("div", {}, form, this.panel.element));
    this.loadList();
  }

  /** The known queries, the first of which tell most: where systems disagree, or where the only one fails. */
  makeList() {
    const order = this.systems.length > 1 ? "where systems disagree most come first" : "where the system fails come first";
    this.filter = make("input", { type: "search", autocomplete: "off", oninput: delayed(200, () => this.loadList()) });
    this.count = make("span", { class: "quiet" });
    this.list = new Panel();
    this.known = make("details", { class: "known", open: true }, make("summary", {}, "Known queries ", this.count),
      make("p", { class: "quiet small" }, "Each with the ", term("rank"), " of its ", term("relevant", "gold"),
        ` document in each system; those ${order}.`),
      labelled("Filter", this.filter), this.list.element);
    return make("aside", {}, this.known);
  }

  loadList() {
    this.list.fill("Loading the known queries …", "queries", { text: this.filter.value }, (queries) => {
      this.count.textContent = queries.length < LISTED ? `(${queries.length})` : `(first ${LISTED})`;
      this.list.body.replaceChildren(queries.length ? make("ol", { class: "query-list" }, queries.map((query) => this.item(query)))
        : make("p", { class: "quiet" }, "No known query has these words."));
      this.mark(this.current);
      if (queries.length && !location.hash) begin({ view: "search", q: queries[0].text }); // no empty page
    });
  }

  item({ id, text, ranks }) {
    const told = this.systems.map(({ label }, place) => make("span", { class: ranks[place] === null ? "missed" : null },
      `${label} ${ranks[place] ?? "–"}`));
    return make("li", {}, make("button", { type: "button", "data-query": text, onclick: () => open({ view: "search", q: text }) },
      words("span", text, { class: "query-text" }), make("span", { class: "ranks" }, words("bdi", id), told)));
  }

  /** Marks the query that is shown, by its text; undefined: none. */
  mark(text) {
    this.current = text;
    for (const item of this.list.body.querySelectorAll("button")) item.setAttribute("aria-current", `${item.dataset.query === text}`);
  }

  submit(event) {
    event.preventDefault();
    open({ view: "search", q: this.query.value, k: Number(this.k.value) === K ? null : this.k.value });
  }

  show({ q, k }) {
    this.query.value = q ?? "";
    this.k.value = k ?? K;
    if (!q?.trim()) {
      this.mark();
      this.panel.clear("Type any query, or choose a known one.");
      return;
    }
    if (innerWidth <= 900) this.known.open = false; // a narrow page shows results first
    this.panel.fill("Searching in all systems …", "search", { query: q, k: Number(k ?? K) }, (told) => {
      this.mark(told.known);
      this.panel.body.replaceChildren(...this.goldLines(q, told.gold),
        make("div", { class: "columns" }, told.systems.map((list) => this.column(q, list))));
    });
  }

  /** The relevant documents: where each system ranks them; a click says why. */
  goldLines(query, gold) {
    const lines = gold.map(({ id, title, ranks }) => make("section", { class: "gold-line", "aria-label": "Relevant document" },
      make("p", {}, make("strong", {}, term("Relevant", "gold"), ": "), words("bdi", title || id), title ? make("span", { class: "quiet" }, ` ${id}`) : null),
      make("div", { class: "whys" }, this.systems.map((system, place) => button(
        `${system.label}: ${ranks[place] === null ? "not retrieved" : `rank ${ranks[place]}`} – why?`,
        () => openPair(system, query, id, "why"), { class: ranks[place] === null ? "missed" : null, dir: "auto" })))));
    const more = lines.splice(GOLD);
    return more.length ? [...lines, make("details", {}, make("summary", {}, `${more.length} more relevant documents`), more)] : lines;
  }

  column(query, { number, milliseconds, error, hits }) {
    const system = this.systems[number];
    const cards = hits.length ? hitCards(hits, (hit) => documentLink(system, query, hit))
      : make("p", { class: "quiet" }, "This system retrieved no document.");
    return make("section", { class: "column", "aria-label": `Results of ${system.label}` },
      make("header", {}, words("h3", system.label, { title: system.run }),
        make("p", { class: "quiet small" }, term(system.paradigm), `, ${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`)),
      error ? make("p", { class: "error" }, error) : cards);
  }
}
