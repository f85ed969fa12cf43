/** The tokens of one text: pointing at one, or moving to it with the arrow keys, chooses it. */

import { readable } from "./bars.js";
import { make } from "./elements.js";

const SPECIAL = /^(<\/?s>|<pad>|<unk>|<extra_id_\d+>|\[[A-Z]+\])$/; // tokens that are no text
const WEAKEST = 0.25; // of a token's range of weights: weaker partners are not coloured

export class TokenList {
  /** `on.choose(index or null)` when a token is pointed at or left, `on.pick(index)` at a click. */
  constructor(label, on) {
    this.on = on;
    this.element = make("ul", { class: "tokens", role: "listbox", "aria-label": label, dir: "auto",
      onmouseover: (event) => this.at(event, (index) => on.choose(index)),
      onfocusin: (event) => this.at(event, (index) => on.choose(index)),
      onclick: (event) => this.at(event, (index) => on.pick(index)),
      onkeydown: (event) => this.at(event, (index) => this.move(index, event)),
      onmouseleave: () => on.choose(null),
      onfocusout: () => on.choose(null) });
  }

  at(event, act) {
    const item = event.target.closest("li");
    if (item) act([...this.element.children].indexOf(item));
  }

  move(index, event) {
    const items = this.element.children;
    const target = { ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1,
      Home: 0, End: items.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") this.on.pick(index);
    else if (target === undefined) return;
    event.preventDefault();
    if (!items[target]) return;
    items[index].tabIndex = -1;
    items[target].tabIndex = 0;
    items[target].focus();
  }

  /** `salience`: of each token, drawn as a line below it; null where all count alike or tokens were merged. */
  show(tokens, salience = null) {
    this.element.replaceChildren(...tokens.map((token, index) => {
      const special = SPECIAL.test(token) ? "special" : null;
      return make("li", { role: "option", "aria-selected": "false", tabindex: index ? "-1" : "0", title: token,
        class: special }, readable(token));
    }));
    if (salience?.length !== tokens.length) return;
    const most = Math.max(...salience, 1e-9);
    [...this.element.children].forEach((item, index) => {
      item.style.setProperty("--salience", salience[index] / most);
      item.title = `${tokens[index]}, salience ${salience[index].toFixed(3)}`;
    });
  }

  clear() {
    for (const item of this.element.children) {
      item.classList.remove("partner", "strongest", "chosen");
      for (const name of ["--colour", "--ink"]) item.style.removeProperty(name);
      item.setAttribute("aria-selected", "false");
    }
  }

  choose(index) {
    this.element.children[index]?.classList.add("chosen");
    this.element.children[index]?.setAttribute("aria-selected", "true");
  }

  /** Colours the partners by their weights, from the weakest of them to the strongest. */
  light(weights, colour) {
    const high = Math.max(...weights);
    const low = weights.length > 1 ? Math.min(...weights) : 0;
    if (!(high > low)) return;
    weights.forEach((weight, index) => {
      const strength = (weight - low) / (high - low);
      if (strength < WEAKEST) return;
      const item = this.element.children[index];
      item.classList.add("partner");
      item.classList.toggle("strongest", weight === high);
      item.style.setProperty("--colour", colour(strength));
      item.style.setProperty("--ink", strength > 0.5 ? "#fff" : "#1a1a1a");
    });
  }
}
