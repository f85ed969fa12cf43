/** What the whole collection offers a pair: a query token's nearest tokens, and a generative system's next tokens. */

import { Panel, ask } from "./api.js";
import { documentLink } from "./state.js";
import { documentLinks } from "./why.js";
import { button, make, percent, shown, spoken, table, term, words, written } from "./viewer.js";

const NEAREST = 10, NEXT = 12;
const END = "No token can follow: the identifier is complete, or no text of the collection continues this way.";

export class Nearest {
  constructor() {
    this.heading = make("h3");
    this.panel = new Panel();
    this.element = make("section", { class: "nearest", "aria-label": "Nearest tokens of the collection", hidden: true },
      this.heading, this.panel.element);
  }

  hide() {
    this.panel.clear();
    this.element.hidden = true;
  }

  /** `token`: the place of the query token among the query's; `text`: its string. */
  show(system, query, token, text) {
    const asked = { system: system.number, query, token, k: NEAREST };
    this.element.hidden = false;
    this.heading.replaceChildren("Nearest to ", words("bdi", spoken(text)), " in the whole collection");
    this.panel.fill("Searching the token index …", asked, (signal) => ask("nearest", asked, signal), (tokens) => {
      this.panel.body.replaceChildren(table([[term("similarity"), null], ["in context", "name"], ["document", "name"]],
        tokens.map((one) => ({ values: [shown(one.similarity),
          make("span", { dir: "auto" }, `${one.before} `, make("mark", {}, written(one.token)), ` ${one.after}`),
          documentLink(system, query, one)] }))));
    });
  }
}

export class Continuations {
  /** `walked(prefix)` after a step, with the token ids so far. */
  constructor(walked) {
    this.walked = walked;
    this.panel = new Panel();
    this.element = make("section", { "aria-label": "Continuations" },
      make("p", { class: "quiet" }, "After each token the model gives the next one a ", term("probability"), ". Choose a ",
        term("continuation"), " to walk on, or a token of the path to go back."), this.panel.element);
  }

  show(system, query, prefix) {
    const asked = { system: system.number, query, prefix, k: NEXT };
    this.panel.fill("Asking for the continuations …", asked, (signal) => ask("continuations", asked, signal), ({ path, next }) => {
      const crumb = (label, length) => make("li", {}, make("button", { type: "button", class: "link",
        onclick: () => this.walked(prefix.slice(0, length)), "aria-current": length === prefix.length ? "step" : null }, label));
      const columns = [["token", "name"], [term("probability"), null], ["documents", null], ["such as", "name links"]];
      const rows = next.map(({ token, text, probability, allowed, documents, examples }) => ({
        kind: allowed ? null : "forbidden",
        values: [allowed ? button(words("bdi", written(text)), () => this.walked([...prefix, token]), { class: "link" }) : words("bdi", written(text)),
          percent(probability), allowed ? `${documents}` : "none", documentLinks(system, query, examples, 0)],
      }));
      this.panel.body.replaceChildren(
        make("ol", { class: "path", "aria-label": "Tokens so far" }, crumb("start", 0),
          path.map((text, place) => crumb(words("bdi", written(text)), place + 1))),
        next.length ? table(columns, rows, { class: "continuation-table" }) : make("p", { class: "quiet" }, END));
    });
  }
}
