/** Activation patching: which layer, head and token carries what a query's score loses by another word. */

import { Panel, ask } from "./api.js";
import { readable } from "./bars.js";
import { delayed, labelled, make, words } from "./elements.js";
import { term } from "./glossary.js";
import { Matrix } from "./matrix.js";
import { shown, signed } from "./numbers.js";

const PAUSE = 600; // milliseconds after a key: every part is run again
const CLOSE = "The two scores are too close: what a part restores of so little says nothing. Change another word.";
const IDLE = "Point at a cell: it says what that part restores.";

export class PatchView {
  /** `changed(text)` when a person types the other query; "" asks the server for one. */
  constructor(changed) {
    const typed = delayed(PAUSE, () => changed(this.other.value));
    this.other = make("textarea", { rows: 2, dir: "auto", spellcheck: "false", oninput: typed });
    this.panel = new Panel({ "aria-label": "What each part restores" });
    this.element = make("section", { "aria-label": "Patching" },
      make("p", { class: "quiet" }, "Another query is scored, then again while one part of the model reads what it read of ",
        "your query. 1: that ", term("restores", "restored"), " the whole score, 0: nothing of it. Parts do not sum to 1."),
      labelled("The other query: yours with a word exchanged", this.other), this.panel.element);
  }

  show(system, query, document, perturbed) {
    const asked = { system: system.number, query, document, perturbed };
    const key = JSON.stringify(asked);
    if (key === this.key) return;
    this.key = key;
    const question = (signal) => ask("patch", asked, signal).catch((error) => {
      if (!signal.aborted) this.key = null;
      throw error;
    });
    this.panel.fill("Patching every part …", question, (found) => this.draw(found));
  }

  draw({ perturbed, scores, stacks }) {
    if (document.activeElement !== this.other) this.other.value = perturbed;
    const [clean, other] = scores;
    const facts = make("p", { class: "score" }, "Score of your query ", make("b", {}, shown(clean)), ", of the other ",
      make("b", {}, shown(other)), ", difference ", make("b", {}, signed(clean - other)), ".");
    const close = stacks[0].by_token[0][0] === null;
    const maps = close ? [make("p", { class: "error" }, CLOSE)] : stacks.map(stackMaps);
    this.panel.body.replaceChildren(facts, ...maps);
  }
}

/** Both maps of an encoder or a decoder. */
function stackMaps(stack) {
  const heads = stack.by_head[0].map((_, head) => `${head + 1}`);
  return make("section", { "aria-label": stack.name }, words("h3", stack.name), make("div", { class: "sides" },
    map(stack.by_token, stack.parts, stack.tokens, ["layers", "tokens"]),
    map(stack.by_head, stack.attentions, heads, ["layers", "heads"])));
}

function map(restored, rows, columns, sides) {
  const status = make("p", { class: "partners", role: "status" }, IDLE);
  const matrix = new Matrix({
    point: (row, column) => {
      const place = `${sides[1].slice(0, -1)} “${readable(columns[column])}”`;
      status.textContent = `${rows[row]}, ${place}: restores ${shown(restored[row][column])}`;
    },
    leave: () => (status.textContent = IDLE),
  }, sides);
  matrix.show(restored, rows, columns, "restored share");
  return make("div", {}, matrix.element, status);
}
