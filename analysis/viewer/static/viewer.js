/** The parts that report, comparison and explorer share: words, numbers, shares, and the alignment of a pair.
 *  What data says only ever becomes text: nothing here reads markup. */

const BLUE = "#08519c", ORANGE = "#a63603"; // what is positive and what is negative, on white
const CELL = 16; // pixels of a matrix's cell
const WEAKEST = 0.25; // partners below this part of a token's range of weights are not coloured
const NAMED = 5; // partners that a sentence names
const SHORT = 20; // bars of a list before "show all"
const ROWS = 20; // of a table of differences
const MATRICES = {
  alignment: ["A: as the system aligns", "weights with which the relevance sums the similarities"],
  similarity: ["S: similarity", "inner products of the two tokens' vectors"],
  product: ["S·A: what pairs add", "similarity times alignment, divided by Z; all cells sum to the relevance"],
  query_to_document: ["query → document", "every query token spreads a weight of 1 over the document (columns)"],
  document_to_query: ["document → query", "every document token spreads a weight of 1 over the query (rows)"],
};

// Elements ---------------------------------------------------------------------------------------

/** An element; an attribute "onclick" is a listener, true has no value, false and null leave it out. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function button(label, onclick, attributes = {}) {
  return make("button", { type: "button", onclick, ...attributes }, label);
}

/** A text of the collection or of a person: of any script, in its own direction. */
function words(tag, text, attributes = {}) {
  return make(tag, { dir: "auto", ...attributes }, text);
}

/** A control under its label. */
function labelled(label, control, attributes = {}) {
  return make("label", attributes, make("span", {}, label), control);
}

/** Options [value, label] of a select; `value` is chosen where it is one of them, else the first. */
function setChoices(select, options, value) {
  select.replaceChildren(...options.map(([key, label]) => make("option", { value: key, dir: "auto" }, label)));
  select.value = options.some(([key]) => `${key}` === `${value}`) ? value : options[0][0];
}

/** A table; `columns`: [heading, class or null], `rows`: {values, kind}, with a value for each column. */
function table(columns, rows, attributes = {}) {
  const cells = (tag, values) => values.map((value, place) => make(tag, { class: columns[place][1] }, value));
  return make("div", { class: "wide" }, make("table", attributes,
    make("thead", {}, make("tr", {}, cells("th", columns.map(([heading]) => heading)))),
    make("tbody", {}, rows.map(({ values, kind = null }) => make("tr", { class: kind }, cells("td", values))))));
}

// Numbers and tokens -----------------------------------------------------------------------------

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** Three decimals, one from 100 on, more digits for what would read as zero; a dash for what is unknown. */
function shown(value, digits = 3) {
  if (!isNumber(value)) return "–";
  const small = value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits;
  const kept = Math.abs(value) < 100 ? digits : Math.min(digits, 1);
  return (small ? value.toExponential(1) : value.toFixed(kept)).replace("-", "−");
}

function signed(value) {
  return value > 0 ? `+${shown(value)}` : shown(value);
}

/** A probability as a percentage without powers of ten: "0.0008 %". */
function percent(value) {
  if (!isNumber(value)) return "–";
  if (value > 0 && value < 1e-8) return "< 0.000001\u00a0%";
  const digits = value < 1e-4 ? { maximumSignificantDigits: 1 } : { maximumFractionDigits: value < 0.01 ? 2 : 1 };
  return `${(100 * value).toLocaleString("en", digits)}\u00a0%`;
}

/** A token as the tokeniser writes it: its word mark distinguishes "▁debug" from "debug". */
function written(text) {
  return text.trim() || "␣";
}

/** A token within a sentence, without its word mark. */
function spoken(text) {
  return `“${written(text.replace(/^(▁|Ġ|##)(?=.)/, ""))}”`;
}

// Words that are explained where one points at them -----------------------------------------------

const meanings = new Map();

function explain(glossary) {
  for (const [name, meaning] of Object.entries(glossary)) meanings.set(name.toLowerCase(), meaning);
}

/** A word of the page; `name`: of its explanation. */
function term(label, name = label) {
  return make("abbr", { title: meanings.get(name.toLowerCase()) }, label);
}

