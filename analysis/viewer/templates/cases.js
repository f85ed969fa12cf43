  const GROUPS = {
    disagreement: "The systems disagree", best: "Best", worst: "Worst", random: "Random",
  };
  const LARGEST = 3; // shares of a document that are green
  const FEW = 3; // systems whose documents fit next to each other
  const reciprocal = (view) => (view.rank ? 1 / view.rank : 0);

  /** A query as its tokens tell it, where its text was not kept. */
  function readable(tokens) {
    return tokens.filter((token) => !token.special)
      .map((token) => (token.begins ? " " : "") + token.text).join("").trim();
  }

  /** The cases of one page section: a list, what each system made of the case, and panes. */
  class Browser {
    constructor(root) {
      this.data = JSON.parse(root.querySelector("script").textContent);
      this.fixed = "fixed" in root.dataset; // a run's own report: its pane comes first
      this.byHand = false; // whether a reader has chosen the systems
      this.groups = make("nav", { class: "case-groups", "aria-label": "Cases" });
      this.title = make("h3", { class: "case-title", dir: "auto" });
      this.subtitle = make("p", { class: "quiet" });
      this.facts = make("div", { class: "wide" });
      this.found = make("div", { class: "case-found" });
      this.area = make("div", { class: "case-panes" });
      this.second = make("button", { type: "button", "data-second": "" });
      this.second.addEventListener("click", () => this.toggleSecond());
      root.append(this.groups, this.title, this.subtitle, this.facts, this.found);
      if (this.data.systems.length > 1) root.append(this.second);
      root.append(this.area);
      this.list();
      this.current = this.data.cases[0];
      this.panes = this.disagreeing(Number(root.dataset.panes)).map((system) => new Pane(this, system));
      this.open(this.current);
    }

    /** The two systems that disagree most about the case, of different paradigms where several do so alike. */
    disagreeing(count) {
      const { views } = this.current;
      const known = Object.keys(views).map(Number);
      if (count < 2 || known.length < 2) return [this.fixed ? 0 : known[0]];
      const pairs = known.flatMap((a, place) => known.slice(place + 1).map((b) => [a, b]))
        .filter(([a]) => !this.fixed || a === 0);
      const weigh = ([a, b]) => Math.abs(reciprocal(views[a]) - reciprocal(views[b]))
        + (this.data.systems[a].paradigm !== this.data.systems[b].paradigm ? 1e-9 : 0);
      return pairs.length ? pairs.reduce((best, pair) => (weigh(pair) > weigh(best) ? pair : best)) : [0, known[0]];
    }

    list() {
      for (const [group, heading] of Object.entries(GROUPS)) {
        const cases = this.data.cases.filter((entry) => entry.group === group);
        if (!cases.length) continue;
        const items = cases.map((entry) => {
          entry.button = make("button", { type: "button", dir: "auto" }, this.queryText(entry));
          entry.button.addEventListener("click", () => this.open(entry));
          return make("li", {}, entry.button);
        });
        this.groups.append(make("div", {}, make("h4", {}, heading), make("ol", {}, ...items)));
      }
    }

    queryText(entry) {
      const [system, view] = Object.entries(entry.views)[0];
      return entry.text || readable(view.query_tokens.map((place) => this.data.systems[system].tokens[place])) || entry.query;
    }

    open(entry) {
      this.current = entry;
      for (const other of this.data.cases) other.button.setAttribute("aria-current", other === entry);
      this.title.textContent = this.queryText(entry);
      this.subtitle.replaceChildren(`Query ${entry.query}, relevant document ${entry.document}`,
        ...(entry.title ? [": ", make("bdi", {}, entry.title)] : []));
      this.tabulate(entry);
      if (!this.byHand) {
        const systems = this.disagreeing(this.panes.length);
        this.panes.forEach((pane, place) => pane.chooseSystem(systems[place]));
      }
      this.found.replaceChildren(...Object.keys(entry.best).map((number) => this.showFound(entry, number)));
      this.show();
    }

    show() {
      this.second.textContent = this.panes.length > 1 ? "One system only" : "Show a second system";
      this.area.replaceChildren(...this.panes.map((pane) => pane.element));
      return Promise.all(this.panes.map((pane) => pane.show()));
    }

    toggleSecond() {
      if (this.panes.length > 1) this.panes.pop();
      else {
        const shown = Number(this.panes[0].select.system.value);
        const others = [...this.disagreeing(2), ...this.data.systems.keys()];
        this.panes.push(new Pane(this, others.find((system) => system !== shown)));
      }
      this.show();
    }

    /** What every system made of the case. */
    tabulate(entry) {
      const head = ["System", word("paradigm", "Paradigm"), word("rank", "Rank of the document"), word("reciprocal rank", "Reciprocal rank"),
        word("score in the search", "Score in the search"), word("score of the pair", "Score of the pair"),
        word("relevance", "Relevance (Eq. 1)")];
      const rows = Object.entries(entry.views).map(([number, view]) => {
        const system = this.data.systems[number];
        const named = (value, place) => [shown(value), ...(system.kinds.length ? [" ", word(system.kinds[place])] : [])];
        const cells = [[`${view.rank ?? "not found"}`], [view.rank ? shown(1 / view.rank) : "0"], named(view.score, 0),
          named(view.pair_score, 1), [shown(view.relevance[view.relevance.length - 1])]];
        return make("tr", {}, make("td", { class: "name" }, system.label),
          make("td", { class: "name" }, word(system.paradigm.replace(" ", "-"), system.paradigm)),
          ...cells.map((cell) => make("td", {}, ...cell)));
      });
      const heads = head.map((text, n) => make("th", n < 2 ? { class: "name" } : {}, text));
      this.facts.replaceChildren(make("table", { class: "case-facts" },
        make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)));
    }

    /** A system's best documents for the query; of many systems those of the panes are open. */
    showFound(entry, number) {
      const { label, parts, kinds } = this.data.systems[number];
      const rows = entry.best[number].map((found) => this.showDocument(found, found.id === entry.document, kinds[0] ?? "score"));
      const empty = rows.length ? [] : [make("p", { class: "quiet" }, "It found no document.")];
      const few = this.data.systems.length <= FEW;
      const open = few || this.panes.some((pane) => pane.select.system.value === number) ? { open: "" } : {};
      return make("details", open, make("summary", {}, `What ${label} found first`),
        make("p", { class: "quiet case-note" }, "In boxes the ", word("share", "shares"), " in the score: ", word(parts[1], parts[0])), make("ol", {}, ...rows), ...empty);
    }

    showDocument(found, isCase, score) {
      const gold = found.gold ? [" ", make("span", { class: "case-gold" }, word("gold", isCase ? "relevant: this case" : "relevant"))] : [];
      const gifts = found.shares.map(([text, value]) => make("li", {}, make("bdi", {}, text || "␣"), ` ${shown(value)}`));
      const [count, rest] = found.others;
      if (count) gifts.push(make("li", { class: "quiet" }, `${count} more: ${shown(rest)}`));
      const sizes = found.shares.map((share) => Math.abs(share[1]));
      const largest = [...sizes].sort((a, b) => b - a).slice(0, LARGEST);
      gifts.slice(0, sizes.length).forEach((gift, place) => gift.classList.toggle("large", largest.includes(sizes[place])));
      return make("li", { value: `${found.rank}`, class: found.gold ? "relevant" : "" },
        make("div", { class: "case-hit" }, make("b", { dir: "auto" }, found.title || found.id), ...gold,
          make("span", { class: "quiet" }, ` ${found.id}, ${score} ${shown(found.score)}`)),
        make("p", { class: "case-snippet", dir: "auto" }, found.snippet),
        ...(gifts.length ? [make("ul", { class: "case-shares", "aria-label": "What gave the score" }, ...gifts)] : []));
    }

    /** A token chosen in one pane is chosen in every pane that reads the same text. */
    choose(source, side, index) {
      for (const pane of this.panes) {
        const same = pane === source || JSON.stringify(pane.tokens(side ?? "query")) === JSON.stringify(source.tokens(side ?? "query"));
        if (!pane.levels) continue;
        if (same) pane.choose(side, index);
        else pane.choose();
      }
    }
  }

  for (const root of document.querySelectorAll(".case-browser")) new Browser(root);
