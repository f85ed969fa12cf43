/** A query token's nearest document tokens of the whole collection, in their context. */

import { Panel, ask } from "./api.js";
import { readable } from "./bars.js";
import { make, words } from "./elements.js";
import { term } from "./glossary.js";
import { shown } from "./numbers.js";
import { documentLink } from "./results.js";
import { nameCell, row, table } from "./tables.js";

const K = 10;

export class Nearest {
  constructor() {
    this.heading = make("h3");
    this.panel = new Panel();
    this.element = make("section", { class: "nearest", "aria-label": "Nearest tokens of the collection", hidden: true },
      this.heading, this.panel.element);
  }

  hide() {
    this.panel.stop();
    this.element.hidden = true;
  }

  /** `token`: place of the query token among the query's; `text`: what it reads. */
  show(system, query, token, text) {
    const asked = { system: system.number, query, token, k: K };
    this.element.hidden = false;
    this.heading.replaceChildren("Nearest to “", words("bdi", readable(text)), "” in the whole collection");
    this.panel.fill("Searching the token index …", (signal) => ask("nearest", asked, signal), (found) => {
      this.panel.body.replaceChildren(found.length ? table(
        [[term("similarity"), null], ["in context", "name"], ["document", "name"]],
        found.map((one) => line(system, query, one)),
      ) : make("p", { class: "quiet" }, "No token of the collection is near."));
    });
  }
}

function line(system, query, one) {
  const context = words("span", `${one.before} `);
  context.append(make("mark", {}, readable(one.token)), ` ${one.after}`);
  return row([shown(one.similarity), nameCell(context), nameCell(documentLink(system, query, one))]);
}
