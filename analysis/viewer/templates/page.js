/* Every page: folds that open for links and for printing, and the explanations of words. */
const folds = (selector = "details") => [...document.querySelectorAll(selector)];

/** Shows what the address points to, whatever it is folded in. */
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
const closed = new Set();
function print(begins) {
  for (const fold of begins ? folds("details:not([open])") : closed) {
    fold.open = begins;
    closed.add(fold);
  }
  if (!begins) closed.clear();
}
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
matchMedia("print").addEventListener("change", (event) => print(event.matches));

const unfold = document.querySelector("[data-unfold]");
unfold.hidden = false;
unfold.addEventListener("click", () => {
  const open = unfold.textContent === "Unfold all";
  for (const fold of folds(".fold")) fold.open = open;
  unfold.textContent = open ? "Fold all" : "Unfold all";
});

explain(Object.fromEntries([...document.querySelectorAll(".words dt")]
  .map((word) => [word.textContent, word.nextElementSibling.textContent])));
showExplanations();
reveal();
