/** One query and one document in one system: how they are aligned, the shares of the score, why this rank. Two pairs compared. */

import { Panel, ask, change, delayed, documentLink, open, read, systemOf } from "./state.js";
import {
  Alignment, bars, button, differenceTable, labelled, make, percent, setChoices, shown, signed, spoken, table, term, words, written,
} from "./viewer.js";

const TABS = { alignment: "Alignment and shares", why: "Why this rank", continuations: "Continuations" };
const PAUSE = 400; // milliseconds without a key before an edit is sent
const NEAREST = 10, NEXT = 12, KEPT = 4, EXAMPLES = 3; // tokens, continuations, hypotheses of a step, documents of a line

// The texts of a pair ----------------------------------------------------------------------------

/** The texts of a pair, edited in place; those of a document come from the collection. */
class Texts {
  /** `mark` ends the keys of the state that hold these texts ("" or "2"); `edited()` is called after an edit. */
  constructor(edited, mark = "", name = "") {
    Object.assign(this, { edited, mark });
    const area = (rows) => make("textarea", { rows, dir: "auto", spellcheck: "false" });
    [this.query, this.text] = [area(2), area(4)];
    this.title = make("input", { type: "text", dir: "auto", spellcheck: "false", autocomplete: "off" });
    this.note = make("p", { class: "note small", role: "status" });
    const send = delayed(PAUSE, () => this.send());
    const typed = (event) => {
      this.touched ||= event.target !== this.query;
      send();
    };
    this.element = make("div", { class: "texts", oninput: typed }, make("div", {}, labelled(`Query${name}`, this.query), this.note),
      make("div", {}, labelled(`Title${name}`, this.title), labelled(`Document${name}`, this.text)));
  }

  send() {
    const own = this.touched ? { title: this.title.value, text: this.text.value, edited: 1 } : {};
    this.change({ q: this.query.value, ...own });
  }

  change(texts) {
    change(Object.fromEntries(Object.entries(texts).map(([key, value]) => [key + this.mark, value])));
    this.edited();
  }

  /** Fills the fields from the state; a document's own text is fetched. */
  async show(state) {
    const { q = "", doc, title = "", text = "", edited } = textsOf(state, this.mark);
    this.touched = Boolean(edited);
    set(this.query, q);
    const undo = button("Back to the document's own text", () => this.change({ title: null, text: null, edited: null }), { class: "link" });
    this.note.replaceChildren(...(doc && edited ? [`This is ${doc} as you edited it. `, undo] : ["Edit the texts: they are scored as you type."]));
    const before = this.loaded;
    this.loaded = edited ? undefined : doc;
    if (!this.loaded) this.fill({ title, text });
    else if (this.loaded !== before) {
      const told = await ask("document", { id: doc }).catch((error) => ({ title: "", text: error.message }));
      if (this.loaded === doc) this.fill(told);
    }
  }

  fill({ title, text }) {
    set(this.title, title);
    set(this.text, text);
  }
}

function set(field, value) {
  if (field.value !== value) field.value = value; // else the cursor would jump while a person types
}

/** The part of a state that is about one pair. */
function textsOf(state, mark = "") {
  return Object.fromEntries(["q", "doc", "title", "text", "edited"].map((key) => [key, state[key + mark]]));
}

/** What the server is asked about a state's pair; null without a query or a document. */
function questionOf(state, system, mark = "") {
  const { q, doc, title = "", text = "", edited } = textsOf(state, mark);
  if (!q?.trim() || !((doc && !edited) || text.trim())) return null;
  return { system: system.number, query: q, document: doc && !edited ? { id: doc } : { title, text } };
}

// One pair ---------------------------------------------------------------------------------------

