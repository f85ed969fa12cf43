"""(Query, document) pairs as pages show them: their tokens and alignments as JSON, and the cases.

Cases are pairs in one or several finished runs. Everything about them is read from the runs'
folders: alignment stores, `retrieve.trec` and `best_documents.json`. No model is needed.
"""

import base64
import json
import random
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from statistics import fmean
from typing import Any, NamedTuple

import torch
from markupsafe import Markup
from torch import Tensor

from analysis.questions.alignment_store import AlignmentStore
from analysis.questions.best_documents import FILE
from analysis.runs.run_folder import Run, read_kept
from analysis.viewer.directed_alignment import DIRECTIONS, directed_alignment
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.passages import name_document
from gr_mvdr.relevance import PairAlignment, divide

LEVELS = 2**16 - 1  # steps from a matrix's smallest value to its largest
DIGITS = 6  # significant digits of a number in JSON: more than a page shows
NOTE = (
    "The relevance (Eq. 1) is read off one layer's cross-attention and is not what the system "
    "ranks by: the score comes through all paths of the decoder (gr_as_mvdr §8)."
)
Pair = tuple[str, str]
# The page opens with the first group that has a case: failures tell most about a system.
GROUPS = ("disagreement", "worst", "best", "random")


def describe_pair(
    layers: Sequence[PairAlignment],
    paradigm: str,
    strings: Callable[[list[int]], Sequence[str]],
    special: Collection[int],
    every: bool = True,
) -> dict[str, Any]:
    """Describes a pair by its S, A, S·A / Z and directed weights in every layer and head.

    Args:
        layers: each with B = 1 and no padding.
        paradigm: of the system.
        strings: turns token ids into strings.
        special: ids of special tokens.
        every: False leaves out S, and S·A of single heads, which make a file large.

    Returns:
        "query", "document": {tokens, special, adds}; `adds` is what each token adds to the
        relevance, layer by layer. "matrices": name → `pack_matrices` of L matrices, or of
        L · (1 + H): for each layer all heads together, then every head.
    """
    products = [_product(layer) for layer in layers]
    matrices = {"alignment": [_with_mean(layer.alignment[0]) for layer in layers]}
    matrices["product"] = products if every else [heads[:1] for heads in products]
    for direction in DIRECTIONS:
        matrices[direction] = [directed_alignment(x, paradigm, direction) for x in layers]
    if every:
        matrices["similarity"] = [_with_mean(layer.similarity[0]) for layer in layers]
    sides = {
        side: {
            "tokens": list(strings(ids)),
            "special": [number in special for number in ids],
            "adds": [heads[0].sum(axis).tolist() for heads in products],
        }
        for axis, side in enumerate(("query", "document"))
        for ids in [getattr(layers[-1], f"{side}_ids")[0].tolist()]
    }
    return {
        **sides,
        "layers": len(layers),
        "heads": layers[-1].alignment.shape[1],
        "score": layers[-1].score.item(),
        "relevance": [layer.relevance.item() for layer in layers],
        "note": NOTE if paradigm == "generative" else "",
        "matrices": {name: pack_matrices(torch.cat(parts)) for name, parts in matrices.items()},
    }


def _with_mean(heads: Tensor) -> Tensor:
    """Returns (1, M, N) for one head, (1 + H, M, N) for several: their mean, then each head."""
    return heads if len(heads) == 1 else torch.cat([heads.mean(0, keepdim=True), heads])


def _product(layer: PairAlignment) -> Tensor:
    """Returns S·A / Z in the shape of `_with_mean`, with the heads' sum instead of their mean."""
    terms = layer.similarity * layer.alignment
    heads = divide(terms, layer.normaliser[:, None, None, None])[0]
    return heads if len(heads) == 1 else torch.cat([heads.sum(0, keepdim=True), heads])


def pack_matrices(matrices: Tensor) -> dict[str, Any]:
    """Compresses matrices: 16 bits a value, 0 for a matrix's smallest and 65,535 for its largest.

    Args:
        matrices: (K, M, N), any float dtype.

    Returns:
        "low", "high": K numbers each; "data": K·M·N little-endian numbers of 16 bits, row by row,
        as base64 of a zlib stream.
    """
    values = matrices.double()
    low, high = values.flatten(1).amin(1), values.flatten(1).amax(1)
    span = (high - low)[:, None, None].expand_as(values)
    levels = LEVELS * divide(values - low[:, None, None], span)  # all 0 if all values are equal
    content = zlib.compress(levels.round().numpy().astype("<u2").tobytes())
    data = base64.b64encode(content).decode()
    return {"low": low.tolist(), "high": high.tolist(), "data": data}


def to_json(content: Any) -> str:
    """Returns JSON with six significant digits; null for a number that is not finite. A named tuple
    becomes an object.
    """
    return json.dumps(_rounded(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if isfinite(value) else None
    if hasattr(value, "_asdict"):  # a named tuple
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [*map(_rounded, value)] if isinstance(value, list | tuple) else value


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
        for name in (pair[1], name_document(pair[1])):  # of a document, or of its passage
            if name in (ranked := self.ranking.documents(pair[0])):
                return ranked.index(name) + 1
        return None

    def reciprocal_rank(self, pair: Pair) -> float:
        rank = self.rank(pair)
        return 1 / rank if rank else 0.0

    def score(self, pair: Pair) -> float | None:
        """Returns the document's score in that ranking; None if it is missing."""
        scores = self.ranking.scores(pair[0])
        return scores.get(pair[1], scores.get(name_document(pair[1])))


def read_ranking(run: Run, name: str = "retrieve.trec") -> Ranking:
    """Reads a ranking of a run; it is empty if the run has none of this name."""
    return Ranking.read(run.path / name, run.path) if (run.path / name).exists() else Ranking({})


def open_runs(runs: Sequence[tuple[Run, str]]) -> tuple[list[AlignedRun], list[str]]:
    """Opens the alignments of labelled runs.

    Returns:
        The runs that have alignments (a cross-encoder and a record have none), and a line for each
        damaged file: a page is made without it.
    """
    opened, notes = [], []
    for run, label in runs:
        folder = run.path / "alignments"
        if not folder.is_dir():
            continue
        try:
            ranking, kept = read_ranking(run), read_kept(run.path, FILE)
            opened.append(AlignedRun(label, AlignmentStore(folder), ranking, kept))
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
