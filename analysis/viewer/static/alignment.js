/** How a pair's tokens are aligned: both texts, linked, and the matrix behind the links. */

import { readable } from "./bars.js";
import { blue } from "./colours.js";
import { button, choice, labelled, make, setChoices } from "./elements.js";
import { term } from "./glossary.js";
import { Matrix } from "./matrix.js";
import { shown } from "./numbers.js";
import { TokenList } from "./tokens.js";
import { DIRECTIONS, LAYERS, LAYER_NAMES, matrixOf } from "./weights.js";

const NAMED = 5; // partners that the text names
const NEAR = " A click on one of the query's shows its nearest tokens in the whole collection.";
const IDLE = "Point at a token (or move to it with Tab and the arrow keys): what it is aligned with turns blue.";
const SALIENT = " The thicker the line below a token, the greater its salience.";

export class AlignmentView {
  /** `changed({layer, head, shown, direction})` when a switch is moved; `picked(index)` at a click on a query token;
   *  `layers`: whether layer and head can be switched. */
  constructor({ changed = () => {}, picked = null, layers = true } = {}) {
    this.withLayers = layers;
    this.changed = changed;
    this.picked = picked;
    this.chosen = { shown: "alignment", direction: "own" };
    this.lists = { query: this.list("query"), document: this.list("document") };
    this.status = make("p", { class: "partners", role: "status" }, IDLE);
    this.matrix = new Matrix({ point: (row, column) => this.point(row, column), leave: () => this.choose(null) });
    this.element = make("div", { class: "alignment" }, this.makeSwitches(),
      make("p", { class: "side" }, "Query"), this.lists.query.element,
      make("p", { class: "side" }, "Document"), this.lists.document.element,
      this.status, this.matrix.element);
  }

  list(side) {
    const on = { choose: (index) => this.choose(side, index), pick: (index) => this.pin(side, index) };
    return new TokenList(`Tokens of the ${side}`, on);
  }

  makeSwitches() {
    this.layers = Object.entries(LAYERS).map(([name, label]) => button(label, () => this.change({ shown: name }),
      { "data-shown": name, "aria-pressed": "false", title: LAYER_NAMES[name] }));
    this.direction = choice(Object.entries(DIRECTIONS), () => this.change({ direction: this.direction.value }));
    this.layer = choice([], () => this.changed({ layer: this.layer.value }));
    this.head = choice([], () => this.changed({ head: this.head.value }));
    this.labels = {
      direction: labelled(term("Direction"), this.direction),
      layer: labelled(term("Layer"), this.layer),
      head: labelled(term("Head"), this.head),
    };
    const matrices = make("div", { role: "group", class: "segments", "aria-label": "Matrix" },
      make("span", {}, term("Matrix", "alignment")), make("span", {}, ...this.layers));
    return make("div", { class: "switches" }, matrices, ...Object.values(this.labels));
  }

  /** A switch that needs no other numbers from the server. */
  change(choices) {
    Object.assign(this.chosen, choices);
    this.draw();
    this.changed(choices);
  }

  /** `pair`: what /api/align said; `system`: of /api/about; `choices`: shown and direction, if not the first. */
  show(pair, system, choices = {}) {
    [this.pair, this.system, this.pinned] = [pair, system, null];
    this.idle = this.picked && system.paradigm === "multi_vector" ? IDLE + NEAR : IDLE;
    const drawn = (side) => pair[`${side}_salience`]?.length === pair[`${side}_tokens`].length;
    if (drawn("query") || drawn("document")) this.idle += SALIENT;
    this.chosen = {
      shown: choices.shown in LAYERS ? choices.shown : "alignment",
      direction: choices.direction in DIRECTIONS ? choices.direction : "own",
    };
    setChoices(this.layer, count(pair.layers), pair.layer < 0 ? pair.layers + pair.layer : pair.layer);
    setChoices(this.head, [["", "mean of heads"], ...count(pair.heads)], pair.head ?? "");
    this.labels.layer.hidden = !this.withLayers || pair.layers < 2;
    this.labels.head.hidden = !this.withLayers || pair.heads < 2;
    this.lists.query.show(pair.query_tokens, pair.query_salience);
    this.lists.document.show(pair.document_tokens, pair.document_salience);
    this.draw();
  }

  draw() {
    const { shown: layer, direction } = this.chosen;
    for (const item of this.layers) item.setAttribute("aria-pressed", `${item.dataset.shown === layer}`);
    this.direction.value = direction;
    this.labels.direction.hidden = layer !== "alignment";
    this.numbers = matrixOf(this.pair, this.system.paradigm, layer, direction);
    this.matrix.show(this.numbers, this.pair.document_tokens, this.pair.query_tokens, LAYER_NAMES[layer]);
    this.choose(null);
    this.element.dataset.drawn = `${this.system.number} ${layer} ${direction} ${this.pair.layer} ${this.pair.head}`;
  }

  tokens(side) {
    return this.pair[`${side}_tokens`];
  }

  pin(side, index) {
    const again = this.pinned?.[0] === side && this.pinned[1] === index;
    this.pinned = again ? null : [side, index];
    this.choose(side, again ? null : index);
    if (side === "query" && !again) this.picked?.(index);
  }

  clear() {
    this.lists.query.clear();
    this.lists.document.clear();
    this.matrix.clear();
  }

  /** Lights up what a token is aligned with; null: the pinned token's partners, or nothing. */
  choose(side, index = null) {
    this.clear();
    if (index === null) [side, index] = this.pinned ?? [null, null];
    if (index === null) {
      this.status.textContent = this.idle;
      return;
    }
    const other = side === "query" ? "document" : "query";
    const line = side === "query" ? this.numbers.map((row) => row[index]) : this.numbers[index];
    const weights = line.map((value) => value ?? 0);
    this.lists[side].choose(index);
    this.lists[other].light(weights, blue);
    this.matrix.band(side, index);
    this.matrix.reveal(side === "document" ? index : weights.indexOf(Math.max(...weights)));
    const strongest = weights.map((weight, place) => [weight, this.tokens(other)[place]])
      .filter(([weight]) => weight !== 0).sort((a, b) => b[0] - a[0]).slice(0, NAMED);
    const named = strongest.map(([weight, token]) => `“${readable(token)}” ${shown(weight)}`).join(", ");
    this.status.textContent = `“${readable(this.tokens(side)[index])}” with ${named || "no token"}`;
  }

  point(row, column) {
    this.clear();
    this.lists.document.choose(row);
    this.lists.query.choose(column);
    this.matrix.band("document", row);
    this.matrix.band("query", column);
    const of = (name) => shown(this.pair[name][row][column]);
    const [query, document] = [this.tokens("query")[column], this.tokens("document")[row]];
    this.status.textContent = `“${readable(query)}” and “${readable(document)}”: `
      + `S ${of("similarity")}, A ${of("alignment")}, S·A ${of("product")}`;
  }
}

function count(number) {
  return Array.from({ length: number }, (_, place) => [place, `${place + 1}`]);
}