export class PairView {
  constructor({ systems }) {
    this.systems = systems;
    this.back = button("", () => open({ view: "search", q: read().q, k: read().k }), { class: "link back" });
    this.heading = make("h2");
    const tabs = (label, entries) => make("div", { class: "tabs", role: "group", "aria-label": label }, entries);
    this.choices = tabs("System", systems.map(({ label, number }) => (
      button(label, () => open({ ...read(), system: number, layer: null, head: null, prefix: null }), { "data-value": number }))));
    this.tabs = tabs("What to see", Object.entries(TABS).map(([name, label]) => (
      button(label, () => open({ ...read(), tab: name }), { "data-value": name }))));
    this.texts = new Texts(() => this.update(read()));
    this.score = make("p", { class: "score", role: "status" });
    this.alignment = new Alignment({ changed: change, picked: (index) => this.pick(index) });
    this.nearest = new Panel({ class: "nearest", "aria-label": "Nearest tokens of the collection" });
    this.shares = make("div", { class: "shares" });
    this.reason = new Panel({ class: "reason", "aria-label": "In short" });
    this.aligned = new Panel({ "aria-label": "Alignment" });
    this.continued = new Panel({ "aria-label": "Continuations" });
    this.drawn = make("div", { class: "pair-columns" }, make("div", {}, this.alignment.element, this.nearest.element), this.shares);
    this.parts = { alignment: this.aligned.element, why: make("section", { class: "why-view", "aria-label": "Why this rank" }),
      continuations: this.continued.element };
    this.element = make("div", { class: "pair-view" },
      make("div", { class: "crumbs" }, this.back, button("Compare with another text", () => compareWith(this.best))),
      this.heading, this.choices, this.reason.element, this.texts.element, this.score, this.tabs, Object.values(this.parts));
  }

  show(state) {
    if (this.pairOf(state) !== this.pair) this.original = null; // the score before edits
    this.update(state);
  }

  pairOf(state) {
    return JSON.stringify([state.system, textsOf(state)]);
  }

  update(state) {
    const system = systemOf(this.systems, state), { q, doc } = state;
    this.pair = this.pairOf(state);
    this.texts.show(state);
    this.back.hidden = !q;
    this.back.replaceChildren("← Results for “", words("bdi", q ?? ""), "”");
    this.heading.replaceChildren(words("bdi", system.label), ...(doc ? [" and document ", words("bdi", doc)] : [" aligns two texts"]));
    const names = Object.keys(TABS).filter((name) => name !== "continuations" || system.generates);
    const tab = names.includes(state.tab) ? state.tab : "alignment";
    for (const item of [...this.choices.children, ...this.tabs.children]) {
      item.setAttribute("aria-pressed", `${[tab, `${system.number}`].includes(item.dataset.value)}`);
    }
    for (const item of this.tabs.children) item.hidden = !names.includes(item.dataset.value);
    for (const [name, part] of Object.entries(this.parts)) part.hidden = name !== tab;
    if (tab === "continuations" && q) this.walk(system, q, state.prefix ? state.prefix.split(",").map(Number) : []);
    this.align(state, system);
    this.explain(state, system);
  }

  align(state, system) {
    const asked = questionOf(state, system);
    if (!asked) {
      this.score.replaceChildren();
      this.aligned.clear("Type a query and a document: their tokens are aligned as you type.");
      return;
    }
    this.aligned.fill("Aligning …", "align", asked, (pair) => {
      this.original ??= pair.score;
      const relevance = pair.relevance.at(-1);
      this.score.replaceChildren(term("Score of the pair"), " ", make("b", {}, shown(pair.score)),
        pair.score === this.original ? "" : ` (${signed(pair.score - this.original)} by your edits)`, `: ${pair.score_name}. `,
        ...(relevance === pair.score ? [] : [term("Relevance"), " Σ S·A / Z ", make("b", {}, shown(relevance)), ". "]),
        make("span", { class: "quiet" }, pair.note));
      this.shares.replaceChildren(make("h3", {}, "Share of each ", term(partOf(system)), " in the ", term("score", "score of the pair"), " ", shown(pair.score)),
        pair.shares.length ? bars(pair.shares, pair.score) : make("p", { class: "quiet" }, "Nothing here has a share."));
      this.nearest.clear();
      this.alignment.hint = system.paradigm === "multi-vector" ? " A click on one of the query's shows its nearest tokens in the whole collection." : "";
      this.aligned.body.replaceChildren(this.drawn);
      this.alignment.show(pair, read());
    });
  }

  /** The nearest tokens of the whole collection to a token of the query. */
  pick(index) {
    const system = systemOf(this.systems, read()), query = read().q;
    if (system.paradigm !== "multi-vector") return;
    const asked = { system: system.number, query, token: index, k: NEAREST };
    this.nearest.fill("Searching the token index …", "nearest", asked, (tokens) => this.nearest.body.replaceChildren(
      make("h3", {}, "Nearest to ", words("bdi", spoken(this.alignment.tokens("query")[index])), " in the whole collection"),
      table([[term("similarity"), null], ["in context", "name"], ["document", "name"]],
        tokens.map((one) => ({ values: [shown(one.similarity),
          make("span", { dir: "auto" }, `${one.before} `, make("mark", {}, written(one.token)), ` ${one.after}`),
          documentLink(system, query, one)] })))));
  }

