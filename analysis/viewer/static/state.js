/** Where a person is, kept in the address after "#", so that a link reopens it; and questions to the explorer's server. */

import { make, words } from "./viewer.js";

/** The state that the address names: texts by key. */
export function read() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** The address of a state; null, undefined and "" are left out. */
function address(state) {
  const kept = Object.entries(state).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return `#${new URLSearchParams(kept)}`;
}

/** Shows another state, to which "back" leads from the next one. */
export function open(state) {
  location.hash = address(state);
}

/** Shows a state in the place of the empty one that the page began with. */
export function begin(state) {
  location.replace(address(state));
}

/** Changes part of the state without a step of its own for "back": an edit, a switch. */
export function change(changes) {
  history.replaceState(null, "", address({ ...read(), ...changes }));
}

/** The system that a state names, else the first. */
export function systemOf(systems, state) {
  return systems.find((system) => `${system.number}` === state.system) ?? systems[0];
}

/** Shows a document with a query in a system. */
export function openPair(system, query, document, tab) {
  const { k } = read(); // of the search, to which a person may return
  open({ view: "pair", system: system.number, q: query, doc: document, tab, k });
}

/** A button with a document's title that opens it with a query in a system. */
export function documentLink(system, query, document) {
  return make("button", { type: "button", class: "link", title: document.id,
    onclick: () => openPair(system, query, document.id) }, words("bdi", document.title || document.id));
}

/** Calls `act` once no further call has come for some milliseconds. */
export function delayed(milliseconds, act) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(act, milliseconds);
  };
}

/** The server's answer to one question; its one line of an error is thrown. */
export async function ask(verb, body = {}) {
  const settings = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const reply = await fetch(`api/${verb}`, settings).catch(() => {
    throw new Error("the explorer's server does not reply: is `python -m analysis.explore` still running?");
  });
  const told = await reply.json();
  if (!reply.ok) throw new Error(told.error);
  return told;
}

/** Part of the page that the server fills: text says that it is busy or has failed. */
export class Panel {
  constructor(attributes = {}) {
    this.status = make("p", { class: "status", role: "status" });
    this.body = make("div", { class: "panel-body" });
    this.element = make("section", attributes, this.status, this.body);
  }

  /** Asks one question, or several, unless they were asked last; `draw(...answers)`, unless others are asked meanwhile. */
  async fill(busy, verb, questions, draw) {
    const key = JSON.stringify(questions);
    if (this.asked === key) return;
    this.say(busy);
    this.asked = key;
    this.element.setAttribute("aria-busy", "true");
    try {
      const told = await Promise.all([questions].flat().map((one) => ask(verb, one)));
      if (this.asked !== key) return;
      this.say("");
      this.asked = key;
      draw(...told);
    } catch (error) {
      if (this.asked === key) this.clear(error.message, "status error"); // what was drawn belongs to another question
    }
  }

  /** Removes what was drawn; `message` says why there is nothing to show. */
  clear(message = "", kind = "status") {
    this.say(message, kind);
    this.body.replaceChildren();
  }

  say(message, kind = "status") {
    this.asked = null;
    this.status.className = kind;
    this.status.textContent = message;
    this.element.removeAttribute("aria-busy");
  }
}
