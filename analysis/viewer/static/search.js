/** Search: a query, or a known one, and what every system finds for it. */

import { Panel, ask } from "./api.js";
import { button, labelled, make } from "./elements.js";
import { term } from "./glossary.js";
import { KnownQueries, openKnown } from "./queries.js";
import { resultColumns } from "./results.js";
import { open, read } from "./state.js";

const K = 10;

export class SearchView {
  constructor(about) {
    this.about = about;
    this.known = new KnownQueries(about);
    this.query = make("input", { type: "search", name: "q", dir: "auto", autocomplete: "off", required: true });
    this.k = make("input", { type: "number", name: "k", min: 1, max: 100, value: K });
    this.among = make("input", { type: "text", name: "among", autocomplete: "off", spellcheck: "false" });
    this.panel = new Panel({ class: "results", "aria-label": "Results" });
    this.more = make("details", { class: "more" }, make("summary", {}, "Options"),
      labelled("Documents per system", this.k),
      labelled("Search only in these documents (ids, with spaces between)", this.among));
    const form = make("form", { class: "search-form", role: "search", onsubmit: (event) => this.submit(event) },
      labelled("Query", this.query, { class: "wide-label" }),
      make("button", { type: "submit", class: "main" }, "Search"), this.more);
    this.element = make("div", { class: "search-view" }, make("aside", {}, this.known.element),
      make("div", { class: "found" }, form, this.panel.element));
    this.hint();
  }

  hint() {
    this.panel.body.replaceChildren(make("p", { class: "quiet" }, "Type any query, or choose a known one. ",
      "A click on a result then shows how its ", term("tokens", "token"), " are aligned with the query's, ",
      "and what each gives to the ", term("score"), "."));
  }

  submit(event) {
    event.preventDefault();
    const k = Number(this.k.value);
    const { q, known } = read();
    open({ view: "search", q: this.query.value, known: this.query.value === q ? known : null,
      k: k === K ? null : k, among: this.among.value.trim() });
  }

  show(state) {
    const key = JSON.stringify([state.q, state.known, state.k, state.among]);
    if (key === this.key) return;
    this.key = key;
    this.query.value = state.q ?? "";
    this.k.value = state.k ?? K;
    this.among.value = state.among ?? "";
    this.more.open = Boolean(state.k || state.among);
    this.known.mark(state.known);
    if (!state.q?.trim()) {
      this.panel.stop();
      this.hint();
      return;
    }
    if (window.innerWidth <= 900) this.known.element.open = false; // a narrow page shows results first
    const among = state.among ? state.among.split(/\s+/) : undefined;
    const asked = { query: state.q, known: state.known, k: Number(state.k ?? K), among };
    this.panel.fill("Searching in all systems …", (signal) => ask("search", asked, signal), (found) => {
      this.known.mark(found.known?.known);
      this.panel.body.replaceChildren(namesakes(found.namesakes), ...resultColumns(this.about.systems, state.q, found));
    });
  }

  title(state) {
    return state.q ?? "Search";
  }
}

/** A choice among known queries of one text, whose gold documents differ; "" without a choice. */
function namesakes(queries) {
  if (!queries.length) return "";
  const choices = queries.map((query) => button(query.known, () => openKnown(query), { dir: "auto" }));
  return make("div", { class: "gold-line namesakes" },
    make("p", {}, `${queries.length} known queries have this text. Choose one to see its gold documents:`),
    make("div", { class: "whys" }, ...choices));
}
