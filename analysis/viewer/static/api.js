/** Questions to the explorer's own server, and the parts of the page that wait for what it says. */

import { make } from "./elements.js";

/** What the server says to one question; its one line of an error is thrown. */
export async function ask(verb, body, signal) {
  const reply = await sent(`api/${verb}`, body, signal);
  const found = await reply.json().catch(() => null);
  if (!reply.ok || found === null) throw new Error(found?.error ?? `the server failed with status ${reply.status}`);
  return found;
}

/** A file that the server makes, and its name. */
export async function askFile(verb, body) {
  const reply = await sent(`api/${verb}`, body);
  if (!reply.ok) throw new Error((await reply.json().catch(() => null))?.error ?? `status ${reply.status}`);
  const name = /filename="([^"]+)"/.exec(reply.headers.get("content-disposition") ?? "");
  return [await reply.blob(), name?.[1]];
}

async function sent(address, body, signal) {
  const settings = body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  try {
    return await fetch(address, { signal, ...settings });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the explorer's server does not reply: is `python -m analysis.explore` still running?");
  }
}

/** Part of the page that is filled by the server: that it is busy, or failed, is said as text. */
export class Panel {
  constructor(attributes = {}) {
    this.status = make("p", { class: "status", role: "status" });
    this.body = make("div", { class: "panel-body" });
    this.element = make("section", attributes, this.status, this.body);
    this.controller = null;
  }

  /** Asks, then draws; a later call makes an earlier one void. What was drawn before stays until then. */
  async fill(busy, question, draw) {
    this.stop();
    const { signal } = (this.controller = new AbortController());
    this.status.textContent = busy;
    this.status.classList.remove("error");
    this.element.setAttribute("aria-busy", "true");
    try {
      const found = await question(signal);
      if (signal.aborted) return;
      this.end();
      draw(found);
    } catch (error) {
      if (!signal.aborted) this.fail(error);
    }
  }

  stop() {
    this.controller?.abort();
    this.end();
  }

  end() {
    this.status.textContent = "";
    this.status.classList.remove("error");
    this.element.removeAttribute("aria-busy");
  }

  /** What was drawn before belongs to another question, so it goes. */
  fail(error) {
    this.end();
    this.body.replaceChildren();
    this.status.textContent = error.message;
    this.status.classList.add("error");
  }
}
