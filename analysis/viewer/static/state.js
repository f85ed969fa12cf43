/** Where a person is, kept in the address after "#": a link reopens it, back and forward work. */

import { make, words } from "./viewer.js";

let listener = () => {};

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
  if (address(state) !== location.hash) history.pushState(null, "", address(state));
  listener(read(), true);
}

/** Shows a state in the place of the empty one that the page began with. */
export function begin(state) {
  history.replaceState(null, "", address(state));
  listener(read(), false);
}

/** Changes part of the state without a step of its own for "back": an edit, a switch. */
export function change(changes) {
  history.replaceState(null, "", address({ ...read(), ...changes }));
}

/** Calls `show(state, opened)` with the state now and whenever it is another; `opened`: not by "back" or a link. */
export function follow(show) {
  listener = show;
  addEventListener("popstate", () => show(read(), false));
  show(read(), false);
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
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(act, milliseconds, ...given);
  };
}