// Shares of a score ------------------------------------------------------------------------------

/** A bar in proportion to `largest`: blue for what is positive, orange for what is negative. */
function bar(value, largest) {
  const filled = make("span", { class: value < 0 ? "bar minus" : "bar" });
  filled.style.width = `${Math.min(100, (100 * Math.abs(value ?? 0)) / largest)}%`;
  return make("span", { class: "bar-room", "aria-hidden": "true" }, filled);
}

/** Shares as bars, of more than `most` the largest; `whole`: the score, of which the others are the rest. */
function bars(shares, whole, most = SHORT) {
  const ordered = [...shares].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const listed = shares.length > most ? ordered.slice(0, most) : shares;
  const largest = Math.max(1e-12, ...listed.map(({ value }) => Math.abs(value)));
  const rest = whole - listed.reduce((sum, { value }) => sum + value, 0);
  const line = (name, filled, value) => make("li", {}, name, filled, make("span", { class: "bar-value" }, shown(value)));
  const list = make("ul", { class: "bars" }, listed.map(({ text, value }) => (
    line(words("span", written(text), { class: "bar-name", title: text }), bar(value, largest), value))));
  if (Math.abs(rest) > 1e-3 * Math.max(1, Math.abs(whole))) { // its bar would dwarf the others
    list.append(line(make("span", { class: "bar-name quiet" }, "all others"), make("span"), rest));
  }
  if (listed.length === shares.length) return list;
  return make("div", {}, list, make("details", {}, make("summary", {}, `All ${shares.length}`), bars(shares, whole, Infinity)));
}

/** [{text, a, b, difference}], the largest difference first; the n-th of equal texts meets the n-th. */
function differences(first, second) {
  const rows = new Map();
  for (const [side, shares] of [["a", first], ["b", second]]) {
    const seen = new Map();
    for (const { text, value } of shares) {
      seen.set(text, (seen.get(text) ?? 0) + 1);
      const key = JSON.stringify([text, seen.get(text)]);
      rows.set(key, { text, a: 0, b: 0, ...rows.get(key), [side]: value });
    }
  }
  return [...rows.values()].map((one) => ({ ...one, difference: one.a - one.b }))
    .sort((x, y) => Math.abs(y.difference) - Math.abs(x.difference));
}

/** Two scores side by side: {name, score, shares} each; of many shares those that differ most. */
function differenceTable(first, second, what) {
  const all = differences(first.shares, second.shares), listed = all.slice(0, ROWS);
  const largest = Math.max(1e-12, ...all.map((one) => Math.abs(one.difference)));
  const add = (rows, key) => rows.reduce((sum, one) => sum + one[key], 0);
  const row = (name, a, b, kind) => ({ kind, values: [name, shown(a), shown(b), signed(a - b), bar(a - b, largest)] });
  const rows = listed.map(({ text, a, b }) => row(words("bdi", written(text)), a, b));
  const [restA, restB] = [first.score - add(listed, "a"), second.score - add(listed, "b")];
  if (all.length > ROWS) rows.push(row("all others", restA, restB, "quiet"));
  rows.push(row("score", first.score, second.score, "sum"));
  const columns = [[what, "name"], [first.name, null], [second.name, null], ["difference", null], ["", "bar-cell"]];
  return table(columns, rows, { class: "differences" });
}

/** A retrieved document with the largest shares of its score, and what separates it from another. */
function hitCard(hit, other, title) {
  const fields = Object.entries(hit.fields ?? {});
  const gains = other ? differences(hit.shares, other.shares).filter((one) => Math.abs(one.difference) > 5e-4).slice(0, 3) : [];
  return make("li", { class: hit.gold ? "hit gold" : "hit" },
    make("div", {}, make("span", { class: "hit-rank" }, `${hit.rank}`), title),
    make("p", { class: "small quiet" }, hit.title ? `${hit.id}, ` : null, term("score", "score in the search"), ` ${shown(hit.score)}`,
      hit.gold ? make("strong", { class: "gold-mark" }, term("relevant", "gold")) : null),
    words("p", hit.snippet, { class: "snippet" }),
    fields.length ? words("p", fields.map(([name, value]) => `${name}: ${value}`).join(" · "), { class: "small quiet" }) : null,
    hit.shares.length ? bars(hit.shares, hit.score, 4) : null,
    gains.length ? make("p", { class: "small gains" }, `Against number ${other.rank}: `,
      gains.map(({ text, difference }, place) => [place ? ", " : "", words("bdi", spoken(text)), ` ${signed(difference)}`])) : null);
}

