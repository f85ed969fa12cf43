/** The explorer's page: its views, and which of them the address asks for. */

import { ask } from "./api.js";
import { CompareView } from "./compare.js";
import { button, make } from "./elements.js";
import { setGlossary } from "./glossary.js";
import { PairView } from "./pair.js";
import { linkButton } from "./save.js";
import { SearchView } from "./search.js";
import { follow, open, read } from "./state.js";

const VIEWS = { search: "Search", pair: "Align two texts", compare: "Compare" };
const TEXTS = ["system", "q", "known", "doc", "title", "text", "edited"]; // what another view takes over

let shownView = null;

async function start() {
  const content = document.getElementById("content");
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault(); // "#content" would be taken for a state
    content.focus();
  });
  let about;
  try {
    about = await ask("about");
  } catch (error) {
    const loading = document.getElementById("loading");
    loading.textContent = error.message;
    loading.classList.add("error");
    return;
  }
  for (const system of about.systems) system.paradigm = system.paradigm.replace(/[ -]/g, "_");
  setGlossary(about.glossary);
  const size = about.documents.toLocaleString("en");
  document.getElementById("collection").textContent = `${about.collection}, ${size} documents`;
  const views = { search: new SearchView(about), pair: new PairView(about), compare: new CompareView(about) };
  const tabs = Object.entries(VIEWS).map(([name, label]) => button(label, () => turnTo(name), { "data-view": name }));
  document.getElementById("views").append(...tabs);
  document.getElementById("link").append(linkButton());
  content.replaceChildren(...Object.values(views).map((view) => view.element));
  follow((state, opened) => show(views, tabs, state, opened));
}

function show(views, tabs, state, opened) {
  const name = state.view in views ? state.view : "search";
  for (const tab of tabs) tab.setAttribute("aria-current", tab.dataset.view === name ? "page" : "false");
  for (const [other, view] of Object.entries(views)) view.element.hidden = other !== name;
  views[name].show(state);
  document.title = `${views[name].title(state)} – gr-mvdr explorer`;
  if (opened && shownView !== name) {
    document.getElementById("content").focus({ preventScroll: true }); // what was clicked is hidden now
    window.scrollTo(0, 0);
  }
  shownView = name;
}

/** Another view, with the texts at hand; the same one again begins with the query alone. */
function turnTo(view) {
  const { system, q, known } = read();
  const state = view === shownView ? { system, q, known } : read();
  const kept = Object.fromEntries(TEXTS.map((key) => [key, state[key]]));
  if (view === "search") open({ view, q: state.q, known: state.known });
  else open({ view, ...kept, ...(view === "compare" ? second(state) : {}) });
}

/** The other side of a comparison: its own query, else the first side's. */
function second({ q, known, q2, known2, doc2 }) {
  return q2 === undefined ? { q2: q, known2: known, doc2 } : { q2, known2, doc2 };
}

start();
