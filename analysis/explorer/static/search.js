/** Search: a query, or a known one, and what every system finds for it. */

import { Panel, ask } from "./api.js";
import { labelled, make } from "./elements.js";
import { term } from "./glossary.js";
import { KnownQueries } from "./queries.js";
import { resultColumns } from "./results.js";
import { open } from "./state.js";

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
    open({ view: "search", q: this.query.value, k: k === K ? null : k, among: this.among.value.trim() });
  }

  show(state) {
    const asked = JSON.stringify([state.q, state.k, state.among]);
    if (asked === this.asked) return;
    this.asked = asked;
    this.query.value = state.q ?? "";
    this.k.value = state.k ?? K;
    this.among.value = state.among ?? "";
    this.more.open = Boolean(state.k || state.among);
    this.known.mark(state.q);
    if (!state.q?.trim()) {
      this.panel.stop();
      this.hint();
      return;
    }
    if (window.innerWidth <= 900) this.known.element.open = false; // a narrow page shows results first
    const among = state.among ? state.among.split(/\s+/) : undefined;
    const question = (signal) => ask("search", { query: state.q, k: Number(state.k ?? K), among }, signal);
    this.panel.fill("Searching in all systems …", question,
      (found) => this.panel.body.replaceChildren(...resultColumns(this.about.systems, state.q, found)));
  }

  title(state) {
    return state.q ?? "Search";
  }
}
