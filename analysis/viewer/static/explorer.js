/** The explorer's page: its views, and which of them the address asks for. */

import { CompareView, PairView } from "./pair.js";
import { SearchView } from "./search.js";
import { ask, open, read } from "./state.js";
import { button, explain } from "./viewer.js";

const VIEWS = { search: ["Search", SearchView], pair: ["Align two texts", PairView], compare: ["Compare", CompareView] };
const TEXTS = ["system", "q", "doc", "title", "text", "edited"]; // what another view takes over

let shownView = null;

async function start() {
  const content = document.getElementById("content"), loading = document.getElementById("loading");
  const about = await ask("about").catch((error) => {
    loading.textContent = error.message;
    loading.classList.add("error");
    throw error;
  });
  explain(about.glossary);
  document.getElementById("collection").textContent = `${about.collection}, ${about.documents.toLocaleString("en")} documents`;
  const views = Object.fromEntries(Object.entries(VIEWS).map(([name, [, View]]) => [name, new View(about)]));
  const tabs = Object.entries(VIEWS).map(([name, [label]]) => button(label, () => turnTo(name), { "data-view": name }));
  document.getElementById("views").append(...tabs);
  content.replaceChildren(...Object.values(views).map((view) => view.element));
  const show = () => {
    const state = read(), name = state.view in views ? state.view : "search";
    for (const tab of tabs) tab.setAttribute("aria-current", tab.dataset.view === name ? "page" : "false");
    for (const [other, view] of Object.entries(views)) view.element.hidden = other !== name;
    views[name].show(state);
    document.title = `${state.q ?? VIEWS[name][0]} – gr-mvdr explorer`;
    if (shownView && shownView !== name) content.focus(); // what was clicked is hidden now
    shownView = name;
  };
  addEventListener("hashchange", show);
  show();
}

/** Another view, with the texts at hand; the same one begins again with the query alone. */
function turnTo(view) {
  const state = read(), { system, q } = state;
  const kept = view === shownView ? { system, q } : Object.fromEntries(TEXTS.map((key) => [key, state[key]]));
  if (view === "search") open({ view, q });
  else open({ view, ...kept, ...(view === "compare" ? { q2: q } : {}) });
}

start();
