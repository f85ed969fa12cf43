/** The texts of a pair, edited in place; those of a document come from the collection. */

import { ask } from "./api.js";
import { change, delayed } from "./state.js";
import { button, labelled, make } from "./viewer.js";

const PAUSE = 350; // milliseconds without a key before an edit is sent

export class Texts {
  /** `mark` ends the keys of the state that hold these texts ("" or "2"); `edited()` is called after an edit. */
  constructor(edited, { mark = "", name = "" } = {}) {
    Object.assign(this, { edited, mark, pending: {} });
    this.later = delayed(PAUSE, () => this.send());
    const area = (rows, oninput) => make("textarea", { rows, dir: "auto", spellcheck: "false", oninput });
    const ofDocument = () => this.type({ title: this.title.value, text: this.text.value, edited: 1 });
    this.query = area(2, () => this.type({ q: this.query.value }));
    this.title = make("input", { type: "text", dir: "auto", spellcheck: "false", autocomplete: "off", oninput: ofDocument });
    this.text = area(4, ofDocument);
    this.note = make("p", { class: "note small", role: "status" });
    this.element = make("div", { class: "texts" }, make("div", {}, labelled(`Query${name}`, this.query), this.note),
      make("div", {}, labelled(`Title${name}`, this.title), labelled(`Document${name}`, this.text)));
  }

  type(part) {
    Object.assign(this.pending, part);
    this.later();
  }

  send() {
    const marked = Object.entries(this.pending).map(([key, value]) => [key + this.mark, value]);
    this.pending = {};
    change(Object.fromEntries(marked));
    this.edited();
  }

  /** Fills the fields from the state; a document's own text is fetched. */
  show(state) {
    const [q, doc, title, text, edited] = ["q", "doc", "title", "text", "edited"].map((key) => state[key + this.mark]);
    set(this.query, q ?? "");
    if (doc && !edited) this.fetch(doc);
    else {
      this.loaded = undefined;
      this.fill(title ?? "", text ?? "");
    }
    const undo = button("Back to the document's own text", () => this.undo(), { class: "link" });
    this.note.replaceChildren(...(doc && edited ? [`This is ${doc} as you edited it. `, undo] : ["Edit the texts: they are scored as you type."]));
  }

  async fetch(doc) {
    if (this.loaded === doc) return;
    this.loaded = doc;
    this.fill("", "");
    const told = await ask("document", { id: doc }).catch((error) => ({ title: "", text: error.message }));
    if (this.loaded === doc) this.fill(told.title, told.text);
  }

  fill(title, text) {
    set(this.title, title);
    set(this.text, text);
  }

  undo() {
    this.pending = { title: null, text: null, edited: null };
    this.send();
    this.text.focus();
  }
}

/** What the server is asked about: the document of a state, by its id or as text. */
export function documentOf(state, mark = "") {
  const [doc, title, text, edited] = ["doc", "title", "text", "edited"].map((key) => state[key + mark]);
  return doc && !edited ? { id: doc } : { title: title ?? "", text: text ?? "" };
}

/** Whether a state names a query and a document. */
export function complete(state, mark = "") {
  const document = documentOf(state, mark);
  return Boolean(state[`q${mark}`]?.trim() && (document.id || document.text.trim()));
}

function set(field, value) {
  if (field.value !== value) field.value = value; // else the cursor would jump while a person types
}
