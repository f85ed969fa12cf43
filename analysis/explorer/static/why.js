/** Why a system ranks a document where it does: against its best document, and where a beam lost it. */

import { Panel, ask } from "./api.js";
import { button, make, words } from "./elements.js";
import { beamSteps, generatedList } from "./beam.js";
import { differenceTable } from "./differences.js";
import { term } from "./glossary.js";
import { rankOf, shown } from "./numbers.js";
import { documentLink } from "./results.js";

export class WhyView {
  /** `compare(id)` opens the comparison with another document. */
  constructor(compare) {
    this.compare = compare;
    this.reason = new Panel({ class: "reason", "aria-label": "In short" });
    this.element = make("section", { class: "why-view", "aria-label": "Why this rank" });
  }

  /** Asks once for each (system, query, document); `pair()` gives the pair's own shares when they are there. */
  show(system, query, document, pair) {
    const asked = JSON.stringify([system.number, query, document]);
    if (asked === this.asked) return;
    this.asked = asked;
    this.found = null;
    this.element.replaceChildren(make("p", { class: "quiet" }, "Searching …"));
    const busy = system.generative ? "Searching again, to watch the beam …" : "Searching again, to explain the rank …";
    this.reason.fill(busy, async (signal) => {
      try {
        return await ask("explain", { system: system.number, query, document: document.id }, signal);
      } catch (error) {
        if (!signal.aborted) [this.asked, this.found] = [null, null];
        if (!signal.aborted) this.element.replaceChildren(make("p", { class: "error" }, error.message));
        throw error;
      }
    }, (found) => {
      this.found = found;
      this.reason.body.replaceChildren(words("p", found.reason));
      this.draw(system, query, document, pair);
    });
  }

  /** Nothing to explain: the pair is not of the collection. */
  clear(message) {
    this.asked = this.found = null;
    this.reason.stop();
    this.reason.body.replaceChildren();
    this.element.replaceChildren(make("p", { class: "quiet" }, message));
  }

  draw(system, query, document, pair) {
    const { found } = this;
    const parted = make("div");
    const parts = [this.standing(system, query, document), found.steps?.length ? beamSteps(found) : null, parted,
      found.generated ? generatedList(system, query, found.generated) : null];
    this.element.replaceChildren(...parts.filter((part) => part));
    this.against(parted, system, document, pair);
  }

  standing(system, query, document) {
    const { best, rank, score } = this.found;
    return make("div", { class: "facts" },
      make("p", {}, "This document: ", term("rank"), " ", make("b", {}, rank ? rankOf(rank) : "not found"), ", ",
        term("score"), " ", make("b", {}, shown(score)), "."),
      best && best.id !== document.id ? make("p", {}, "First is ", documentLink(system, query, best),
        ` with ${shown(best.score)}. `, button("Compare the two", () => this.compare(best.id))) : null);
  }

  /** Where the first document gains on this one. */
  async against(place, system, document, pair) {
    const { best, hit } = this.found;
    if (!best || best.id === document.id) return;
    const own = hit?.shares ?? (await pair())?.shares;
    if (!own || this.found?.best !== best) return;
    place.replaceChildren(make("h3", {}, "What parts it from the first document"),
      differenceTable(own, best.shares, ["this", "first"], system.shares_of));
  }
}
