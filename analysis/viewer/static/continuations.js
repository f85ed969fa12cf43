/** The most probable continuations of a generative system, walked token by token. */

import { Panel, ask } from "./api.js";
import { readable } from "./bars.js";
import { button, make, words } from "./elements.js";
import { term } from "./glossary.js";
import { percent } from "./numbers.js";
import { documentLink } from "./results.js";
import { barCell, nameCell, row, table } from "./tables.js";

const K = 12;
const EXAMPLES = 3; // documents that a line names
const END = "Nothing can follow: this is a whole identifier, or no text of the collection goes on like this.";

export class Continuations {
  /** `walked(prefix)` after a step, with the token ids so far. */
  constructor(walked) {
    this.walked = walked;
    this.path = make("ol", { class: "path", "aria-label": "Tokens so far" });
    this.panel = new Panel();
    this.texts = new Map(); // of a token, by the prefix that ends with it
    this.element = make("section", { "aria-label": "Continuations" },
      make("p", { class: "quiet" }, "After each token the model gives the next one a ", term("probability"), ". Choose a ",
        term("continuation"), " to walk on, or a token of the path to go back."), this.path, this.panel.element);
  }

  show(system, query, prefix) {
    const owner = JSON.stringify([system.number, query]);
    const asked = JSON.stringify([owner, prefix]);
    if (asked === this.asked) return;
    if (owner !== this.owner) this.texts.clear();
    [this.asked, this.owner] = [asked, owner];
    this.showPath(prefix);
    this.panel.fill("Asking for the continuations …", (signal) => this.walk(system, query, prefix, signal),
      (found) => this.draw(system, query, prefix, found));
  }

  /** What follows a prefix. A link holds ids alone, so the texts of its tokens are asked for on the way. */
  async walk(system, query, prefix, signal) {
    const after = (some) => ask("continuations", { system: system.number, query, prefix: some, k: K }, signal);
    try {
      for (let length = 0; length < prefix.length; length += 1) {
        const before = prefix.slice(0, length);
        if (!this.texts.has(key(prefix.slice(0, length + 1)))) this.keep(before, await after(before));
      }
      this.showPath(prefix);
      return await after(prefix);
    } catch (error) {
      if (!signal.aborted) this.asked = null;
      throw error;
    }
  }

  keep(prefix, found) {
    for (const one of found) this.texts.set(key([...prefix, one.token]), one.text);
  }

  showPath(prefix) {
    const crumb = (label, before) => make("button", { type: "button", class: "link", onclick: () => this.walked(before),
      "aria-current": before.length === prefix.length ? "step" : null }, label);
    const tokens = prefix.map((token, place) => {
      const before = prefix.slice(0, place + 1);
      return crumb(words("bdi", readable(this.texts.get(key(before)) ?? `token ${token}`)), before);
    });
    this.path.replaceChildren(...[crumb("start", []), ...tokens].map((item) => make("li", {}, item)));
  }

  draw(system, query, prefix, found) {
    this.keep(prefix, found);
    const columns = [["token", "name"], [term("probability"), null], ["", null], ["documents", null], ["such as", "name"]];
    this.panel.body.replaceChildren(found.length
      ? table(columns, found.map((one) => this.line(system, query, prefix, one)), null, { class: "continuation-table" })
      : make("p", { class: "quiet" }, END));
  }

  line(system, query, prefix, one) {
    const text = words("bdi", readable(one.text));
    const token = one.allowed ? button(text, () => this.walked([...prefix, one.token]), { class: "link" }) : text;
    const examples = (one.examples ?? []).slice(0, EXAMPLES).map((document) => documentLink(system, query, document));
    return row([nameCell(token), percent(one.probability), barCell(one.probability, 1),
      one.allowed ? `${one.documents}` : "none", make("td", { class: "name links" }, ...examples)],
    { class: one.allowed ? null : "forbidden" });
  }
}

const key = (prefix) => prefix.join(",");
