"""Browsable cases: (query, document) pairs with their tokens and alignments in several systems.

Everything comes from what runs leave behind: their alignment stores, `retrieve.trec` and
`best_documents.json`. No model is needed.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple

from markupsafe import Markup

from analysis.alignment_store import AlignmentStore
from analysis.best_documents import read_best_documents
from analysis.runs.run_folder import Run
from analysis.viewer.pair import describe_pair, to_json
from gr_mvdr.evaluation.ranking import Ranking

Pair = tuple[str, str]
# The first that has a case opens the page: what tells most about a system is where it fails.
GROUPS = ("disagreement", "worst", "best", "random")


class Candidate(NamedTuple):
    """A (query id, document id) pair and what searches made of it.

    Attributes:
        success: the document's mean reciprocal rank; None without a ranking.
        score: the document's score in the first ranking; breaks ties.
        difference: between the largest and the smallest reciprocal rank of several systems.
    """

    pair: Pair
    success: float | None
    score: float = float("-inf")
    difference: float = 0.0


def choose_cases(candidates: Sequence[Candidate], each: int = 4, seed: int = 0) -> dict[Pair, str]:
    """Pairs and the group of each, in the order of `GROUPS`; no pair is in two groups.

    Disagreements, the scarcest, are chosen first; then the best and the worst by reciprocal rank
    (ties by score, then by ids); random ones are drawn from the rest.

    Args:
        each: the most pairs of a group; a handful of pairs is shared out evenly.
        seed: of the random ones.
    """
    each = min(each, -(-len(candidates) // 3))
    taken: dict[Pair, str] = {}

    def take(group: str, ordered: Iterable[Candidate]) -> None:
        fresh = [candidate.pair for candidate in ordered if candidate.pair not in taken]
        taken.update(dict.fromkeys(fresh[:each], group))

    differing = [candidate for candidate in candidates if candidate.difference]
    take("disagreement", sorted(differing, key=lambda c: (-c.difference, c.pair)))
    ranked = [candidate for candidate in candidates if candidate.success is not None]
    ranked.sort(key=lambda c: (-c.success, -c.score, c.pair))
    take("best", ranked)
    take("worst", reversed(ranked))
    rest = sorted(candidates)
    random.Random(seed).shuffle(rest)
    take("random", rest)
    return dict(sorted(taken.items(), key=lambda item: GROUPS.index(item[1])))


@dataclass
class AlignedRun:
    """A run whose alignments can be shown.

    Attributes:
        label: the system's name on the page.
        store: its alignments.
        ranking: of its search; None where it was not kept.
        best: of `read_best_documents`, by query id.
    """

    label: str
    store: AlignmentStore
    ranking: Ranking | None
    best: dict[str, dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> dict[Pair, int]:
        """Pair → its number in the store."""
        return {tuple(pair): number for number, pair in enumerate(self.store.pairs)}

    @property
    def paradigm(self) -> str:
        return self.store.description.paradigm

    def rank(self, pair: Pair) -> int | None:
        """The document's place in the run's ranking of the query; None where it is not there."""
        ranked = self.ranking.documents(pair[0]) if self.ranking else []
        return ranked.index(pair[1]) + 1 if pair[1] in ranked else None

    def reciprocal_rank(self, pair: Pair) -> float:
        rank = self.rank(pair)
        return 1 / rank if rank else 0.0

    def score(self, pair: Pair) -> float | None:
        """The document's score in that ranking."""
        return self.ranking.scores(pair[0]).get(pair[1]) if self.ranking else None


def open_runs(runs: Sequence[tuple[Run, str]]) -> tuple[list[AlignedRun], list[str]]:
    """Opens the alignments of runs with their labels.

    Returns:
        Those that have some (a cross-encoder has none), and a line for each whose alignments
        cannot be read: a damaged store costs a page its cases, no more.
    """
    opened, notes = [], []
    for run, label in runs:
        folder, ranking = run.path / "alignments", run.path / "retrieve.trec"
        if not folder.is_dir():
            continue
        try:
            ranked = Ranking.read(ranking, run.path) if ranking.exists() else None
            opened.append(AlignedRun(label, AlignmentStore(folder), ranked))
        except (FileNotFoundError, ValueError) as error:
            notes.append(f"{label}: its alignments cannot be shown. {error}")
            continue
        try:
            opened[-1].best = read_best_documents(run.path)
        except ValueError as error:
            notes.append(f"{label}: its best documents cannot be shown. {error}")
    return [run for run in opened if len(run.store)], notes


def embed_cases(runs: Sequence[AlignedRun], own: bool = False) -> Markup | None:
    """The data of `templates/cases.html`; None without runs. `own`: see `build_cases`."""
    return embed_json(build_cases(runs, own)) if runs else None


