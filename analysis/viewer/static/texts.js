/** The texts of a pair, edited in place; those of a document come from the collection. */

import { ask } from "./api.js";
import { button, delayed, labelled, make } from "./elements.js";
import { change, read } from "./state.js";

const PAUSE = 350; // milliseconds without a key before an edit is sent

export class Texts {
  /** `mark` ends the keys of the state that hold these texts ("" or "2"); `edited()` is called after an edit. */
  constructor(edited, { mark = "", name = "" } = {}) {
    [this.edited, this.mark] = [edited, mark];
    this.pending = {};
    this.later = delayed(PAUSE, () => this.send());
    const area = (rows, oninput) => make("textarea", { rows, dir: "auto", spellcheck: "false", oninput });
    const ofDocument = () => this.typed({ title: this.title.value, text: this.text.value, edited: 1 });
    this.query = area(2, () => this.typed({ q: this.query.value }));
    this.title = make("input", { type: "text", dir: "auto", spellcheck: "false", autocomplete: "off", oninput: ofDocument });
    this.text = area(4, ofDocument);
    this.note = make("p", { class: "note small", role: "status" });
    this.element = make("div", { class: "texts" }, make("div", {}, labelled(`Query${name}`, this.query), this.note),
      make("div", {}, labelled(`Title${name}`, this.title), labelled(`Document${name}`, this.text)));
  }

  typed(part) {
    Object.assign(this.pending, part);
    this.later();
  }

  send() {
    if (this.doc && "q" in this.pending) this.keepOriginal();
    const marked = Object.entries(this.pending).map(([key, value]) => [key + this.mark, value]);
    this.pending = {};
    change(Object.fromEntries(marked));
    this.edited();
  }

  /** The query as it was opened stays in the address, to tell what an edit changed. */
  keepOriginal() {
    const state = read(), original = state[`from${this.mark}`] ?? state[`q${this.mark}`];
    this.pending.from = original === this.pending.q ? null : original;
  }

  /** Fills the fields from the state; a document's own text is fetched. */
  show(state) {
    const [q, doc, title, text, edited] = ["q", "doc", "title", "text", "edited"].map((key) => state[key + this.mark]);
    this.doc = doc;
    this.isEdited = Boolean(edited) || !doc;
    set(this.query, q ?? "");
    if (this.isEdited) this.fill(title ?? "", text ?? "");
    else if (this.loaded !== doc) this.fetch(doc);
    this.say();
  }

  async fetch(doc) {
    this.loaded = doc;
    this.fill("", "");
    try {
      const found = await ask(`document?${new URLSearchParams({ id: doc })}`);
      if (this.loaded === doc && !this.isEdited) this.fill(found.title, found.text);
    } catch (error) {
      this.note.textContent = error.message;
    }
  }

  fill(title, text) {
    if (this.isEdited) this.loaded = undefined;
    set(this.title, title);
    set(this.text, text);
  }

  undo() {
    this.pending = { title: null, text: null, edited: null };
    this.send();
    this.text.focus();
  }

  say() {
    if (!this.doc) this.note.textContent = "Scored as you type.";
    else if (this.isEdited) {
      const undo = button("Back to the document's own text", () => this.undo(), { class: "link" });
      this.note.replaceChildren(`This is ${this.doc} as you edited it. `, undo);
    } else this.note.textContent = "Edit query or document here: it is scored as you type.";
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