/** The cards of one list: each is compared with the first, the first with the second. */
function hitCards(hits, title) {
  return make("ol", { class: "hits" }, hits.map((hit, place) => hitCard(hit, hits[place ? 0 : 1], title(hit))));
}

// The texts of a pair ----------------------------------------------------------------------------

/** The tokens of one text: pointing at one, or moving to it with the arrow keys, chooses it. */
class Tokens {
  /** `choose(index or null)` when a token is pointed at or left, `pick(index)` at a click. */
  constructor(label, choose, pick) {
    const at = (act) => (event) => {
      const item = event.target.closest("li");
      if (item) act([...this.element.children].indexOf(item), event);
    };
    this.pick = pick;
    this.element = make("ul", { class: "tokens", role: "listbox", "aria-label": label, dir: "auto",
      onmouseover: at(choose), onfocusin: at(choose), onclick: at(pick), onkeydown: at((index, event) => this.move(index, event)),
      onmouseleave: () => choose(null), onfocusout: () => choose(null) });
  }

  move(index, event) {
    const items = this.element.children;
    const target = { ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1,
      Home: 0, End: items.length - 1, Enter: index, " ": index }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    if (target === index) this.pick(index);
    else if (items[target]) {
      items[index].tabIndex = -1;
      items[target].tabIndex = 0;
      items[target].focus();
    }
  }

  show({ tokens, special, salience }) {
    const most = Math.max(1e-9, ...(salience ?? []));
    this.element.replaceChildren(...tokens.map((token, index) => {
      const item = make("li", { role: "option", tabindex: index ? "-1" : "0", class: special[index] ? "special" : "",
        title: salience ? `${token}, salience ${shown(salience[index])}` : token }, make("bdi", {}, written(token)));
      if (salience) item.style.setProperty("--salience", salience[index] / most);
      return item;
    }));
  }

  clear() {
    for (const item of this.element.children) {
      item.classList.remove("partner", "strongest", "chosen", "adds");
      item.setAttribute("aria-selected", "false");
    }
  }

  choose(index) {
    this.element.children[index].classList.add("chosen");
    this.element.children[index].setAttribute("aria-selected", "true");
  }

  /** Colours the partners of a token by their weights, from the weakest to the strongest. */
  light(weights) {
    const low = weights.length > 1 ? Math.min(...weights.map(Math.abs)) : 0;
    const range = Math.max(...weights.map(Math.abs)) - low;
    if (range < 1e-6) return; // equal weights: no partner stands out
    weights.forEach((weight, index) => {
      const strength = (Math.abs(weight) - low) / range, item = this.element.children[index];
      if (strength < WEAKEST) return;
      item.classList.add("partner");
      item.classList.toggle("strongest", strength > 1 - 1e-4);
      item.style.setProperty("--colour", `color-mix(in srgb, ${weight < 0 ? ORANGE : BLUE} ${100 * strength}%, white)`);
      item.style.setProperty("--ink", strength > 0.5 ? "#fff" : "#1a1a1a");
    });
  }

  /** Draws below each token what it adds to the relevance: green, or red for what it takes away. */
  underline(values) {
    const largest = Math.max(1e-12, ...values.map(Math.abs));
    values.forEach((value, index) => {
      const item = this.element.children[index];
      item.classList.add("adds");
      item.style.setProperty("--part", `${Math.round((100 * Math.abs(value)) / largest)}%`);
      item.style.setProperty("--add", value > 0 ? "#4aa77e" : "#e0806a");
    });
  }
}

// A matrix as a heat map -------------------------------------------------------------------------

