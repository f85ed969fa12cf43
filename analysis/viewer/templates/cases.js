/* Cases of a page: a query, a document that is relevant to it, how systems align them, and what each retrieved first. */
const GROUPS = {
  disagreement: "The systems disagree", worst: "The document is ranked worst", best: "Ranked best", random: "Drawn at random",
};

/** One system's view of the current case. */
class Pane {
  constructor(cases, system) {
    this.cases = cases;
    this.system = make("select", { "aria-label": "System", onchange: () => {
      this.cases.byHand = true;
      this.show();
    } });
    setChoices(this.system, cases.data.systems.map((label, number) => [number, label]), system);
    this.system.hidden = cases.data.systems.length < 2;
    this.facts = make("p", { class: "small" });
    this.alignment = new Alignment({ chosen: (side, index) => cases.choose(this, side, index) });
    this.element = make("section", { class: "case-pane" }, this.system, this.facts, this.alignment.element);
  }

  async show() {
    const view = this.cases.current.views[this.system.value];
    this.alignment.element.hidden = !view;
    this.facts.replaceChildren(...(view ? this.describe(view) : ["This system's run does not hold this pair."]));
    if (view) await this.alignment.show(view);
  }

  describe({ rank, search_score: score, score: own, relevance, note }) {
    return [term("Rank"), " of the document ", make("b", {}, rank ? `${rank}` : "none: it was not retrieved"),
      ...(isNumber(score) ? ["; ", term("score in the search"), ` ${shown(score)}`] : []),
      "; ", term("score of the pair"), ` ${shown(own)}`, "; ", term("relevance"), ` ${shown(relevance.at(-1))}`,
      note ? make("span", { class: "quiet", title: note }, " (not what the system ranks by)") : "", "."];
  }
}

class Cases {
  constructor(root) {
    this.data = JSON.parse(root.querySelector("script").textContent);
    this.byHand = false; // whether a reader has chosen the systems
    const { cases } = this.data;
    this.list = make("select", { class: "case-list", onchange: () => this.open(cases[this.list.value]) },
      Object.entries(GROUPS).map(([group, label]) => make("optgroup", { label }, cases.map((one, place) => [one, place])
        .filter(([one]) => one.group === group).map(([one, place]) => make("option", { value: place, dir: "auto" }, one.text)))));
    for (const group of [...this.list.children]) if (!group.children.length) group.remove();
    this.subtitle = make("p", { class: "small quiet" });
    this.panes = cases[0].shown.map((system) => new Pane(this, system));
    this.retrieved = make("details", { class: "case-retrieved", open: true });
    root.append(labelled("Case", this.list), this.subtitle,
      make("div", { class: "case-panes" }, this.panes.map((pane) => pane.element)), this.retrieved);
    this.open(cases[0]);
  }

  open(one) {
    this.current = one;
    this.subtitle.replaceChildren(`Query ${one.query}, relevant document ${one.document}`,
      ...(one.title ? [": ", words("bdi", one.title)] : []));
    this.panes.forEach((pane, place) => {
      if (!this.byHand) pane.system.value = one.shown[place] ?? one.shown[0];
      pane.show();
    });
    const lists = Object.entries(one.best);
    this.retrieved.hidden = !lists.length;
    this.retrieved.replaceChildren(make("summary", {}, "What was retrieved first, and the largest ", term("shares", "share"), " of each score"),
      make("div", { class: "columns" }, lists.map(([number, hits]) => make("section", { class: "column" },
        make("h4", {}, this.data.systems[number]), hits.length ? this.cards(hits) : make("p", { class: "quiet" }, "No document was retrieved.")))));
  }

  cards(hits) {
    return hitCards(hits, (hit) => words("b", hit.title || hit.id), () => term("score", "score in the search"));
  }

  /** A token chosen in one pane is chosen in every pane that reads the same text. */
  choose(source, side, index) {
    const text = (pane) => JSON.stringify(pane.alignment.pair?.[side].tokens);
    for (const pane of this.panes) if (pane !== source) pane.alignment.choose(side, text(pane) === text(source) ? index : null);
  }
}

for (const root of document.querySelectorAll(".case-browser")) new Cases(root);
