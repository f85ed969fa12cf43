/** Two pairs side by side in one system: two documents for a query, or two queries. */

import { AlignmentView } from "./alignment.js";
import { Panel, ask } from "./api.js";
import { differenceTable } from "./differences.js";
import { choice, labelled, make, setChoices } from "./elements.js";
import { term } from "./glossary.js";
import { shown, signed } from "./numbers.js";
import { partOf } from "./shares.js";
import { change, open, read, systemOf } from "./state.js";
import { Texts, complete, documentOf } from "./texts.js";

const SIDES = [["", "A"], ["2", "B"]];
const COLUMNS = ["A", "B"];
const HINT = "Fill in a query and a document on both sides: they are compared as you type.";

export class CompareView {
  constructor(about) {
    this.systems = about.systems;
    this.system = choice(about.systems.map((system) => [system.number, system.label]),
      () => open({ ...read(), system: this.system.value }));
    this.texts = SIDES.map(([mark, name]) => new Texts(() => this.update(), { mark, name: ` ${name}` }));
    this.hits = SIDES.map(([mark]) => choice([], (event) => this.take(mark, event.target.value)));
    this.views = SIDES.map(() => new AlignmentView({ layers: false })); // /api/compare knows the last layer only
    this.panel = new Panel({ "aria-label": "Comparison" });
    const sides = SIDES.map(([, name], place) => make("section", { "aria-label": `Pair ${name}` }, make("h3", {}, name),
      labelled(`Take a result for the query as document ${name}`, this.hits[place]), this.texts[place].element));
    this.element = make("div", { class: "compare-view" }, make("h2", {}, "Compare two texts"),
      make("p", { class: "quiet" }, "Two documents for one query, or two queries for one document: ",
        "what each part gives to the ", term("score", "score of the pair"), "."),
      labelled("System", this.system), make("div", { class: "sides" }, ...sides), this.panel.element);
  }

  show(state) {
    this.update(state);
  }

  /** A result becomes the document of a side. */
  take(mark, id) {
    if (!id) return;
    change({ [`doc${mark}`]: id, [`title${mark}`]: null, [`text${mark}`]: null, [`edited${mark}`]: null });
    this.update();
  }

  update(state = read()) {
    const system = systemOf(this.systems, state);
    this.system.value = system.number;
    this.texts.forEach((texts) => texts.show(state));
    const asked = {
      system: system.number,
      queries: SIDES.map(([mark]) => state[`q${mark}`] ?? ""),
      documents: SIDES.map(([mark]) => documentOf(state, mark)),
    };
    const key = JSON.stringify(asked);
    if (key === this.key) return;
    this.key = key;
    if (SIDES.every(([mark]) => complete(state, mark))) this.ask(asked, system);
    else {
      this.panel.stop();
      this.panel.body.replaceChildren(make("p", { class: "quiet" }, HINT));
    }
    SIDES.forEach(([mark], place) => this.offer(this.hits[place], state[`q${mark}`]?.trim(), state[`known${mark}`], system));
  }

  ask(asked, system) {
    const question = (signal) => ask("compare", asked, signal).catch((error) => {
      if (!signal.aborted) this.key = null;
      throw error;
    });
    this.panel.fill("Aligning both …", question, (pairs) => this.draw(pairs, system));
  }

  /** The system's results for a side's query, to choose its document from. */
  async offer(select, query, known, system) {
    const key = JSON.stringify([system.number, query, known]);
    if (select.dataset.asked === key) return;
    select.dataset.asked = key;
    const found = query ? await results(query, known).catch(() => null) : null;
    if (select.dataset.asked !== key) return; // another query was typed meanwhile
    const hits = found?.systems.find((list) => list.number === system.number)?.hits ?? [];
    const missed = (found?.gold ?? []).filter((one) => !hits.some((hit) => hit.id === one.id));
    const name = (one) => `${one.rank ?? "–"}  ${one.title || one.id}`;
    setChoices(select, [["", query ? "choose …" : "type a query first"],
      ...hits.map((hit) => [hit.id, name(hit) + (hit.gold ? " (gold)" : "")]),
      ...missed.map((one) => [one.id, `${name(one)} (gold)`])], "");
  }

  draw(pairs, system) {
    const [a, b] = pairs;
    const side = (pair, place) => {
      const view = this.views[place];
      view.show(pair, system, view.chosen);
      return make("section", { "aria-label": `Alignment ${COLUMNS[place]}` },
        make("h3", {}, `${COLUMNS[place]}: `, term("score"), ` ${shown(pair.score)}`), view.element);
    };
    this.panel.body.replaceChildren(
      make("p", { class: "score" }, "Score of A ", make("b", {}, shown(a.score)), ", of B ", make("b", {}, shown(b.score)),
        ", difference ", make("b", {}, signed(a.score - b.score)), "."),
      make("h3", {}, "Differences of the ", term("shares", "share")),
      differenceTable(a.shares, b.shares, COLUMNS, partOf(system)),
      relevanceDifferences("query", pairs), relevanceDifferences("document", pairs),
      make("div", { class: "sides" }, ...pairs.map(side)),
    );
  }

  title() {
    return "Compare two texts";
  }
}

function relevanceDifferences(side, pairs) {
  const shares = pairs.map((pair) => pair[`${side}_tokens`].map((text, place) => (
    { text, value: pair[`${side}_shares`][place] })));
  return make("details", {}, make("summary", {}, `Differences of the relevance, by ${side} token`),
    differenceTable(...shares, COLUMNS, "token"));
}

let last = { key: null, found: null };

/** What all systems find for a query; both sides mostly have the same one. */
function results(query, known) {
  const key = JSON.stringify([query, known]);
  if (last.key !== key) last = { key, found: ask("search", { query, known, k: 10 }) };
  return last.found;
}
