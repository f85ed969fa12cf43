/** One query and one document in one system: how they are aligned, what scores, why this rank. */

import { AlignmentView } from "./alignment.js";
import { Panel, ask } from "./api.js";
import { readable } from "./bars.js";
import { Continuations } from "./continuations.js";
import { button, delayed, make, words } from "./elements.js";
import { term } from "./glossary.js";
import { Nearest } from "./nearest.js";
import { shown, signed } from "./numbers.js";
import { PatchView } from "./patching.js";
import { pictureButtons } from "./save.js";
import { sharesOf } from "./shares.js";
import { change, open, read, systemOf } from "./state.js";
import { Texts, complete, documentOf } from "./texts.js";
import { WhyView } from "./why.js";

const TABS = { alignment: "Alignment and shares", why: "Why this rank", patching: "Patching", continuations: "Continuations" };
const NEEDS = { patching: "patchable", continuations: "generative" }; // of a system
const HINT = "Type a query and a document: their tokens are aligned as you type.";
const NO_RANK = "A rank is explained for a document of the collection: choose one of the results.";
const PAUSE = 600; // milliseconds after an edit: to explain is to search

/** The server draws A as the system aligns, whatever direction the page shows. */
function savedNote() {
  const { shown: layer, direction } = read();
  const own = (layer ?? "alignment") !== "alignment" || (direction ?? "own") === "own";
  return own ? "Saved." : "Saved as the system aligns: pictures have no direction.";
}

/** Which tokens an edit brought into a text and which it took out, as parts of a line. */
function changedTokens(side, before, after) {
  const without = (tokens, others) => {
    const left = [...others];
    return tokens.filter((token) => {
      const place = left.indexOf(token);
      if (place >= 0) left.splice(place, 1);
      return place < 0;
    });
  };
  const named = (what, tokens) => (tokens.length
    ? [` ${what} `, ...tokens.flatMap((token, place) => [place ? ", " : "", make("b", {}, words("bdi", readable(token)))]), "."]
    : []);
  const found = [...named("new", without(after, before)), ...named("gone", without(before, after))];
  return found.length ? [`Tokens of the ${side}:`, ...found, " "] : [];
}

export class PairView {
  constructor(about) {
    this.systems = about.systems;
    this.back = button("", () => this.goBack(), { class: "link back" });
    this.heading = make("h2");
    this.makeTabs();
    this.texts = new Texts(() => this.edit());
    this.score = make("p", { class: "score", role: "status" });
    this.changes = make("p", { class: "changes", role: "status" });
    this.alignment = new AlignmentView({
      changed: (choices) => this.switch(choices), picked: (index) => this.pick(index),
    });
    this.nearest = new Nearest();
    this.aligned = new Panel({ "aria-label": "Alignment" });
    this.why = new WhyView((id) => this.compare(id));
    this.continuations = new Continuations((prefix) => this.step({ prefix: prefix.join(",") }));
    this.patching = new PatchView((other) => this.switch({ other }));
    this.explainLater = delayed(PAUSE, () => this.explain());
    this.pictures = pictureButtons(() => ({ ...this.asked(), layer_shown: read().shown ?? "alignment" }), savedNote);
    this.parts = {
      alignment: this.aligned.element, why: this.why.element, patching: this.patching.element,
      continuations: this.continuations.element,
    };
    const crumbs = make("div", { class: "crumbs" }, this.back, button("Compare with another text", () => this.compare()));
    this.element = make("div", { class: "pair-view" }, crumbs, this.heading, this.choices, this.why.reason.element,
      this.texts.element, this.score, this.changes, this.tabs, ...Object.values(this.parts));
  }

  makeTabs() {
    const another = { layer: null, head: null, prefix: null };
    this.choices = make("div", { class: "tabs", role: "group", "aria-label": "System" }, ...this.systems.map(
      ({ label, number }) => button(label, () => this.step({ ...another, system: number }), { "data-system": number }),
    ));
    this.tabs = make("div", { class: "tabs", role: "group", "aria-label": "What to see" }, ...Object.entries(TABS).map(
      ([name, label]) => button(label, () => this.step({ tab: name }), { "data-tab": name }),
    ));
  }

  goBack() {
    const { q, known, k, among } = read();
    open({ view: "search", q, known, k, among });
  }

  /** Another step of the same view, to which "back" returns. */
  step(changes) {
    open({ ...read(), ...changes });
  }

  /** What /api/align is asked. */
  asked(state = read()) {
    const number = (value, otherwise) => (value === undefined ? otherwise : Number(value));
    return {
      system: systemOf(this.systems, state).number, query: state.q ?? "", document: documentOf(state),
      layer: number(state.layer, -1), head: number(state.head, null),
    };
  }

  /** What /api/align is asked about the pair before its edits; null: it was not edited. */
  unedited(state) {
    const query = state.from ?? state.q;
    if (!state.doc || (query === state.q && !state.edited)) return null;
    return { ...this.asked(state), query, document: { id: state.doc } };
  }