  /** The next tokens after an identifier's prefix; each leads on, each token of the path leads back. */
  walk(system, query, prefix) {
    const asked = { system: system.number, query, prefix, k: NEXT };
    this.continued.fill("Asking for the continuations …", "continuations", asked, ({ path, next }) => {
      const to = (tokens) => open({ ...read(), prefix: tokens.join(",") });
      const crumb = (label, length) => make("li", {}, make("button", { type: "button", class: "link",
        onclick: () => to(prefix.slice(0, length)), "aria-current": length === prefix.length ? "step" : null }, label));
      const columns = [["token", "name"], [term("probability"), null], ["documents", null], ["such as", "name links"]];
      const rows = next.map(({ token, text, probability, allowed, documents, examples }) => {
        const name = words("bdi", written(text));
        return { kind: allowed ? null : "forbidden",
          values: [allowed ? button(name, () => to([...prefix, token]), { class: "link" }) : name,
            percent(probability), allowed ? `${documents}` : "none", documentLinks(system, query, examples, 0)] };
      });
      this.continued.body.replaceChildren(
        make("p", { class: "quiet" }, "After each token the model gives the next one a ", term("probability"), ". Choose a ",
          term("continuation"), " to walk on, or a token of the path to go back."),
        make("ol", { class: "path", "aria-label": "Tokens so far" }, crumb("start", 0),
          path.map((text, place) => crumb(words("bdi", written(text)), place + 1))),
        next.length ? table(columns, rows, { class: "continuation-table" }) : make("p", { class: "quiet" },
          "No token can follow: the identifier is complete, or no text of the collection continues this way."));
    });
  }

  /** Why a system ranks the document where it does: against its first document, and where a beam lost it. */
  explain({ q, doc, edited }, system) {
    if (!doc || edited || !q?.trim()) {
      this.reason.clear();
      this.parts.why.replaceChildren(make("p", { class: "quiet" },
        "A rank is explained for a document of the collection: choose one of the results."));
      return;
    }
    const busy = `Searching again, to ${system.generates ? "watch the beam" : "explain the rank"} …`;
    this.reason.fill(busy, "explain", { system: system.number, query: q, document: doc }, (told) => {
      const { best, hit, steps, generated } = told, other = best && best.id !== doc ? best : null;
      this.best = other?.id;
      this.reason.body.replaceChildren(words("p", told.reason));
      this.parts.why.replaceChildren(...[
        other ? make("p", {}, "First is ", documentLink(system, q, other), ". ", button("Compare the two", () => compareWith(other.id))) : null,
        hit && other ? make("section", { "aria-label": "Against the first document" }, make("h3", {}, "How it differs from the first document"),
          differenceTable({ name: "this", ...hit }, { name: "first", ...other }, system.shares_of)) : null,
        steps?.length ? beamSteps(told) : null,
        system.paradigm === "generative" && hit ? make("section", {}, make("h3", {}, "Shares of the ", term("score in the search")), bars(hit.shares, hit.score)) : null,
        generated ? generatedList(system, q, generated) : null,
      ].filter(Boolean));
    });
  }
}

/** What a pair's score consists of: n-grams are what a search generates, a given pair has all tokens of its document. */
function partOf(system) {
  return system.shares_of === "n-gram" ? "document token" : system.shares_of;
}

function beamSteps({ steps, lost, replaced_by: replaced }) {
  const columns = [["step", null], ["best beginning of this document", "name"], [term("probability"), null], [term("rank"), null],
    ["in the beam", "name"], ["the beam kept", "name"]];
  const rows = steps.map(({ best, rank, alive, kept }, place) => ({
    kind: place + 1 === lost ? "lost" : null,
    values: [`${place + 1}`, best ? words("bdi", written(best.text)) : "–", percent(best?.probability), rank ?? "–",
      alive ? "yes" : place + 1 === lost ? "lost here" : "no",
      make("ul", { class: "kept" }, kept.slice(0, KEPT).map((one) => make("li", {},
        words(one.text === best?.text ? "b" : "bdi", written(one.text)), make("span", { class: "quiet" }, ` ${percent(one.probability)}`))))],
  }));
  const best = lost && steps[lost - 1].best;
  const summary = lost ? make("p", { class: "lost-line" }, `The beam lost this document at step ${lost}`,
    best ? [": ", words("bdi", spoken(best.text)), ` had a probability of ${percent(best.probability)}`] : null,
    replaced ? ["; the last place in the beam went to ", words("bdi", spoken(replaced.text)), ` with ${percent(replaced.probability)}`] : null, ".")
    : make("p", {}, "This document stayed in the beam to the end.");
  return make("section", { "aria-label": "Steps of the beam" }, make("h3", {}, "Step by step through the ", term("beam")),
    summary, table(columns, rows, { class: "steps" }));
}

