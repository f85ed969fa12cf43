/** Questions to the explorer's own server, and the parts of the page that wait for the answers. */

import { make } from "./viewer.js";

/** The server's answer to one question; its one line of an error is thrown. */
export async function ask(verb, body = {}, signal) {
  const settings = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  const reply = await fetch(`api/${verb}`, settings).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Error("the explorer's server does not reply: is `python -m analysis.explore` still running?");
  });
  if (reply.ok) return reply.json();
  const told = await reply.json().catch(() => null);
  throw new Error(told?.error ?? `the server failed with status ${reply.status}`);
}

/** Part of the page that the server fills: text says that it is busy or has failed. */
export class Panel {
  constructor(attributes = {}) {
    this.status = make("p", { class: "status", role: "status" });
    this.body = make("div", { class: "panel-body" });
    this.element = make("section", attributes, this.status, this.body);
  }

  /** Whether `key` is the question that was asked last. */
  answers(key) {
    return JSON.stringify(key) === this.asked;
  }

  /** Asks unless `key`, the question, is the one that was asked last, then draws; a later call makes an earlier one void. */
  async fill(busy, key, question, draw) {
    if (this.answers(key)) return;
    this.clear();
    this.asked = JSON.stringify(key);
    const { signal } = (this.controller = new AbortController());
    this.status.textContent = busy;
    this.element.setAttribute("aria-busy", "true");
    try {
      const told = await question(signal);
      if (signal.aborted) return;
      await draw(told);
      if (!signal.aborted) this.end();
    } catch (error) {
      if (signal.aborted) return;
      this.clear(error.message); // what was drawn belongs to another question
      this.status.classList.add("error");
    }
  }

  /** Stops waiting; `message` says why there is nothing to show. What was drawn stays until something else is. */
  clear(message) {
    this.controller?.abort();
    this.asked = null;
    this.end();
    if (message !== undefined) {
      this.body.replaceChildren();
      this.status.textContent = message;
    }
  }

  end() {
    this.status.textContent = "";
    this.status.classList.remove("error");
    this.element.removeAttribute("aria-busy");
  }
}
