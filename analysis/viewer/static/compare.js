/** Two pairs side by side in one system: two documents for a query, or two queries. */

import { Panel, ask } from "./api.js";
import { change, open, read, systemOf } from "./state.js";
import { Texts, complete, documentOf } from "./texts.js";
import { Alignment, differenceTable, labelled, make, setChoices, shown, signed, term } from "./viewer.js";

const SIDES = { A: "", B: "2" }; // the names of the pairs, and what ends their keys in the state
const HINT = "Fill in a query and a document on both sides: they are compared as you type.";

export class CompareView {
  constructor(about) {
    this.systems = about.systems;
    this.system = make("select", { onchange: () => open({ ...read(), system: this.system.value }) });
    setChoices(this.system, about.systems.map((system) => [system.number, system.label]));
    this.panel = new Panel({ "aria-label": "Comparison" });
    this.sides = Object.entries(SIDES).map(([name, mark]) => ({ name, mark,
      texts: new Texts(() => this.show(), { mark, name: ` ${name}` }),
      hits: make("select", { onchange: (event) => this.take(mark, event.target.value) }),
      alignment: new Alignment() }));
    this.element = make("div", { class: "compare-view" }, make("h2", {}, "Compare two texts"),
      make("p", { class: "quiet" }, "Two documents for one query, or two queries for one document: the ", term("shares", "share"),
        " of both ", term("scores", "score of the pair"), "."),
      labelled("System", this.system), make("div", { class: "sides" }, this.sides.map(({ name, texts, hits }) => (
        make("section", { "aria-label": `Pair ${name}` }, make("h3", {}, name),
          labelled(`Take a result for the query as document ${name}`, hits), texts.element)))), this.panel.element);
  }

  /** A result becomes the document of a side. */
  take(mark, id) {
    if (!id) return;
    change({ [`doc${mark}`]: id, [`title${mark}`]: null, [`text${mark}`]: null, [`edited${mark}`]: null });
    this.show();
  }

  show(state = read()) {
    const system = systemOf(this.systems, state);
    this.system.value = system.number;
    for (const { texts, hits, mark } of this.sides) {
      texts.show(state);
      this.offer(hits, state[`q${mark}`]?.trim(), system);
    }
    if (!this.sides.every(({ mark }) => complete(state, mark))) {
      this.panel.clear(HINT);
      return;
    }
    const asked = this.sides.map(({ mark }) => ({ system: system.number, query: state[`q${mark}`], document: documentOf(state, mark) }));
    this.panel.fill("Aligning both …", asked, (signal) => Promise.all(asked.map((one) => ask("align", one, signal))), (pairs) => this.draw(pairs, system));
  }

  /** The system's results for a side's query, to choose its document from. */
  async offer(select, query, system) {
    const key = JSON.stringify([system.number, query]);
    if (select.dataset.asked === key) return;
    select.dataset.asked = key;
    const told = query ? await ask("search", { query }).catch(() => null) : null;
    if (select.dataset.asked !== key) return; // another query was typed meanwhile
    const hits = told?.systems[system.number].hits ?? [];
    const missed = (told?.gold ?? []).filter(({ id }) => !hits.some((hit) => hit.id === id)).map((one) => ({ ...one, gold: true }));
    setChoices(select, [["", query ? "choose …" : "type a query first"], ...[...hits, ...missed].map(({ id, rank, title, gold }) => (
      [id, `${rank ?? "–"}  ${title || id}${gold ? " (relevant)" : ""}`]))], "");
  }

  async draw(pairs, system) {
    const [a, b] = pairs.map((pair, place) => ({ name: this.sides[place].name, ...pair }));
    this.panel.body.replaceChildren(
      make("p", { class: "score" }, "Score of A ", make("b", {}, shown(a.score)), ", of B ", make("b", {}, shown(b.score)),
        ", difference ", make("b", {}, signed(a.score - b.score)), "."),
      differenceTable(a, b, system.shares_of === "n-gram" ? "document token" : system.shares_of),
      make("div", { class: "sides" }, this.sides.map(({ name, alignment }) => (
        make("section", { "aria-label": `Alignment ${name}` }, make("h3", {}, name), alignment.element)))));
    await Promise.all(pairs.map((pair, place) => this.sides[place].alignment.show(pair)));
  }

  title() {
    return "Compare two texts";
  }
}
