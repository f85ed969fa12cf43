/** The known queries: those with judged documents, where systems disagree most first. */

import { Panel, ask } from "./api.js";
import { choice, delayed, labelled, make, words } from "./elements.js";
import { term } from "./glossary.js";
import { rankOf } from "./numbers.js";
import { open } from "./state.js";

const LIMIT = 100;

/** Searches a known query. Several may have one text, so its name goes along: it says which documents are gold. */
export function openKnown({ text, known }) {
  open({ view: "search", q: text, known });
}

export class KnownQueries {
  constructor(about) {
    this.systems = about.systems;
    this.filter = make("input", { type: "search", autocomplete: "off", oninput: delayed(200, () => this.load()) });
    this.order = choice([["disagreement", "where systems disagree most"], ["name", "by name"]], () => this.load());
    this.panel = new Panel();
    this.count = make("span", { class: "quiet" });
    this.element = make("details", { class: "known", open: true },
      make("summary", {}, "Known queries ", this.count),
      make("p", { class: "quiet small" }, "Each with the ", term("rank"), " of its ", term("gold"),
        " document in each system."),
      labelled("Filter", this.filter), labelled("Order", this.order), this.panel.element);
    this.load();
  }

  load() {
    const asked = new URLSearchParams({ text: this.filter.value, order: this.order.value, limit: LIMIT });
    const question = (signal) => ask(`queries?${asked}`, undefined, signal);
    this.panel.fill("Loading the known queries …", question, (found) => {
      this.count.textContent = found.length < LIMIT ? `(${found.length})` : `(first ${LIMIT})`;
      this.panel.body.replaceChildren(found.length
        ? make("ol", { class: "query-list" }, ...found.map((query) => this.item(query)))
        : make("p", { class: "quiet" }, this.filter.value ? "No known query has these words." : "These runs know no queries."));
      this.mark(this.current);
    });
  }

  item(query) {
    const ranks = this.systems.map((system, place) => make("span", { class: query.ranks[place] === null ? "missed" : null },
      `${system.label} ${rankOf(query.ranks[place])}`));
    return make("li", {}, make("button", { type: "button", "data-known": query.known, onclick: () => openKnown(query) },
      words("span", query.text, { class: "query-text" }),
      make("span", { class: "ranks" }, words("bdi", query.known, { class: "query-id" }), ...ranks)));
  }

  /** Marks the query that is shown, by its name in the list; undefined: none. */
  mark(known) {
    this.current = known;
    for (const item of this.panel.body.querySelectorAll("button")) {
      item.setAttribute("aria-current", `${item.dataset.known === known}`);
    }
  }
}
