/** Save what is shown: as a picture that the server draws, or as a link that reopens it. */

import { askFile } from "./api.js";
import { button, make } from "./elements.js";

/** Buttons that save a picture; `view()` gives /api/figure's arguments, `saved()` what to say then. */
export function pictureButtons(view, saved) {
  const status = make("span", { class: "small", role: "status" });
  const save = async (format) => {
    status.classList.remove("error");
    status.textContent = "Drawing …";
    try {
      const [content, name] = await askFile("figure", { format, ...view() });
      download(content, name ?? `alignment.${format}`);
      status.textContent = saved();
    } catch (error) {
      status.classList.add("error");
      status.textContent = error.message;
    }
  };
  return make("div", { class: "save", role: "group", "aria-label": "Save the view" },
    ...["png", "pdf"].map((format) => button(`Save ${format.toUpperCase()}`, () => save(format))), status);
}

function download(content, name) {
  const link = make("a", { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Copies the address of what is shown; where the browser forbids it, the address is there to be copied. */
export function linkButton() {
  const status = make("span", { class: "small", role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      status.textContent = "Copied.";
    } catch {
      const field = make("input", { type: "text", readonly: true, value: location.href, "aria-label": "Link to this view" });
      status.replaceChildren(field);
      field.select();
    }
    setTimeout(() => status.textContent === "Copied." && (status.textContent = ""), 3000);
  };
  const title = "A link that reopens this view while the explorer runs";
  return make("span", { class: "copy" }, button("Copy link", copy, { title }), " ", status);
}
