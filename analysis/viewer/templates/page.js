/* Every page: its explanations, its folds, and its cases: a query, a document that is relevant to it, how systems align
   them, and what each retrieved first. */
const GROUPS = {
  disagreement: "The systems disagree", worst: "The document is ranked worst", best: "Ranked best", random: "Drawn at random",
};

/** One system's view of the current case. */
class Pane {
  constructor(cases, system) {
    this.cases = cases;
    this.system = make("select", { "aria-label": "System", onchange: () => {
      cases.byHand = true;
      this.show();
    } });
    setChoices(this.system, cases.data.systems.map((label, number) => [number, label]), system);
    this.system.hidden = cases.data.systems.length < 2;
    this.facts = make("p", { class: "small" });
    this.alignment = new Alignment({ chosen: (side, index) => cases.choose(this, side, index) });
    this.element = make("section", { class: "case-pane" }, this.system, this.facts, this.alignment.element);
  }

  show() {
    const view = this.cases.current.views[this.system.value];
    this.alignment.element.hidden = !view;
    this.facts.replaceChildren(...(view ? this.describe(view) : ["This system's run does not hold this pair."]));
    if (view) this.alignment.show(view);
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
    const option = (one) => make("option", { value: cases.indexOf(one), dir: "auto" }, one.text);
    const groups = Object.entries(Object.groupBy(cases, ({ group }) => group));
    this.list = make("select", { class: "case-list", onchange: () => this.open(cases[this.list.value]) },
      groups.map(([group, own]) => make("optgroup", { label: GROUPS[group] }, own.map(option))));
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
        make("h4", {}, this.data.systems[number]), hits.length ? hitCards(hits, (hit) => words("b", hit.title || hit.id))
          : make("p", { class: "quiet" }, "No document was retrieved.")))));
  }

  /** A token chosen in one pane is chosen in every pane that reads the same text. */
  choose(source, side, index) {
    const text = (pane) => JSON.stringify(pane.alignment.pair?.[side].tokens);
    for (const pane of this.panes) if (pane !== source) pane.alignment.choose(side, text(pane) === text(source) ? index : null);
  }
}

explain(Object.fromEntries([...document.querySelectorAll(".words dt")].map((word) => [word.textContent, word.nextElementSibling.textContent])));
for (const root of document.querySelectorAll(".case-browser")) new Cases(root);
const unfold = document.querySelector("[data-unfold]");
unfold.hidden = false;
unfold.addEventListener("click", () => {
  const open = unfold.textContent === "Unfold all";
  for (const fold of document.querySelectorAll(".fold")) fold.open = open;
  unfold.textContent = open ? "Fold all" : "Unfold all";
});
