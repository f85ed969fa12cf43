/** Where a person is, kept in the address after "#": a link reopens it, back and forward work. */

let listener = () => {};

/** The state that the address names: texts by key; a key that is not there is undefined. */
export function read() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** The address of a state; what is null, undefined or "" is left out. */
export function address(state) {
  const kept = Object.entries(state).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return `#${new URLSearchParams(kept)}`;
}

/** Shows another state, to which "back" leads from the next one. */
export function open(state) {
  if (address(state) !== location.hash) history.pushState(null, "", address(state));
  listener(read(), true);
}

/** Changes part of the state, without a step of its own for "back" (an edit, a switch). */
export function change(changes) {
  history.replaceState(null, "", address({ ...read(), ...changes }));
}

/** Calls `show(state, opened)` with the state now and whenever it is another; `opened`: not by "back" or a link. */
export function follow(show) {
  listener = show;
  window.addEventListener("popstate", () => show(read(), false));
  show(read(), false);
}

/** The system that a state names, else the first that aligns tokens. */
export function systemOf(systems, state) {
  const named = systems.find((system) => `${system.number}` === state.system);
  return named ?? systems.find((system) => system.alignable) ?? systems[0];
}
