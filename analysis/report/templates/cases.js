"use strict";
(() => {
  const DIRECTIONS = {
    query_to_document: "query → document",
    document_to_query: "document → query",
    own: "as the system aligns (A)",
  };
  const SUMS = {
    query_to_document: "every query token spreads a weight of 1 over the document (columns)",
    document_to_query: "every document token spreads a weight of 1 over the query (rows)",
    own: "the system's own alignment A; its relevance sums similarities with these weights",
  };
  const GROUPS = {
    best: "Best", worst: "Worst", random: "Random", disagreement: "Generative and multi-vector disagree",
  };
  const BLUES = [[255, 255, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]];
  const SAME = "#d55e00"; // outlines equal tokens
  const CELL = 16; // pixels
  const WEAKEST = 0.25; // of a token's range of weights: weaker partners are not coloured
  const FLAT = 3; // levels: a smaller range of weights is rounding
  const NAMED = 5; // partners that the text names

  const ramp = Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (BLUES.length - 1);
    const low = Math.min(Math.floor(place), BLUES.length - 2);
    const mixed = BLUES[low].map((value, k) => Math.round(value + (place - low) * (BLUES[low + 1][k] - value)));
    return `rgb(${mixed.join(",")})`;
  });

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  const shown = (value, digits = 3) => (value === null ? "–" : value.toFixed(digits));
  const quoted = (token) => `“${token.text}”`;

  /** The bytes of all matrices of a direction: base64 of a zlib stream. */
  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  function readable(tokens) {
    return tokens.filter((token) => !token.special)
      .map((token) => (token.begins ? " " : "") + token.text).join("").trim();
  }

  /** One system's view of the current case: switches, texts, matrix. */
  class Pane {
    constructor(browser, system) {
      this.browser = browser;
      this.pinned = null;
      this.select = {};
      this.switches = make("div", { class: "case-switches" });
      for (const name of ["System", "Direction", "Layer", "Head"]) {
        const select = make("select", { "data-switch": name.toLowerCase() });
        this.select[name.toLowerCase()] = select;
        this.switches.append(make("label", {}, name, select));
      }
      browser.data.systems.forEach((entry, number) => this.add("system", number, entry.label));
      this.select.system.value = system;
      this.select.system.parentElement.hidden = browser.data.systems.length < 2;
      this.lists = {
        query: make("ul", { class: "case-tokens", role: "listbox", "aria-label": "Query tokens" }),
        document: make("ul", { class: "case-tokens", role: "listbox", "aria-label": "Document tokens" }),
      };
      this.status = make("p", { class: "case-status", role: "status" });
      this.heatmap = make("div", { class: "case-heatmap", tabindex: "0", role: "img" });
      this.legend = make("div", { class: "case-legend" });
      this.element = make("section", { class: "case-pane" }, this.switches,
        make("p", { class: "case-side" }, "Query"), this.lists.query,
        make("p", { class: "case-side" }, "Document"), this.lists.document,
        this.status, this.heatmap, this.legend);
      this.listen();
    }

    add(name, value, label) {
      this.select[name].append(make("option", { value }, label));
    }

    listen() {
      this.select.system.addEventListener("change", () => {
        this.select.direction.replaceChildren(); // every system begins with its own direction
        this.show();
      });
      for (const name of ["direction", "layer", "head"]) {
        this.select[name].addEventListener("change", () => this.draw());
      }
      for (const [side, list] of Object.entries(this.lists)) {
        const number = (event) => event.target.closest("li")?.dataset.number;
        const on = (kind, action) => list.addEventListener(kind, (event) => {
          if (number(event) !== undefined) action(Number(number(event)), event);
        });
        on("mouseover", (index) => this.browser.choose(this, side, index));
        on("focusin", (index) => this.browser.choose(this, side, index));
        on("click", (index) => this.pin(side, index));
        on("keydown", (index, event) => this.move(side, index, event));
        list.addEventListener("mouseleave", () => this.browser.choose(this, ...(this.pinned ?? [])));
        list.addEventListener("focusout", () => this.browser.choose(this, ...(this.pinned ?? [])));
      }
    }

    /** A second click or tap lets go of a token. */
    pin(side, index) {
      const again = this.pinned && this.pinned[0] === side && this.pinned[1] === index;
      this.pinned = again ? null : [side, index];
      this.browser.choose(this, ...(this.pinned ?? []));
    }

    move(side, index, event) {
      const items = this.lists[side].children;
      const target = { ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1,
        ArrowUp: index - 1, Home: 0, End: items.length - 1, Enter: index, " ": index }[event.key];
      if (event.key === "Escape") this.pin(...(this.pinned ?? [side, index]));
      if (target === undefined) return;
      event.preventDefault();
      if (target === index) this.pin(side, index);
      else if (items[target]) {
        items[index].tabIndex = -1;
        items[target].tabIndex = 0;
        items[target].focus();
      }
    }

    get view() {
      return this.browser.current.views[this.select.system.value];
    }

    tokens(side) {
      const all = this.browser.data.systems[this.select.system.value].tokens;
      return this.view ? this.view[side + "_tokens"].map((place) => all[place]) : [];
    }

    /** Fills texts and switches with the current case; the matrices are unpacked on the way. */
    async show() {
      const view = this.view;
      this.pinned = null;
      this.levels = this.bytes = null; // until they are unpacked
      for (const side of ["query", "document"]) {
        this.lists[side].replaceChildren(...this.tokens(side).map((token, number) => make("li", {
          role: "option", "aria-selected": "false", tabindex: number ? "-1" : "0", "data-number": number,
          class: (token.begins ? "begins" : "") + (token.special ? " special" : ""), title: token.string,
        }, token.text)));
      }
      this.element.classList.toggle("without", !view);
      if (!view) {
        this.heatmap.replaceChildren();
        this.legend.replaceChildren();
        this.status.textContent = "This system's run does not hold this pair.";
        return;
      }
      this.renewDirections(view);
      this.renew("layer", view.layers, (n) => [n, `${n + 1}`], view.layers - 1);
      const heads = view.heads > 1 ? view.heads + 1 : 1;
      this.renew("head", heads, (n) => [n, n ? `${n}` : "mean of heads"], 0);
      const names = Object.keys(view.weights);
      const bytes = await Promise.all(names.map((name) => unpacked(view.weights[name].data)));
      if (view !== this.view) return; // another case was chosen meanwhile
      this.bytes = Object.fromEntries(names.map((name, number) => [name, bytes[number]]));
      this.draw();
    }

    renewDirections(view) {
      const select = this.select.direction, before = select.value;
      select.replaceChildren();
      for (const name of Object.keys(view.weights)) this.add("direction", name, DIRECTIONS[name]);
      select.value = before in view.weights ? before : this.browser.data.systems[this.select.system.value].direction;
    }

    /** A switch's values for this view; it keeps its value where it still exists. */
    renew(name, count, option, initial) {
      const select = this.select[name], before = select.value;
      select.replaceChildren();
      for (let number = 0; number < count; number += 1) this.add(name, ...option(number));
      const kept = before !== "" && Number(before) < count && this.shape === `${this.view.layers} ${this.view.heads}`;
      select.value = kept ? before : initial;
      select.parentElement.hidden = count < 2;
      if (name === "head") this.shape = `${this.view.layers} ${this.view.heads}`;
    }

    /** Chooses the matrix that the switches name and draws it. */
    draw() {
      if (!this.bytes) return;
      const { layer, head, direction } = this.select;
      const [rows, columns] = [this.view.document_tokens.length, this.view.query_tokens.length];
      const heads = this.view.heads > 1 ? this.view.heads + 1 : 1;
      const number = Number(layer.value) * heads + Number(head.value);
      this.levels = this.bytes[direction.value].subarray(number * rows * columns, (number + 1) * rows * columns);
      this.minimum = this.view.weights[direction.value].minima[number];
      this.maximum = this.view.weights[direction.value].maxima[number];
      this.rows = rows;
      this.columns = columns;
      this.drawHeatmap();
      this.browser.choose(this, ...(this.pinned ?? []));
      this.element.dataset.drawn = `${this.select.system.value} ${direction.value} ${layer.value} ${head.value}`;
    }

    level(row, column) {
      return this.levels[row * this.columns + column];
    }

    weight(row, column) {
      return this.minimum + (this.level(row, column) / 255) * (this.maximum - this.minimum);
    }

    same(row, column) {
      return this.view.document_tokens[row] === this.view.query_tokens[column];
    }

    drawHeatmap() {
      const scale = window.devicePixelRatio || 1;
      const [width, height] = [this.columns * CELL, this.rows * CELL];
      const canvas = make("canvas", { width: width * scale, height: height * scale });
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      const context = canvas.getContext("2d");
      context.scale(scale, scale);
      context.strokeStyle = SAME;
      context.lineWidth = 2;
      for (let row = 0; row < this.rows; row += 1) {
        for (let column = 0; column < this.columns; column += 1) {
          context.fillStyle = ramp[this.level(row, column)];
          context.fillRect(column * CELL, row * CELL, CELL - 0.5, CELL - 0.5);
        }
      }
      for (let row = 0; row < this.rows; row += 1) {
        for (let column = 0; column < this.columns; column += 1) {
          if (this.same(row, column)) context.strokeRect(column * CELL + 1, row * CELL + 1, CELL - 2.5, CELL - 2.5);
        }
      }
      this.cells = make("div", { class: "case-cells" }, canvas);
      this.cells.addEventListener("mousemove", (event) => this.point(event));
      this.cells.addEventListener("mouseleave", () => this.browser.choose(this, ...(this.pinned ?? [])));
      const names = (side) => this.tokens(side).map((token) => make("span", { title: token.string }, token.text));
      const { scrollTop, scrollLeft } = this.heatmap;
      this.heatmap.replaceChildren(make("div", { class: "case-grid" },
        make("div", { class: "case-corner" }, "query →", make("br"), "document ↓"),
        make("div", { class: "case-columns" }, ...names("query")),
        make("div", { class: "case-rows" }, ...names("document")), this.cells));
      this.heatmap.scrollTo(scrollLeft, scrollTop);
      this.heatmap.setAttribute("aria-label", `Alignment matrix, ${this.rows} document tokens by `
        + `${this.columns} query tokens, ${DIRECTIONS[this.select.direction.value]}; `
        + "choose a token of the text to hear its partners");
      const box = make("span", { class: "case-ramp" });
      box.style.background = `linear-gradient(to right, ${BLUES.map((c) => `rgb(${c.join(",")})`).join(",")})`;
      this.legend.replaceChildren(shown(this.minimum), box, shown(this.maximum), make("span", { class: "case-key" }), "equal tokens",
        make("span", { class: "quiet" }, `Weights: ${SUMS[this.select.direction.value]}.`));
    }

    /** The pointer is on a cell of the matrix. */
    point(event) {
      const box = this.cells.getBoundingClientRect();
      const row = Math.min(this.rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / CELL)));
      const column = Math.min(this.columns - 1, Math.max(0, Math.floor((event.clientX - box.left) / CELL)));
      this.clear();
      this.lists.document.children[row].classList.add("chosen");
      this.lists.query.children[column].classList.add("chosen");
      this.band("document", row);
      this.band("query", column);
      const equal = this.same(row, column) ? ", the same token" : "";
      this.status.textContent = `Document ${quoted(this.tokens("document")[row])}, query `
        + `${quoted(this.tokens("query")[column])}: ${shown(this.weight(row, column))}${equal}`;
    }

    band(side, index) {
      const band = make("div", { class: "case-band" });
      const [along, across] = side === "document" ? ["top", "height"] : ["left", "width"];
      Object.assign(band.style, { top: 0, left: 0, width: "100%", height: "100%" });
      band.style[along] = `${index * CELL}px`;
      band.style[across] = `${CELL}px`;
      this.cells.append(band);
    }

    clear() {
      for (const item of this.element.querySelectorAll(".case-tokens li")) {
        item.classList.remove("partner", "strongest", "chosen", "same");
        item.removeAttribute("style");
        item.setAttribute("aria-selected", "false");
      }
      this.cells?.querySelectorAll(".case-band").forEach((band) => band.remove());
      this.status.textContent = "";
    }

    /** Shows what a token aligns to; without a token nothing is highlighted. */
    choose(side, index) {
      if (!this.view) return;
      this.clear();
      if (side === undefined) {
        this.status.textContent = "Point at a token, tap it or move to it with the keyboard to see its partners.";
        return;
      }
      const other = side === "query" ? "document" : "query";
      const place = (partner) => (side === "query" ? [partner, index] : [index, partner]);
      const partners = this.tokens(other).map((token, number) => ({
        number, token, level: this.level(...place(number)), weight: this.weight(...place(number)),
        same: this.same(...place(number)),
      }));
      const chosen = this.lists[side].children[index];
      chosen.classList.add("chosen");
      chosen.setAttribute("aria-selected", "true");
      this.mark(partners, this.lists[other].children);
      this.band(side, index);
      const strongest = partners.filter((p) => p.weight > 0).sort((a, b) => b.level - a.level).slice(0, NAMED);
      const named = strongest.map((p) => `${quoted(p.token)} ${shown(p.weight)}`);
      const equals = partners.filter((partner) => partner.same);
      const sum = equals.reduce((total, partner) => total + partner.weight, 0);
      this.status.textContent = `${quoted(this.tokens(side)[index])}: ${named.join(", ") || "no partner"}. `
        + (equals.length ? `On ${equals.length} equal (underlined): ${shown(sum)}.` : `No equal token in the ${other}.`);
    }

    /** Colours span the token's own weights, from its weakest partner to its strongest. */
    mark(partners, items) {
      const levels = partners.map((partner) => partner.level);
      const low = partners.length > 1 ? Math.min(...levels) : -FLAT, range = Math.max(...levels) - low;
      for (const partner of partners) {
        const item = items[partner.number], strength = (partner.level - low) / range;
        item.classList.toggle("same", partner.same);
        if (range < FLAT || strength < WEAKEST) continue;
        item.classList.add("partner");
        item.classList.toggle("strongest", strength === 1);
        item.style.setProperty("--colour", ramp[Math.round(255 * strength)]);
        item.style.setProperty("--ink", strength > 0.5 ? "#fff" : "#1a1a1a");
      }
    }
  }

  /** The cases of one page section: a list, what each system made of the case, and panes. */
  class Browser {
    constructor(root) {
      this.data = JSON.parse(root.querySelector("script").textContent);
      this.panes = [];
      this.groups = make("nav", { class: "case-groups", "aria-label": "Cases" });
      this.title = make("h3", { class: "case-title" });
      this.facts = make("div", { class: "wide" });
      this.area = make("div", { class: "case-panes" });
      this.beside = make("button", { type: "button", "data-beside": "" });
      this.beside.addEventListener("click", () => this.toggleBeside());
      root.append(this.groups, this.title, this.facts);
      if (this.data.systems.length > 1) root.append(this.beside);
      root.append(this.area);
      this.list();
      this.panes = this.initial(Number(root.dataset.panes)).map((system) => new Pane(this, system));
      this.open(this.data.cases[0]);
    }

    /** Two systems of different paradigms where there are any, the first ones otherwise. */
    initial(count) {
      const first = this.data.systems[0];
      const other = this.data.systems.findIndex((system) => system.paradigm !== first.paradigm);
      const second = other > 0 ? other : 1;
      return (this.data.systems.length > 1 && count > 1) ? [0, second] : [0];
    }

    list() {
      for (const [group, heading] of Object.entries(GROUPS)) {
        const cases = this.data.cases.filter((entry) => entry.group === group);
        if (!cases.length) continue;
        const items = cases.map((entry) => {
          entry.button = make("button", { type: "button" }, this.queryText(entry));
          entry.button.addEventListener("click", () => this.open(entry));
          return make("li", {}, entry.button);
        });
        this.groups.append(make("div", {}, make("h4", {}, heading), make("ol", {}, ...items)));
      }
    }

    queryText(entry) {
      const [system, view] = Object.entries(entry.views)[0];
      return readable(view.query_tokens.map((place) => this.data.systems[system].tokens[place])) || entry.query;
    }

    open(entry) {
      this.current = entry;
      for (const other of this.data.cases) other.button.setAttribute("aria-current", other === entry);
      this.title.textContent = `Query ${entry.query}, document ${entry.document}`;
      this.tabulate(entry);
      this.show();
    }

    show() {
      this.beside.textContent = this.panes.length > 1 ? "One system only" : "Put another system beside";
      this.area.replaceChildren(...this.panes.map((pane) => pane.element));
      return Promise.all(this.panes.map((pane) => pane.show()));
    }

    toggleBeside() {
      if (this.panes.length > 1) this.panes.pop();
      else {
        const shown = Number(this.panes[0].select.system.value);
        this.panes.push(new Pane(this, this.initial(2).find((system) => system !== shown)));
      }
      this.show();
    }

    /** What every system made of the case. */
    tabulate(entry) {
      const head = ["System", "Paradigm", "Rank of the document", "Reciprocal rank", "Score", "Relevance (Eq. 1)"];
      const rows = Object.entries(entry.views).map(([number, view]) => {
        const system = this.data.systems[number];
        const relevance = view.relevance[view.relevance.length - 1];
        const cells = [view.rank ?? "not found", view.rank ? shown(1 / view.rank) : "0",
          shown(view.score), shown(relevance)];
        return make("tr", {}, make("td", { class: "name" }, system.label), make("td", { class: "name" }, system.paradigm),
          ...cells.map((cell) => make("td", {}, `${cell}`)));
      });
      const heads = head.map((text, n) => make("th", n < 2 ? { class: "name" } : {}, text));
      this.facts.replaceChildren(make("table", { class: "case-facts" },
        make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)));
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
})();