/** The range of some numbers, from zero unless all are large; with negative ones it is the same on both sides of zero. */
function range(numbers) {
  const low = numbers.reduce((least, value) => Math.min(least, value), Infinity);
  const high = numbers.reduce((most, value) => Math.max(most, value), 0);
  if (low < 0) return [-Math.max(high, -low), Math.max(high, -low)];
  return [high - low < 0.5 * high ? low : 0, high];
}

class Matrix {
  /** Rows are document tokens. `point(row, column)` when a cell is pointed at, `leave()` afterwards. */
  constructor(point, leave) {
    Object.assign(this, { point, leave });
    this.heatmap = make("div", { class: "heatmap", tabindex: "0", role: "img" });
    this.legend = make("div", { class: "legend" });
    this.element = make("div", { class: "matrix" }, this.heatmap, this.legend);
  }

  /** Draws rows of numbers with the names of rows and columns; equal names are framed. */
  show(numbers, rows, columns, label, meaning = "") {
    const [low, high] = range(numbers.flat());
    const at = (event) => {
      const box = this.cells.getBoundingClientRect();
      const place = (distance, count) => Math.min(count - 1, Math.max(0, Math.floor(distance / CELL)));
      return [place(event.clientY - box.top, rows.length), place(event.clientX - box.left, columns.length)];
    };
    this.cells = make("div", { class: "cells", onmousemove: (event) => this.point(...at(event)), onmouseleave: this.leave },
      this.paint(numbers, low, high, rows, columns));
    const names = (tokens) => tokens.map((token) => make("span", { title: token }, make("bdi", {}, written(token))));
    this.heatmap.replaceChildren(make("div", { class: "grid" },
      make("div", { class: "corner" }, "query →", make("br"), "document ↓"),
      make("div", { class: "column-names" }, names(columns)), make("div", { class: "row-names" }, names(rows)), this.cells));
    this.heatmap.setAttribute("aria-label", `${label}: ${rows.length} rows (document) by ${columns.length} columns `
      + "(query); the texts say the same in words");
    const ramp = make("span", { class: "ramp" });
    ramp.style.background = `linear-gradient(to right, ${low < 0 ? `${ORANGE}, white, ${BLUE}` : `white, ${BLUE}`})`;
    const framed = rows.some((row) => columns.includes(row)) ? [make("span", { class: "equal-key" }), "equal tokens"] : [];
    this.legend.replaceChildren(shown(low, 2), ramp, shown(high, 2), ...framed, make("span", { class: "quiet" }, meaning));
  }

  paint(numbers, low, high, rows, columns) {
    const [width, height, density] = [columns.length * CELL, rows.length * CELL, window.devicePixelRatio || 1];
    const canvas = make("canvas", { width: width * density, height: height * density });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = canvas.getContext("2d");
    context.scale(density, density);
    const least = Math.max(low, 0), span = high - least || 1;
    numbers.forEach((row, i) => row.forEach((value, j) => {
      context.fillStyle = value < 0 ? ORANGE : BLUE;
      context.globalAlpha = Math.max(0, (Math.abs(value) - least) / span);
      context.fillRect(j * CELL, i * CELL, CELL - 0.5, CELL - 0.5);
    }));
    Object.assign(context, { strokeStyle: "#d55e00", lineWidth: 1.5, globalAlpha: 1 });
    rows.forEach((row, i) => columns.forEach((column, j) => {
      if (row === column) context.strokeRect(j * CELL + 1, i * CELL + 1, CELL - 2.5, CELL - 2.5);
    }));
    return canvas;
  }

  /** Frames a row or a column. */
  frame(side, index) {
    const frame = make("div", { class: "band" });
    const [along, across] = side === "document" ? ["top", "height"] : ["left", "width"];
    Object.assign(frame.style, { top: 0, left: 0, width: "100%", height: "100%", [along]: `${index * CELL}px`, [across]: `${CELL}px` });
    this.cells.append(frame);
  }

  /** Scrolls the matrix, not the page, to a row. */
  reveal(row) {
    const room = this.heatmap.clientHeight - this.heatmap.querySelector(".column-names").offsetHeight;
    const top = row * CELL - this.heatmap.scrollTop;
    if (top < 0 || top > room - CELL) this.heatmap.scrollTop = row * CELL - room / 2;
  }

