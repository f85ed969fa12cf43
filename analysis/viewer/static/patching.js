/** Activation patching: which layer, head and token carries what a query's score loses by another word. */

import { Panel, ask } from "./api.js";
import { delayed } from "./state.js";
import { Matrix, labelled, make, shown, signed, spoken, term, words } from "./viewer.js";

const PAUSE = 600; // milliseconds after a key: every part is run again
const CLOSE = "The two scores are too close: what a part restores of so little says nothing. Change another word.";
const IDLE = "Point at a cell to see what that part restores.";

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
    this.panel.fill("Patching every part …", asked, (signal) => ask("patch", asked, signal), (told) => this.draw(told));
  }

  draw({ perturbed, scores: [clean, other], stacks }) {
    if (document.activeElement !== this.other) this.other.value = perturbed;
    const close = stacks[0].by_token[0][0] === null;
    this.panel.body.replaceChildren(
      make("p", { class: "score" }, "Score of your query ", make("b", {}, shown(clean)), ", of the other ", make("b", {}, shown(other)),
        ", difference ", make("b", {}, signed(clean - other)), "."),
      ...(close ? [make("p", { class: "error" }, CLOSE)] : stacks.map(showStack)));
  }
}

/** What the parts of an encoder or a decoder restore, by token and by head. */
function showStack({ name, parts, tokens, by_token: byToken, attentions, by_head: byHead }) {
  const heads = byHead[0].map((_, head) => `${head + 1}`);
  return make("section", { "aria-label": name }, words("h3", name), make("div", { class: "sides" },
    showMap(byToken, parts, tokens, "token"), showMap(byHead, attentions, heads, "head")));
}

function showMap(restored, rows, columns, kind) {
  const status = make("p", { class: "partners", role: "status" }, IDLE);
  const matrix = new Matrix((row, column) => {
    status.textContent = `${rows[row]}, ${kind} ${spoken(columns[column])}: restores ${shown(restored[row][column])}`;
  }, () => (status.textContent = IDLE), ["layers", `${kind}s`]);
  matrix.show(restored, rows, columns, "Restored share");
  return make("div", {}, matrix.element, status);
}
