"""Browsable cases: (query, document) pairs with their tokens and alignments in several systems.

Everything is read from the runs' folders: alignment stores, `retrieve.trec` and
`best_documents.json`. No model is needed.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from statistics import fmean
from typing import Any, NamedTuple

from markupsafe import Markup

from analysis.questions.alignment_store import AlignmentStore
from analysis.questions.best_documents import FILE
from analysis.runs.run_folder import Run, read_kept
from analysis.viewer.pair import describe_pair, to_json
from gr_mvdr.evaluation.ranking import Ranking

Pair = tuple[str, str]
# The page opens with the first group that has a case: failures tell most about a system.
GROUPS = ("disagreement", "worst", "best", "random")


class Candidate(NamedTuple):
    """A (query id, document id) pair and how searches ranked it.

    Attributes:
        success: the document's mean reciprocal rank; None without a ranking.
        score: the document's score in the first ranking; breaks ties.
        difference: the largest reciprocal rank of several systems minus the smallest.
    """

    pair: Pair
    success: float | None
    score: float = -inf
    difference: float = 0.0


def choose_cases(candidates: Sequence[Candidate], each: int = 4, seed: int = 0) -> dict[Pair, str]:
    """Chooses pairs; returns pair → its group, in the order of `GROUPS`.

    Disagreements, the scarcest, are chosen first; then the best and the worst by reciprocal rank
    (ties by score, then by ids); random pairs are drawn from the rest.

    Args:
        each: the most pairs of a group; also at most a third of the candidates, rounded up.
        seed: the random seed of the random pairs.
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
        ranking: the ranking of its search, which is empty if it was not kept.
        best: query id → what `BestDocuments` kept of it.
    """

    label: str
    store: AlignmentStore
    ranking: Ranking
    best: dict[str, dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> dict[Pair, int]:
        """Pair → its number in the store."""
        return {tuple(pair): number for number, pair in enumerate(self.store.pairs)}

    def rank(self, pair: Pair) -> int | None:
        """Returns the document's rank in the run's ranking of the query; None if it is missing."""
        ranked = self.ranking.documents(pair[0])
        return ranked.index(pair[1]) + 1 if pair[1] in ranked else None

    def reciprocal_rank(self, pair: Pair) -> float:
        rank = self.rank(pair)
        return 1 / rank if rank else 0.0

    def score(self, pair: Pair) -> float | None:
        """Returns the document's score in that ranking; None if it is missing."""
        return self.ranking.scores(pair[0]).get(pair[1])


def open_runs(runs: Sequence[tuple[Run, str]]) -> tuple[list[AlignedRun], list[str]]:
    """Opens the alignments of labelled runs.

    Returns:
        The runs that have alignments (a cross-encoder and a record have none), and a line for each
        damaged file: a page is made without it.
    """
    opened, notes = [], []
    for run, label in runs:
        folder, ranking = run.path / "alignments", run.path / "retrieve.trec"
        if not folder.is_dir():
            continue
        try:
            ranked = Ranking.read(ranking, run.path) if ranking.exists() else Ranking({})
            kept = read_kept(run.path, FILE)
            opened.append(AlignedRun(label, AlignmentStore(folder), ranked, kept))
        except (FileNotFoundError, ValueError) as error:
            notes.append(f"{label}: its alignments cannot be shown. {error}")
    return [run for run in opened if len(run.store)], notes


def embed_cases(runs: Sequence[AlignedRun]) -> Markup | None:
    """Returns the data of `templates/cases.html`; None without runs."""
    return embed_json(build_cases(runs)) if runs else None


def embed_json(content: dict[str, Any]) -> Markup:
    """Returns JSON that cannot end the script element around it, whatever its texts contain."""
    return Markup(to_json(content).replace("<", "\\u003c"))


def build_cases(runs: Sequence[AlignedRun], each: int = 4, seed: int = 0) -> dict[str, Any]:
    """Builds the cases of one or several runs on the same collection.

    Args:
        runs: the systems; cases are chosen from the pairs that all of them have, or from those of
            the first if they have none in common.
        each: the most cases of a group.
        seed: the random seed of the random cases.

    Returns:
        {"systems": [label], "cases": [{group, query, text, document, title, views, shown, best}]}.
        "views": system → `describe_pair`, with the document's "rank" and "search_score". "shown":
        the systems shown at first. "best": system → the documents kept from its search.
    """
    shared = set.intersection(*(set(run.numbers) for run in runs)) or set(runs[0].numbers)
    # Prefer queries whose best documents every run has kept.
    kept = {pair for pair in shared if all(not run.best or pair[0] in run.best for run in runs)}
    candidates = [_candidate(runs, pair) for pair in sorted(kept or shared)]
    cases = [
        {"group": group, "query": pair[0], "document": pair[1]} | _describe_case(runs, pair)
        for pair, group in choose_cases(candidates, each, seed).items()
    ]
    return {"systems": [run.label for run in runs], "cases": cases}


def _candidate(runs: Sequence[AlignedRun], pair: Pair) -> Candidate:
    holding = [run for run in runs if pair in run.numbers and run.ranking]
    if not holding:
        return Candidate(pair, None)
    places, score = [run.reciprocal_rank(pair) for run in holding], holding[0].score(pair)
    difference = max(places) - min(places)
    return Candidate(pair, fmean(places), -inf if score is None else score, difference)


def _describe_case(runs: Sequence[AlignedRun], pair: Pair) -> dict[str, Any]:
    query, document = pair
    holding = {number: run for number, run in enumerate(runs) if pair in run.numbers}
    best = {
        str(number): run.best[query]["documents"]
        for number, run in enumerate(runs)
        if query in run.best
    }
    views = {str(number): _view(run, pair) for number, run in holding.items()}
    words = next(iter(views.values()))["query"]
    # At first, the systems with the lowest and the highest rank are shown.
    ordered = sorted(holding, key=lambda number: holding[number].reciprocal_rank(pair))
    texts = [run.best[query]["text"] for run in runs if query in run.best]
    titles = [row["title"] for rows in best.values() for row in rows if row["id"] == document]
    return {
        "text": (texts or [_join(words["tokens"], words["special"])])[0] or query,
        "title": (titles or [""])[0],
        "views": views,
        "shown": sorted({ordered[0], ordered[-1]}),
        "best": best,
    }


def _join(tokens: Sequence[str], special: Sequence[bool]) -> str:
    """Restores a text from its tokens, for a text that was not kept."""
    words = [token for token, skip in zip(tokens, special, strict=True) if not skip]
    return "".join(words).replace("▁", " ").replace("Ġ", " ").strip()


def _view(run: AlignedRun, pair: Pair) -> dict[str, Any]:
    """Describes a pair in a system, with the document's rank and score in its search."""
    store = run.store
    layers, paradigm = store.explain(run.numbers[pair]).layers, store.description.paradigm
    strings = lambda ids: [store.strings.get(n, f"#{n}") for n in ids]  # noqa: E731
    described = describe_pair(layers, paradigm, strings, store.special, every=False)
    return described | {"rank": run.rank(pair), "search_score": run.score(pair)}