/** The n-grams or docids that were generated for a query, and the documents that each names. */
function generatedList(system, query, generated) {
  const columns = [["generated", "name"], [term("log p", "log-probability"), null], ["documents", "name links"]];
  const rows = generated.map((one) => ({ values: [words("bdi", written(one.text)), shown(one.log_probability, 2),
    documentLinks(system, query, one.documents, one.count)] }));
  return make("section", { "aria-label": "What was generated" }, make("h3", {}, "What was generated"),
    rows.length ? make("div", { class: "scroll" }, table(columns, rows, { class: "generated" })) : make("p", { class: "quiet" }, "Nothing was generated."));
}

/** Links to the first of some documents, and how many more there are. */
function documentLinks(system, query, documents, count) {
  const links = documents.slice(0, EXAMPLES).map((document) => documentLink(system, query, document));
  return count > links.length ? [...links, make("span", { class: "quiet" }, `and ${count - links.length} more`)] : links;
}

// Two pairs --------------------------------------------------------------------------------------

/** The same query with another document of the collection: the given one, or a copy of this one to edit. */
function compareWith(id) {
  const { q, doc, title, text, edited, system } = read();
  const other = id && id !== doc ? { doc2: id } : { doc2: doc, title2: title, text2: text, edited2: edited };
  open({ view: "compare", system, q, doc, title, text, edited, q2: q, ...other });
}

/** Two pairs side by side in one system: two documents for a query, or two queries. */
export class CompareView {
  constructor({ systems }) {
    this.systems = systems;
    this.system = make("select", { onchange: () => open({ ...read(), system: this.system.value }) });
    setChoices(this.system, systems.map((system) => [system.number, system.label]));
    this.panel = new Panel({ "aria-label": "Comparison" });
    this.sides = Object.entries({ A: "", B: "2" }).map(([name, mark]) => {
      const texts = new Texts(() => this.show(read()), mark, ` ${name}`);
      const take = (event) => texts.change({ doc: event.target.value, title: null, text: null, edited: null });
      return { name, mark, texts, hits: make("select", { onchange: take }), alignment: new Alignment() };
    });
    this.element = make("div", { class: "compare-view" }, make("h2", {}, "Compare two texts"),
      make("p", { class: "quiet" }, "Two documents for one query, or two queries for one document: the ", term("shares", "share"),
        " of both ", term("scores", "score of the pair"), "."),
      labelled("System", this.system), make("div", { class: "sides" }, this.sides.map(({ name, texts, hits }) => (
        make("section", { "aria-label": `Pair ${name}` }, make("h3", {}, name),
          labelled(`Take a result for the query as document ${name}`, hits), texts.element)))), this.panel.element);
  }

  show(state) {
    const system = systemOf(this.systems, state);
    this.system.value = system.number;
    for (const { texts, hits, mark } of this.sides) {
      texts.show(state);
      this.offer(hits, state[`q${mark}`]?.trim(), system);
    }
    const asked = this.sides.map(({ mark }) => questionOf(state, system, mark));
    if (asked.every(Boolean)) this.panel.fill("Aligning both …", "align", asked, (...pairs) => this.draw(pairs, system));
    else this.panel.clear("Fill in a query and a document on both sides: they are compared as you type.");
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

  draw(pairs, system) {
    const [a, b] = pairs.map((pair, place) => ({ name: this.sides[place].name, ...pair }));
    this.panel.body.replaceChildren(
      make("p", { class: "score" }, "Score of A ", make("b", {}, shown(a.score)), ", of B ", make("b", {}, shown(b.score)),
        ", difference ", make("b", {}, signed(a.score - b.score)), "."),
      differenceTable(a, b, partOf(system)),
      make("div", { class: "sides" }, this.sides.map(({ name, alignment }) => (
        make("section", { "aria-label": `Alignment ${name}` }, make("h3", {}, name), alignment.element)))));
    pairs.forEach((pair, place) => this.sides[place].alignment.show(pair));
  }
}
