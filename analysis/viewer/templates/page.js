"use strict";
/* Every page: folds that open for links and for printing, and the explanations of words. */
(() => {
  const folds = () => [...document.querySelectorAll("details")];

  /** What a link points to is shown, whatever it is folded in. */
  function reveal() {
    let place = "";
    try { place = decodeURIComponent(location.hash.slice(1)); } catch { return; }
    const target = place && document.getElementById(place);
    if (!target) return;
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    target.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  document.addEventListener("click", (event) => {
    if (event.target.closest('a[href^="#"]')) setTimeout(reveal); // the same link again
  });

  /** On paper nothing can be opened. */
  let closed = [];
  function print(begins) {
    if (begins) {
      const found = folds().filter((fold) => !fold.open);
      if (!closed.length) closed = found;
      for (const fold of found) fold.open = true;
    } else {
      for (const fold of closed) fold.open = false;
      closed = [];
    }
  }
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  matchMedia("print").addEventListener("change", (event) => print(event.matches));

  const unfold = document.querySelector("[data-unfold]");
  unfold.hidden = false;
  unfold.addEventListener("click", () => {
    const open = unfold.textContent === "Unfold all";
    for (const fold of document.querySelectorAll(".fold")) fold.open = open;
    unfold.textContent = open ? "Fold all" : "Unfold all";
  });

  const explained = new Map([...document.querySelectorAll(".words dt")]
    .map((term) => [term.textContent, term.nextElementSibling.textContent]));
  const tip = document.createElement("div");
  Object.assign(tip, { className: "tip", id: "tip", hidden: true });
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);
  let shown = null;

  function hide() {
    shown?.removeAttribute("aria-describedby");
    shown = null;
    tip.hidden = true;
  }

  function show(place, term) {
    const text = explained.get(term.dataset.term);
    if (!text) return;
    hide();
    tip.textContent = text;
    tip.hidden = false;
    shown = place;
    place.setAttribute("aria-describedby", "tip");
    const box = term.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const below = box.bottom + 6 + own.height < innerHeight || box.top < own.height + 6;
    tip.style.left = `${Math.max(8, Math.min(box.left, document.documentElement.clientWidth - own.width - 8))}px`;
    tip.style.top = `${below ? box.bottom + 6 : box.top - own.height - 6}px`;
  }

  /* A heading that folds is one stop of the keyboard, not two. */
  for (const term of document.querySelectorAll("summary .term")) term.removeAttribute("tabindex");
  const find = (element) => element.closest(".term") ?? (element.matches("summary") ? element.querySelector(".term") : null);
  for (const [begin, end] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
    document.addEventListener(begin, (event) => {
      const term = event.target instanceof Element && (begin === "focusin" ? find(event.target) : event.target.closest(".term"));
      if (term) show(event.target.closest("summary") ?? term, term);
    });
    document.addEventListener(end, hide);
  }
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", hide, true);
  reveal();
})();