  show(state) {
    const pair = JSON.stringify([state.system, state.doc]);
    if (pair !== this.shown) this.aligned.body.replaceChildren(); // of another pair
    this.shown = pair;
    this.update(state);
    this.explain();
  }

  edit() {
    this.update();
    this.explainLater();
  }

  update(state = read()) {
    const system = systemOf(this.systems, state);
    this.texts.show(state);
    this.back.hidden = !state.q;
    this.back.replaceChildren("← Results for “", words("bdi", state.q ?? ""), "”");
    this.heading.replaceChildren(words("bdi", system.label),
      ...(state.doc ? [" and document ", words("bdi", state.doc)] : [" aligns two texts"]));
    this.turnTo(state, system);
    this.align(state, system);
  }

  /** Shows the part that the state names. */
  turnTo(state, system) {
    const possible = (name) => name in TABS && (!(name in NEEDS) || system[NEEDS[name]]);
    const tab = possible(state.tab) ? state.tab : "alignment";
    const press = (item, on) => item.setAttribute("aria-pressed", `${on}`);
    for (const item of this.choices.children) press(item, Number(item.dataset.system) === system.number);
    for (const item of this.tabs.children) {
      press(item, item.dataset.tab === tab);
      item.hidden = !possible(item.dataset.tab);
    }
    for (const [name, part] of Object.entries(this.parts)) part.hidden = name !== tab;
    const prefix = state.prefix ? state.prefix.split(",").map(Number) : [];
    if (tab === "patching" && complete(state)) this.patching.show(system, state.q, documentOf(state), state.other ?? "");
    if (tab === "continuations" && state.q) this.continuations.show(system, state.q, prefix);
  }

  align(state, system) {
    const asked = this.asked(state);
    const key = JSON.stringify(asked);
    if (key === this.key) return;
    this.key = key;
    this.nearest.hide();
    if (!complete(state)) {
      this.aligned.stop();
      this.aligned.body.replaceChildren(make("p", { class: "quiet" }, HINT));
      this.score.replaceChildren();
      this.changes.replaceChildren();
      this.pair = Promise.resolve(null);
      return;
    }
    const fail = (signal, error) => {
      if (!signal.aborted) [this.key, this.score.textContent, this.changes.textContent] = [null, "", ""];
      throw error;
    };
    this.pair = new Promise((resolve) => {
      const before = this.unedited(state);
      const question = (signal) => Promise.all([asked, before].map((one) => one && ask("align", one, signal)))
        .catch((error) => {
          resolve(null);
          fail(signal, error);
        });
      this.aligned.fill("Aligning …", question, ([pair, original]) => {
        resolve(pair);
        this.draw(pair, original ?? pair, system, read());
      });
    });
  }

  /** `before`: the pair without the edits, itself without edits. */
  draw(pair, before, system, state) {
    const gain = pair.score - before.score;
    this.score.replaceChildren(term("Score of the pair"), " ", make("b", {}, shown(pair.score)),
      gain ? ` (${signed(gain)} by your edits)` : "", pair.score_name ? `: ${pair.score_name}. ` : ". ",
      ...(pair.relevance === pair.score ? [] : [term("Relevance"), " Σ S·A / Z ", make("b", {}, shown(pair.relevance)), "."]));
    this.changes.replaceChildren(...["query", "document"].flatMap((side) => (
      changedTokens(side, before[`${side}_tokens`], pair[`${side}_tokens`]))));
    this.alignment.show(pair, system, state);
    this.aligned.body.replaceChildren(make("div", { class: "pair-columns" },
      make("div", {}, this.alignment.element, this.pictures), sharesOf(pair, system)));
    this.alignment.matrix.element.before(this.nearest.element);
  }

  switch(choices) {
    change(choices);
    this.update();
  }

  async pick(index) {
    const system = systemOf(this.systems, read());
    const pair = system.paradigm === "multi_vector" ? await this.pair : null;
    if (pair) this.nearest.show(system, read().q, index, pair.query_tokens[index]);
  }

  explain() {
    const state = read();
    if (state.view !== "pair") return;
    const document = documentOf(state);
    if (!document.id || !state.q?.trim()) this.why.clear(NO_RANK);
    else this.why.show(systemOf(this.systems, state), state.q, state.known, document.id);
  }

  /** The same query with another document: the given one, the system's first, or a copy to edit. */
  compare(id) {
    const { q, known, doc, title, text, edited, system } = read();
    const best = id ?? this.why.found?.best?.id;
    const other = best && best !== doc ? { doc2: best } : { doc2: doc, title2: title, text2: text, edited2: edited };
    open({ view: "compare", system, q, known, doc, title, text, edited, q2: q, known2: known, ...other });
  }

  title(state) {
    return state.doc ? `${systemOf(this.systems, state).label}: ${state.q ?? ""}` : "Align two texts";
  }
}