  clear() {
    this.cells?.querySelectorAll(".band").forEach((frame) => frame.remove());
  }
}

// How a pair is aligned --------------------------------------------------------------------------

/** The numbers of packed matrices: of each its rows (see `pack_matrices` in pairs.py). */
async function unpack({ low, high, data }, rows, columns) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const levels = new DataView(await new Response(stream).arrayBuffer());
  const value = (matrix, cell) => low[matrix]
    + (levels.getUint16(2 * (matrix * rows * columns + cell), true) / 65535) * (high[matrix] - low[matrix]);
  return low.map((_, matrix) => Array.from({ length: rows }, (_, row) => (
    Array.from({ length: columns }, (_, column) => value(matrix, row * columns + column)))));
}

/** Both texts of a pair, linked, and the matrix behind the links. */
class Alignment {
  /** `changed(choices)` when a switch is moved; `picked(index)` at a click on a query token, with `hint` what that
   *  does; `chosen(side, index or null)` when a token is pointed at or left. */
  constructor({ changed = () => {}, picked = () => {}, hint = "", chosen = () => {} } = {}) {
    Object.assign(this, { changed, picked, hint, told: chosen, pinned: null, choices: {} });
    const list = (side) => new Tokens(`Tokens of the ${side}`, (index) => this.point(side, index), (index) => this.pin(side, index));
    this.lists = { query: list("query"), document: list("document") };
    this.matrix = new Matrix((row, column) => this.pointCell(row, column), () => this.point("query", null));
    this.status = make("p", { class: "partners", role: "status" });
    const select = (name) => make("select", { "data-switch": name, onchange: (event) => this.change({ [name]: event.target.value }) });
    this.selects = { shown: select("shown"), layer: select("layer"), head: select("head") };
    this.labels = { shown: labelled("Shown", this.selects.shown), layer: labelled(term("Layer"), this.selects.layer),
      head: labelled(term("Head"), this.selects.head) };
    this.element = make("div", { class: "alignment" },
      make("div", { class: "texts-of" }, make("div", { class: "switches" }, Object.values(this.labels)),
        make("p", { class: "side" }, "Query"), this.lists.query.element,
        make("p", { class: "side" }, "Document"), this.lists.document.element, this.status), this.matrix.element);
  }

  change(choices) {
    Object.assign(this.choices, choices);
    this.draw();
    this.changed(choices);
  }

  tokens(side) {
    return this.pair[side].tokens;
  }

  /** `pair`: of `describe_pair`; `choices`: {shown, layer, head}, those of before by default. */
  async show(pair, choices = this.choices) {
    delete this.element.dataset.drawn;
    const names = Object.keys(MATRICES).filter((name) => name in pair.matrices);
    const sizes = [pair.document.tokens.length, pair.query.tokens.length];
    this.asked = pair;
    const values = await Promise.all(names.map((name) => unpack(pair.matrices[name], ...sizes)));
    if (this.asked !== pair) return; // another pair was shown meanwhile
    Object.assign(this, { pair, pinned: null, values: Object.fromEntries(names.map((name, place) => [name, values[place]])) });
    const count = (number) => Array.from({ length: number }, (_, place) => [place, `${place + 1}`]);
    setChoices(this.selects.shown, names.map((name) => [name, MATRICES[name][0]]), choices.shown);
    setChoices(this.selects.layer, count(pair.layers), choices.layer ?? pair.layers - 1);
    this.labels.layer.hidden = pair.layers < 2;
    setChoices(this.selects.head, [["", "all heads"], ...count(pair.heads)], choices.head);
    this.choices = Object.fromEntries(Object.entries(this.selects).map(([name, select]) => [name, select.value]));
    for (const side of ["query", "document"]) this.lists[side].show(pair[side]);
    this.draw();
    const sums = this.numbers.map((row) => Math.max(...row.map(Math.abs)));
    this.matrix.reveal(sums.indexOf(Math.max(...sums)));
  }

