/** What each token, word, n-gram or docid token gave to a score; the shares sum to it. */

import { foldedBars } from "./bars.js";
import { make } from "./elements.js";
import { term } from "./glossary.js";
import { shown } from "./numbers.js";

const TOLERANCE = 1e-4; // of the score: what rounding of many shares may leave

/** Shares with their sum, and the score that it makes. */
export function shareList(shares, score, part, where = "", sum = add(shares)) {
  return make("section", { "aria-label": `Shares of the score ${where}` },
    make("h3", {}, "What each ", term(part), " gives to the ", term("score"), ` ${where}`),
    shares.length ? foldedBars(shares) : make("p", { class: "quiet" }, "Nothing here has a share."),
    total(sum, score, "score"));
}

/** What the shares of a given pair belong to: n-grams are what a search finds, a pair has all its tokens. */
export function partOf(system) {
  return system.shares_of === "n-gram" ? "document token" : system.shares_of;
}

/** The section about one pair's shares. */
export function sharesOf(pair, system) {
  const named = (tokens, values) => tokens.map((text, place) => ({ text, value: values[place] }));
  return make("div", { class: "shares" }, shareList(pair.shares, pair.score, partOf(system), "", pair.shares_sum),
    pair.note ? make("p", { class: "quiet small" }, pair.note) : null,
    folded("Relevance by query token", named(pair.query_tokens, pair.query_shares), pair),
    folded("Relevance by document token", named(pair.document_tokens, pair.document_shares), pair));
}

function folded(heading, shares, pair) {
  return make("details", {}, make("summary", {}, heading),
    make("p", { class: "quiet small" }, term("Relevance"), " is Σ S·A / Z over all cells of the matrix, here with ",
      term("Z", "normaliser"), ` = ${shown(pair.normaliser)}.`),
    foldedBars(shares), total(add(shares), pair.relevance, "relevance"));
}

function total(sum, whole, name) {
  const difference = Math.abs(sum - whole);
  const equal = difference <= TOLERANCE * Math.max(1, Math.abs(whole));
  return make("p", { class: "total" }, "Sum of the shares ", make("b", { class: "sum" }, shown(sum)), `, ${name} `,
    make("b", { class: "whole" }, shown(whole)), equal ? ": equal." : `: they differ by ${shown(difference)}.`);
}

function add(shares) {
  return shares.reduce((sum, share) => sum + share.value, 0);
}
