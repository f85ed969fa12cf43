/** One query and one document in one system: how they are aligned, the shares of the score, why this rank. */

import { Panel, ask } from "./api.js";
import { Continuations, Nearest } from "./collection.js";
import { change, delayed, open, read, systemOf } from "./state.js";
import { Texts, complete, documentOf } from "./texts.js";
import { Alignment, bars, button, make, shown, signed, term, words } from "./viewer.js";
import { WhyView, compareWith } from "./why.js";

const TABS = { alignment: "Alignment and shares", why: "Why this rank", continuations: "Continuations" };
const NEEDS = { continuations: "generates" }; // of a system
const HINT = "Type a query and a document: their tokens are aligned as you type.";
const NO_RANK = "A rank is explained for a document of the collection: choose one of the results.";
const NEAR = " A click on one of the query's shows its nearest tokens in the whole collection.";
const PAUSE = 600; // milliseconds after an edit: to explain is to search

export class PairView {
  constructor(about) {
    this.systems = about.systems;
    this.back = button("", () => this.goBack(), { class: "link back" });
    this.heading = make("h2");
    const tabs = (label, entries) => make("div", { class: "tabs", role: "group", "aria-label": label }, entries);
    this.choices = tabs("System", this.systems.map(({ label, number }) => (
      button(label, () => open({ ...read(), system: number, layer: null, head: null, prefix: null }), { "data-system": number }))));
    this.tabs = tabs("What to see", Object.entries(TABS).map(([name, label]) => (
      button(label, () => open({ ...read(), tab: name }), { "data-tab": name }))));
    this.texts = new Texts(() => this.edit());
    this.score = make("p", { class: "score", role: "status" });
    this.alignment = new Alignment({ changed: change, picked: (index) => this.pick(index) });
    this.nearest = new Nearest();
    this.shares = make("div", { class: "shares" });
    this.aligned = new Panel({ "aria-label": "Alignment" });
    this.drawn = make("div", {}, make("div", { class: "pair-columns" }, make("div", {}, this.alignment.element, this.nearest.element),
      this.shares));
    this.why = new WhyView();
    this.continuations = new Continuations((prefix) => open({ ...read(), prefix: prefix.join(",") }));
    this.explainLater = delayed(PAUSE, () => this.explain(read()));
    this.parts = { alignment: this.aligned.element, why: this.why.element, continuations: this.continuations.element };
    this.element = make("div", { class: "pair-view" },
      make("div", { class: "crumbs" }, this.back, button("Compare with another text", () => compareWith(this.why.best))),
      this.heading, this.choices, this.why.reason.element, this.texts.element, this.score, this.tabs, Object.values(this.parts));
  }

  goBack() {
    const { q, k } = read();
    open({ view: "search", q, k });
  }

  show(state) {
    if (!this.aligned.answers(this.question(state))) this.original = null; // the score before edits
    this.update(state);
    this.explain(state);
  }

  edit() {
    this.update();
    this.explainLater();
  }

  update(state = read()) {
    const system = systemOf(this.systems, state), { q, doc } = state;
    this.texts.show(state);
    this.back.hidden = !q;
    this.back.replaceChildren("← Results for “", words("bdi", q ?? ""), "”");
    this.heading.replaceChildren(words("bdi", system.label), ...(doc ? [" and document ", words("bdi", doc)] : [" aligns two texts"]));
    const possible = (name) => name in TABS && (!(name in NEEDS) || system[NEEDS[name]]);
    const tab = possible(state.tab) ? state.tab : "alignment";
    for (const item of this.choices.children) item.setAttribute("aria-pressed", `${Number(item.dataset.system) === system.number}`);
    for (const item of this.tabs.children) {
      item.setAttribute("aria-pressed", `${item.dataset.tab === tab}`);
      item.hidden = !possible(item.dataset.tab);
    }
    for (const [name, part] of Object.entries(this.parts)) part.hidden = name !== tab;
    if (tab === "continuations" && q) this.continuations.show(system, q, state.prefix ? state.prefix.split(",").map(Number) : []);
    this.align(state, system);
  }

  /** What the server is asked about the pair of a state. */
  question(state) {
    return { system: systemOf(this.systems, state).number, query: state.q, document: documentOf(state) };
  }

  align(state, system) {
    if (!complete(state)) {
      this.score.replaceChildren();
      this.aligned.clear(HINT);
      return;
    }
    const asked = this.question(state);
    this.aligned.fill("Aligning …", asked, (signal) => {
      this.nearest.hide();
      return ask("align", asked, signal).catch((error) => {
        if (!signal.aborted) this.score.replaceChildren();
        throw error;
      });
    }, (pair) => this.draw(pair, system, read()));
  }

  async draw(pair, system, state) {
    this.original ??= pair.score;
    const relevance = pair.relevance.at(-1);
    this.score.replaceChildren(term("Score of the pair"), " ", make("b", {}, shown(pair.score)),
      pair.score === this.original ? "" : ` (${signed(pair.score - this.original)} by your edits)`, `: ${pair.score_name}. `,
      ...(relevance === pair.score ? [] : [term("Relevance"), " Σ S·A / Z ", make("b", {}, shown(relevance)), ". "]),
      make("span", { class: "quiet" }, pair.note));
    // n-grams are what a search generates; a given pair has all tokens of its document.
    const part = system.shares_of === "n-gram" ? "document token" : system.shares_of;
    this.shares.replaceChildren(make("h3", {}, "Share of each ", term(part), " in the ", term("score", "score of the pair"), " ", shown(pair.score)),
      pair.shares.length ? bars(pair.shares, pair.score) : make("p", { class: "quiet" }, "Nothing here has a share."));
    this.alignment.hint = system.paradigm === "multi-vector" ? NEAR : "";
    this.aligned.body.replaceChildren(this.drawn);
    await this.alignment.show(pair, state);
  }

  pick(index) {
    const state = read(), system = systemOf(this.systems, state);
    if (system.paradigm === "multi-vector") this.nearest.show(system, state.q, index, this.alignment.pair.query.tokens[index]);
  }

  explain(state) {
    if (state.view !== "pair") return;
    const { id } = documentOf(state);
    if (id && state.q?.trim()) this.why.show(systemOf(this.systems, state), state.q, id);
    else this.why.clear(NO_RANK);
  }

  title(state) {
    return state.doc ? `${systemOf(this.systems, state).label}: ${state.q ?? ""}` : "Align two texts";
  }
}
