"use strict";
  const DIRECTIONS = {
    own: "as the system aligns (A)",
    query_to_document: "query → document",
    document_to_query: "document → query",
    product: "S·A: what pairs of tokens add",
  };
  const SUMS = {
    query_to_document: "every query token spreads a weight of 1 over the document (columns)",
    document_to_query: "every document token spreads a weight of 1 over the query (rows)",
    own: "the system's own alignment A; its relevance sums similarities with these weights",
    product: "similarity times alignment, divided by Z; all of them sum to the relevance",
  };
  const BLUES = [[255, 255, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]];
  const REDS = [[255, 255, 255], [253, 208, 162], [253, 141, 60], [217, 72, 1], [127, 39, 4]];
  const SAME = "#d55e00"; // outlines equal tokens
  const CELL = 16; // pixels
  const WEAKEST = 0.25; // of a token's range of weights: weaker partners are not coloured
  const FLAT = 3; // levels: a smaller range of weights is rounding
  const NAMED = 5; // partners that the text names
  const ZERO = 127; // the level of zero where weights have both signs

  const ramp = (colours) => Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (colours.length - 1);
    const low = Math.min(Math.floor(place), colours.length - 2);
    const mixed = colours[low].map((value, k) => Math.round(value + (place - low) * (colours[low + 1][k] - value)));
    return `rgb(${mixed.join(",")})`;
  });
  const POSITIVE = ramp(BLUES), NEGATIVE = ramp(REDS);
  /** The colour of a strength from −1 to 1. */
  const colour = (strength) => (strength < 0 ? NEGATIVE : POSITIVE)[Math.round(255 * Math.min(1, Math.abs(strength)))];

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  /** A word that the page's glossary explains. */
  const word = (term, text = term) => make("span", { class: "term", tabindex: "0", "data-term": term }, text);
  const shown = (value, digits = 3) => (value === null ? "–" : value.toFixed(digits));
  const quoted = (token) => `“${token.string}”`; // with the mark that tells "▁debug" from "debug"

  /** The bytes of all matrices of a direction: base64 of a zlib stream. */
  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  /** One system's view of the current case: switches, texts, matrix. */
  class Pane {
    constructor(browser, system) {
      this.browser = browser;
      this.pinned = null;
      this.select = {};
      this.switches = make("div", { class: "case-switches" });
      for (const [name, label] of [["system", "System"], ["direction", "Shown"], ["layer", "Layer"], ["head", "Head"]]) {
        const select = make("select", { "data-switch": name });
        this.select[name] = select;
        this.switches.append(make("label", {}, label, select));
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
        this.browser.byHand = true;
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

    /** A second click or tap releases a token. */
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

    /** Another system, which begins with its own alignment. */
    chooseSystem(number) {
      if (this.select.system.value === `${number}`) return;
      this.select.system.value = number;
      this.select.direction.replaceChildren();
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
          class: (token.begins ? "begins" : "") + (token.special ? " special" : ""),
        }, make("bdi", {}, token.string))));
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
      const { direction } = this.browser.data.systems[this.select.system.value];
      for (const name of Object.keys(view.weights)) {
        const itself = name === direction && name !== "own" ? ", as the system aligns (A)" : "";
        this.add("direction", name, DIRECTIONS[name] + itself);
      }
      select.value = before in view.weights ? before : direction;
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
      this.signed = direction.value === "product"; // of it the sum of the heads alone is kept
      head.parentElement.hidden = this.signed || heads < 2;
      const number = this.signed ? Number(layer.value) : Number(layer.value) * heads + Number(head.value);
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

    /** A cell's place between its matrix's extremes: 0 to 1, or −1 to 1 where weights have both signs. */
    strength(level) {
      if (!this.signed) return level / 255;
      return this.maximum > this.minimum ? (level - ZERO) / (255 - ZERO) : 0;
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
          context.fillStyle = colour(this.strength(this.level(row, column)));
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
      const names = (side) => this.tokens(side).map((token) => make("span", { title: token.string }, make("bdi", {}, token.string)));
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
      const colours = this.signed ? [...REDS.slice(1).reverse(), ...BLUES] : BLUES;
      box.style.background = `linear-gradient(to right, ${colours.map((c) => `rgb(${c.join(",")})`).join(",")})`;
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
        item.classList.remove("partner", "strongest", "chosen", "same", "gives");
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
        this.showGifts();
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
      const size = (partner) => Math.abs(partner.weight);
      const strongest = partners.filter((p) => size(p) > 1e-6).sort((a, b) => size(b) - size(a)).slice(0, NAMED);
      const named = strongest.map((p) => `${quoted(p.token)} ${shown(p.weight)}`);
      const equals = partners.filter((partner) => partner.same);
      const sum = equals.reduce((total, partner) => total + partner.weight, 0);
      const gives = shown(this.view.adds[side === "query" ? 0 : 1][index]);
      this.status.textContent = `${quoted(this.tokens(side)[index])} adds ${gives}. ${this.signed ? "With" : "Aligned to"} `
        + `${named.join(", ") || "no partner"}. `
        + (equals.length ? `On ${equals.length} equal (underlined): ${shown(sum)}.` : `No equal token in the ${other}.`);
    }

    /** Colours span the token's own weights, from its weakest partner to its strongest. */
    mark(partners, items) {
      const levels = partners.map((partner) => partner.level - (this.signed ? ZERO : 0));
      const low = this.signed ? 0 : partners.length > 1 ? Math.min(...levels) : -FLAT;
      const range = Math.max(...levels.map((level) => Math.abs(level - low)));
      partners.forEach((partner, place) => {
        const item = items[partner.number], strength = (levels[place] - low) / range;
        item.classList.toggle("same", partner.same);
        if (range < FLAT || Math.abs(strength) < WEAKEST) return;
        item.classList.add("partner");
        item.classList.toggle("strongest", Math.abs(strength) === 1);
        item.style.setProperty("--colour", colour(strength));
        item.style.setProperty("--ink", Math.abs(strength) > 0.5 ? "#fff" : "#1a1a1a");
      });
    }

    /** While no token is chosen: what each of them adds to the relevance. */
    showGifts() {
      const { adds, relevance } = this.view;
      ["query", "document"].forEach((side, place) => {
        const largest = Math.max(...adds[place].map(Math.abs)) || 1;
        [...this.lists[side].children].forEach((item, number) => {
          const part = adds[place][number] / largest;
          if (Math.abs(part) < 0.05) return;
          item.classList.add("gives");
          item.style.setProperty("--part", `${Math.round(100 * Math.abs(part))}%`);
          item.style.setProperty("--gift", part > 0 ? "#7fc8a9" : "#f0a58f");
        });
      });
      this.status.textContent = `Green: what a token adds to the relevance of ${shown(relevance[relevance.length - 1])}, red: what it `
        + "takes away, the longer the bar the more. Point at a token, tap it or move to it with the keyboard to see its partners.";
    }
  }
