/** Why a system ranks a document where it does: against its best document, and where a beam lost it. */

import { Panel, ask } from "./api.js";
import { beamSteps, generatedList } from "./beam.js";
import { differenceTable } from "./differences.js";
import { button, make, words } from "./elements.js";
import { term } from "./glossary.js";
import { rankOf, shown } from "./numbers.js";
import { documentLink } from "./results.js";
import { shareList } from "./shares.js";

export class WhyView {
  /** `compare(id)` opens the comparison with another document. */
  constructor(compare) {
    this.compare = compare;
    this.reason = new Panel({ class: "reason", "aria-label": "In short" });
    this.element = make("section", { class: "why-view", "aria-label": "Why this rank" });
  }

  /** Asks once for each system, query and document id; `known`: which known query it is, if one. */
  show(system, query, known, document) {
    const asked = { system: system.number, query, known, document };
    const key = JSON.stringify(asked);
    if (key === this.key) return;
    [this.key, this.found] = [key, null];
    const busy = `Searching again, to ${system.generative ? "watch the beam" : "explain the rank"} …`;
    this.reason.body.replaceChildren();
    this.say(busy);
    const question = (signal) => ask("explain", asked, signal).catch((error) => {
      if (!signal.aborted) this.fail(error);
      throw error;
    });
    this.reason.fill(busy, question, (found) => {
      this.found = found;
      this.reason.body.replaceChildren(words("p", found.reason));
      this.draw(system, query, document);
    });
  }

  fail(error) {
    this.key = null;
    this.say(error.message);
  }

  /** Nothing to explain: the pair is not of the collection. */
  clear(message) {
    this.key = this.found = null;
    this.reason.stop();
    this.reason.body.replaceChildren();
    this.say(message);
  }

  say(message) {
    this.element.replaceChildren(make("p", { class: "quiet" }, message));
  }

  draw(system, query, document) {
    const { best, hit, steps, generated } = this.found;
    const other = best && best.id !== document ? best : null;
    const parts = [
      this.standing(system, query, other),
      steps?.length ? beamSteps(this.found) : null,
      make("div", { class: "sides" }, hit && other ? against(hit, other, system) : null,
        system.generative && hit ? shareList(hit.shares, hit.score, system.shares_of, "in the search") : null),
      generated ? generatedList(system, query, generated) : null,
    ];
    this.element.replaceChildren(...parts.filter((part) => part));
  }

  standing(system, query, other) {
    const { rank, score } = this.found;
    const first = other ? make("p", {}, "First is ", documentLink(system, query, other), ` with ${shown(other.score)}. `,
      button("Compare the two", () => this.compare(other.id))) : null;
    const points = [term("score", "score in the search"), " ", make("b", {}, shown(score))];
    const place = rank ? ["In the search: ", term("rank"), " ", make("b", {}, rankOf(rank)), ", ", ...points]
      : ["Not found in the search; in one for this document alone: ", ...points];
    return make("div", { class: "facts" }, make("p", {}, ...place, "."), first);
  }
}

/** Where the first document gains on this one. */
function against(hit, best, system) {
  return make("section", { "aria-label": "Against the first document" },
    make("h3", {}, "How it differs from the first document"),
    differenceTable(hit.shares, best.shares, ["this", "first"], system.shares_of));
}