def embed_json(content: dict[str, Any]) -> Markup:
    """JSON that cannot end the script element around it, whatever the texts say."""
    return Markup(to_json(content).replace("<", "\\u003c"))


def build_cases(
    runs: Sequence[AlignedRun], own: bool = False, each: int = 4, seed: int = 0
) -> dict[str, Any]:
    """The cases of one or several runs over the same collection.

    Args:
        runs: the systems; the pairs that all of them share become cases, those of the first if
            they share none.
        own: the page is the first run's: its ranking says which pairs are the best and the worst,
            and it is always shown.
        each: the most cases of a group. seed: of the random ones.

    Returns:
        {"systems": [label], "cases": [{group, query, text, document, title, views, shown, best}]}.
        "views": system → `describe_pair`, with the document's "rank" and "search_score". "shown":
        the systems to begin with. "best": system → the kept documents of its search.
    """
    shared = set.intersection(*(set(run.numbers) for run in runs)) or set(runs[0].numbers)
    # Prefer queries whose best documents every run has kept.
    kept = {pair for pair in shared if all(not run.best or pair[0] in run.best for run in runs)}
    judges = runs[:1] if own else runs
    candidates = [_candidate(runs, judges, pair) for pair in sorted(kept or shared)]
    cases = [
        {"group": group, "query": pair[0], "document": pair[1]} | _describe_case(runs, pair, own)
        for pair, group in choose_cases(candidates, each, seed).items()
    ]
    return {"systems": [run.label for run in runs], "cases": cases}


def _candidate(runs: Sequence[AlignedRun], judges: Sequence[AlignedRun], pair: Pair) -> Candidate:
    holding = [run for run in runs if pair in run.numbers and run.ranking]
    places = [run.reciprocal_rank(pair) for run in holding]
    judging = [run for run in judges if run in holding]
    success = fmean(run.reciprocal_rank(pair) for run in judging) if judging else None
    score = judging[0].score(pair) if judging else None
    difference = max(places) - min(places) if places else 0.0
    return Candidate(pair, success, float("-inf") if score is None else score, difference)


def _describe_case(runs: Sequence[AlignedRun], pair: Pair, own: bool) -> dict[str, Any]:
    query, document = pair
    holding = {number: run for number, run in enumerate(runs) if pair in run.numbers}
    best = {
        str(number): [_with_file_score(run, query, row) for row in run.best[query]["documents"]]
        for number, run in enumerate(runs)
        if query in run.best
    }
    views = {str(number): _view(run, pair) for number, run in holding.items()}
    words = next(iter(views.values()))["query"]
    texts = [run.best[query]["text"] for run in runs if query in run.best]
    titles = [row["title"] for rows in best.values() for row in rows if row["id"] == document]
    return {
        "text": (texts or [_join(words["tokens"], words["special"])])[0] or query,
        "title": (titles or [""])[0],
        "views": views,
        "shown": _most_different(holding, pair, own),
        "best": best,
    }


def _with_file_score(run: AlignedRun, query: str, row: dict[str, Any]) -> dict[str, Any]:
    """A kept document with the score of `retrieve.trec`, where it is there."""
    score = run.score((query, row["id"]))
    return row if score is None else row | {"score": score}


def _join(tokens: Sequence[str], special: Sequence[bool]) -> str:
    """A text as its tokens tell it, where it was not kept."""
    words = [token for token, skip in zip(tokens, special, strict=True) if not skip]
    return "".join(words).replace("▁", " ").replace("Ġ", " ").strip()


def _most_different(holding: dict[int, AlignedRun], pair: Pair, own: bool) -> list[int]:
    """The two systems whose ranks of a document differ most, if possible of two paradigms."""
    first, *others = holding
    pairs = [(first, other) for other in others] if own else list(combinations(holding, 2))

    def difference(two: tuple[int, ...]) -> tuple[float, bool]:
        a, b = (holding[number] for number in two)
        return abs(a.reciprocal_rank(pair) - b.reciprocal_rank(pair)), a.paradigm != b.paradigm

    return list(max(pairs, key=difference)) if pairs else [first]


def _view(run: AlignedRun, pair: Pair) -> dict[str, Any]:
    """A pair in a system, with the document's rank and score in its search."""
    layers = run.store.explain(run.numbers[pair]).layers
    ids = {"query": layers[-1].query_ids, "document": layers[-1].document_ids}
    strings, special = run.store.strings, run.store.special
    texts = {
        side: ([strings.get(n, f"#{n}") for n in own], [n in special for n in own])
        for side, tokens in ids.items()
        for own in [tokens[0].tolist()]
    }
    described = describe_pair(layers, run.paradigm, texts, every=False)
    return described | {"rank": run.rank(pair), "search_score": run.score(pair)}