  /** The matrix of a name in the chosen layer and head; all heads together where no single one is kept. */
  numbersOf(name) {
    const each = this.values[name].length / this.pair.layers, { layer, head } = this.choices;
    return this.values[name][Number(layer) * each + (each > 1 && head !== "" ? 1 + Number(head) : 0)];
  }

  draw() {
    const { shown: name, layer, head } = this.choices, [label, meaning] = MATRICES[name];
    this.labels.head.hidden = this.values[name].length === this.pair.layers;
    this.numbers = this.numbersOf(name);
    const single = head !== "" && !this.labels.head.hidden;
    const heads = this.pair.heads < 2 || single ? "" : name === "product" ? "; the sum of the heads" : "; the mean of the heads";
    this.matrix.show(this.numbers, this.tokens("document"), this.tokens("query"), label, `${meaning}${heads}.`);
    this.choose(...(this.pinned ?? [null, null]));
    this.element.dataset.drawn = `${name} ${layer} ${single ? head : "all"}`;
  }

  point(side, index) {
    const [chosen, at] = index === null ? this.pinned ?? [side, null] : [side, index];
    this.choose(chosen, at);
    this.told(chosen, at);
  }

  /** A second click on a token releases it. */
  pin(side, index) {
    const again = this.pinned?.[0] === side && this.pinned[1] === index;
    this.pinned = again ? null : [side, index];
    this.point(side, again ? null : index);
    if (side === "query" && !again) this.picked(index);
  }

  clear() {
    for (const part of [this.lists.query, this.lists.document, this.matrix]) part.clear();
  }

  /** Lights up the partners of a token; without one, underlines what each token adds. */
  choose(side, index) {
    if (!this.pair) return;
    this.clear();
    const layer = Number(this.choices.layer);
    if (index === null) {
      for (const name of ["query", "document"]) this.lists[name].underline(this.pair[name].adds[layer]);
      this.status.textContent = `The bar below a token shows what it adds to the relevance of ${shown(this.pair.relevance[layer])} (green) or `
        + `takes away (red)${this.pair.query.salience || this.pair.document.salience ? "; the bar above it shows its salience" : ""}. `
        + `Point at a token to see its partners.${this.hint}`;
      return;
    }
    const other = side === "query" ? "document" : "query";
    const weights = side === "query" ? this.numbers.map((row) => row[index]) : this.numbers[index];
    this.lists[side].choose(index);
    this.lists[other].light(weights);
    this.matrix.frame(side, index);
    const ordered = weights.map((weight, place) => [weight, place]).filter(([weight]) => Math.abs(weight) > 1e-6)
      .sort((a, b) => Math.abs(b[0]) - Math.abs(a[0])).slice(0, NAMED);
    this.matrix.reveal(side === "document" ? index : ordered[0]?.[1] ?? 0);
    const partners = ordered.map(([weight, place]) => `${spoken(this.tokens(other)[place])} ${shown(weight)}`).join(", ");
    const token = this.tokens(side)[index], equal = weights.filter((_, place) => this.tokens(other)[place] === token);
    this.status.textContent = `${spoken(token)} adds ${shown(this.pair[side].adds[layer][index])}. Strongest partners: ${partners || "none"}. `
      + (equal.length ? `Equal tokens in the ${other}: ${equal.length}, with ${shown(equal.reduce((sum, weight) => sum + weight, 0))}.`
        : `The ${other} has no equal token.`);
  }

  pointCell(row, column) {
    this.clear();
    this.lists.document.choose(row);
    this.lists.query.choose(column);
    this.matrix.frame("document", row);
    this.matrix.frame("query", column);
    const names = { similarity: "S", alignment: "A", product: "S·A", ...(this.choices.shown.includes("_to_") ? { [this.choices.shown]: "shown" } : {}) };
    const told = Object.entries(names).filter(([name]) => name in this.values)
      .map(([name, label]) => `${label} ${shown(this.numbersOf(name)[row][column])}`);
    this.status.textContent = `${spoken(this.tokens("query")[column])} and ${spoken(this.tokens("document")[row])}: ${told.join(", ")}`;
  }
}

export {
  Alignment, bars, button, differenceTable, explain, hitCards, labelled, make, percent, setChoices, shown, signed, spoken, table, term, words, written,
};
