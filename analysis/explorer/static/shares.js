/** What each token, word, n-gram or docid token gave to a score; the shares sum to it. */

import { foldedBars } from "./bars.js";
import { make } from "./elements.js";
import { term } from "./glossary.js";
import { shown } from "./numbers.js";

const TOLERANCE = 1e-4; // of the score: what rounding of many shares may leave

/** The section about one pair's shares. */
export function sharesOf(pair, system) {
  const named = (tokens, values) => tokens.map((text, place) => ({ text, value: values[place] }));
  return make("section", { class: "shares", "aria-label": "Shares of the score" },
    make("h3", {}, "What each ", term(system.shares_of), " gives to the ", term("score")),
    pair.shares.length ? foldedBars(pair.shares) : make("p", { class: "quiet" }, "Nothing in this pair has a share."),
    total(pair.shares_sum, pair.score, "score", pair.score_name),
    pair.note ? make("p", { class: "quiet small" }, pair.note) : null,
    folded("Relevance by query token", named(pair.query_tokens, pair.query_shares), pair),
    folded("Relevance by document token", named(pair.document_tokens, pair.document_shares), pair));
}

function folded(heading, shares, pair) {
  const sum = shares.reduce((before, share) => before + share.value, 0);
  return make("details", {}, make("summary", {}, heading),
    make("p", { class: "quiet small" }, term("Relevance"), " is Σ S·A / Z over all cells of the matrix, here with ",
      term("Z", "normaliser"), ` = ${shown(pair.normaliser)}.`),
    foldedBars(shares), total(sum, pair.relevance, "relevance"));
}

function total(sum, whole, name, what) {
  const difference = Math.abs(sum - whole);
  const equal = difference <= TOLERANCE * Math.max(1, Math.abs(whole));
  return make("p", { class: "total" }, "Sum of the shares ", make("b", { class: "sum" }, shown(sum)), `, ${name} `,
    make("b", { class: "whole" }, shown(whole)), what ? ` (${what})` : "",
    equal ? ": equal." : `: they differ by ${shown(difference)}.`);
}
