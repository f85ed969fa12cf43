"""Browsable cases: (query, document) pairs with their tokens and alignments in several systems.

Everything comes from what runs leave behind: their alignment stores, the stores' vocabularies,
`retrieve.trec` and `best_documents.json`. No model is needed.
"""

import base64
import json
import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import isfinite
from statistics import fmean
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from analysis.alignment_store import AlignmentStore, TokenStrings, read_vocabulary
from analysis.best_documents import KeptDocument, KeptQuery, read_best_documents
from analysis.contribution import contributions
from analysis.exact_match import DIRECTIONS
from analysis.runs.run_folder import Run
from analysis.viewer.directed_alignment import TINY, directed_alignment, own_direction
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.options import TARGET
from gr_mvdr.relevance import PairAlignment, divide

Pair = tuple[str, str]
GROUPS = ("disagreement", "best", "worst", "random")
RANKING = "retrieve.trec"
OWN = "own"  # the alignment as the system uses it (Eq. 1), besides the directed ones
PRODUCT = "product"  # S·A / Z, what pairs of tokens add to the relevance
ZERO = 127  # the level of zero in a matrix of both signs
LEVELS = 255  # steps from a matrix's smallest weight to its largest
# What a paradigm's scores are made of, with the glossary's term.
PARTS = {
    "multi_vector": ("query tokens", "token"),
    "lexical": ("words", "lexical"),
    "generative": ("tokens of the identifier, with their log-probabilities", "docid"),
}


@dataclass(frozen=True)
class ScoreNames:
    """How pages speak of a system's scores.

    Attributes:
        parts: what they are made of, and the glossary's term for that.
        kinds: what the search's score and a pair's are called, where they are different numbers.
    """

    parts: tuple[str, str]
    kinds: tuple[str, ...] = ()


_SEAL = ScoreNames(
    ("n-gram keys, with their weights", "n-gram key"), ("evidence", "leak-free score")
)
# Systems whose search ranks by another number than they give a pair.
SCORE_NAMES = {
    "T5SEAL": _SEAL,
    "MultiViewSEAL": _SEAL,
    "SPLADE": ScoreNames(("terms of the vocabulary", "vocabulary term")),
    "QueryGenerator": ScoreNames(PARTS["lexical"], ("BM25", "query likelihood")),
}


@dataclass(frozen=True)
class Candidate:
    """A (query id, document id) pair and what searches made of it.

    Attributes:
        pair: its ids.
        success: the document's reciprocal rank, 0 where it was not found; the mean of several
            systems; None where nothing is known.
        score: the document's score in that ranking, −inf where it was not found; breaks ties.
        difference: between the reciprocal ranks of the systems that disagree most; None where
            there is one system alone.
    """

    pair: Pair
    success: float | None
    score: float = float("-inf")
    difference: float | None = None


def choose_cases(candidates: Sequence[Candidate], each: int = 4, seed: int = 0) -> dict[Pair, str]:
    """Pairs and the group of each, grouped in the order of `GROUPS`.

    No pair is in two groups. Disagreements, the scarcest, choose first; then best and worst by
    reciprocal rank (ties by score, then by ids); random ones are drawn from the rest. A handful of
    pairs is shared out evenly.

    Args:
        candidates: all pairs.
        each: pairs of a group at most.
        seed: of the random ones.
    """
    each = min(each, -(-len(candidates) // 3))
    taken: dict[Pair, str] = {}

    def take(group: str, ordered: Iterable[Candidate]) -> None:
        fresh = [candidate.pair for candidate in ordered if candidate.pair not in taken]
        taken.update(dict.fromkeys(fresh[:each], group))

    apart = [candidate for candidate in candidates if candidate.difference]
    take("disagreement", sorted(apart, key=lambda c: (-abs(c.difference), c.pair)))
    known = [candidate for candidate in candidates if candidate.success is not None]
    ranked = sorted(known, key=lambda c: (-c.success, -c.score, c.pair))
    take("best", ranked)
    take("worst", reversed(ranked))
    shuffled = sorted(candidates, key=lambda c: c.pair)
    random.Random(seed).shuffle(shuffled)
    take("random", shuffled)
    return dict(sorted(taken.items(), key=lambda item: GROUPS.index(item[1])))


@dataclass
class AlignedRun:
    """A run whose alignments can be shown.

    Attributes:
        label: the system's name on the page.
        store: its alignments. vocabulary: what their tokens read as.
        ranking: what its search found; None where it was not kept.
        best: query id → its best documents, where they were kept.
        names: how its scores are called.
    """

    label: str
    store: AlignmentStore
    vocabulary: TokenStrings
    ranking: Ranking | None
    best: dict[str, KeptQuery] = field(default_factory=dict)
    names: ScoreNames | None = None

    @cached_property
    def numbers(self) -> dict[Pair, int]:
        """Pair → its number in the store."""
        return {tuple(pair): number for number, pair in enumerate(self.store.pairs)}

    @property
    def paradigm(self) -> str:
        return self.store.description.paradigm

    def rank(self, pair: Pair) -> int | None:
        """The document's place in the run's ranking of the query; None where it is not there."""
        found = self.ranking.documents(pair[0]) if self.ranking else []
        return found.index(pair[1]) + 1 if pair[1] in found else None

    def reciprocal_rank(self, pair: Pair) -> float:
        rank = self.rank(pair)
        return 1 / rank if rank else 0.0

    def score(self, pair: Pair) -> float:
        found = self.ranking.scores(pair[0]) if self.ranking else {}
        return found.get(pair[1], float("-inf"))


def open_runs(runs: Sequence[tuple[Run, str]]) -> tuple[list[AlignedRun], list[str]]:
    """Opens the alignments of runs with their labels.

    Returns:
        Those that have some (a cross-encoder has none), and a line for each whose alignments
        cannot be read: a damaged store costs a page its cases, no more.
    """
    opened, notes = [], []
    for run, label in runs:
        folder, ranking = run.path / "alignments", run.path / RANKING
        if not folder.is_dir():
            continue
        try:
            found = Ranking.read(ranking, run.path) if ranking.exists() else None
            store, vocabulary = AlignmentStore(folder), read_vocabulary(folder)
            opened.append(AlignedRun(label, store, vocabulary, found, names=_score_names(run)))
        except (FileNotFoundError, ValueError) as error:
            notes.append(f"{label}: its alignments cannot be shown. {error}")
            continue
        try:
            opened[-1].best = read_best_documents(run.path)
        except ValueError as error:
            notes.append(f"{label}: its best documents cannot be shown. {error}")
    return [run for run in opened if len(run.store)], notes


def _score_names(run: Run) -> ScoreNames | None:
    model = run.config.get("model")
    target = model.get(TARGET) if isinstance(model, dict) else None
    return SCORE_NAMES.get(str(target).rpartition(".")[2])


def embed_cases(runs: Sequence[AlignedRun], judged: int | None = None) -> Markup | None:
    """The data of `templates/cases.html`, safe within a script element; None without runs.

    Args:
        runs: over the same collection. judged: see `build_cases`.
    """
    return embed_json(build_cases(runs, judged)) if runs else None


def embed_json(data: dict) -> Markup:
    """JSON that cannot end the script element around it, whatever the texts say."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def build_cases(
    runs: Sequence[AlignedRun], judged: int | None = None, each: int = 4, seed: int = 0
) -> dict[str, Any]:
    """The cases of one or several runs over the same collection, ready for JSON.

    Args:
        runs: the systems; all pairs that they share can become cases, those of the first if they
            share none.
        judged: by whose ranking pairs are the best or the worst: this number of first runs, by
            default all.
        each: cases of a group. seed: of the random ones.

    Returns:
        {"systems": [{label, paradigm, direction, parts, kinds, tokens}], "cases": [{group, query,
        text, document, title, views, best}]}; a view holds tokens as places in the system's
        `tokens`, and for each way of reading the matrices of `pack_matrices`, layer by layer: the
        mean of the heads and then, if there are several, every head; of "product" the sum of the
        heads alone. Of a system that is not generative, "own" is its A itself. `best` has documents
        by system.
    """
    shared = set.intersection(*(set(run.numbers) for run in runs)) or set(runs[0].numbers)
    # Rather queries whose best documents every run has kept, if it has any.
    kept = {pair for pair in shared if all(not run.best or pair[0] in run.best for run in runs)}
    candidates = [_candidate(runs, pair, judged) for pair in sorted(kept or shared)]
    places: list[dict[int, int]] = [{} for _ in runs]  # of each system: token id → place
    cases = []
    for pair, group in choose_cases(candidates, each, seed).items():
        views = {
            str(number): _view(run, places[number], pair)
            for number, run in enumerate(runs)
            if pair in run.numbers
        }
        case = {"group": group, "query": pair[0], "document": pair[1], "views": views}
        cases.append(case | _describe(runs, pair))
    systems = [_system(run, used) for run, used in zip(runs, places, strict=True)]
    return {"systems": systems, "cases": cases}


def _system(run: AlignedRun, used: Iterable[int]) -> dict[str, Any]:
    """What a page says of a run; `used`: the token ids of its views, in the order of places."""
    return {
        "label": run.label,
        "paradigm": run.paradigm.replace("_", " "),
        "direction": _own_reading(run.paradigm),
        **asdict(run.names or ScoreNames(PARTS[run.paradigm])),
        "tokens": [run.vocabulary.token(number) for number in used],
    }


def _describe(runs: Sequence[AlignedRun], pair: Pair) -> dict[str, Any]:
    """What is known of a case's texts, and what each system found for the query."""
    query, document = pair
    kept = {str(n): run.best[query] for n, run in enumerate(runs) if query in run.best}
    best = {
        number: [_show_document(runs[int(number)], query, row) for row in one.documents]
        for number, one in kept.items()
    }
    titles = [row["title"] for rows in best.values() for row in rows if row["id"] == document]
    texts = [one.text for one in kept.values()]
    return {"text": next(iter(texts), ""), "title": next(iter(titles), ""), "best": best}


def _show_document(run: AlignedRun, query: str, row: KeptDocument) -> dict[str, Any]:
    score = run.score((query, row.id))
    return {
        **{"id": row.id, "title": row.title, "snippet": row.snippet, "rank": row.rank},
        "score": score if isfinite(score) else row.score,
        "gold": row.grade > 0,
        "shares": [[text, *_digits([value])] for text, value in row.shares],
        "others": [row.others[0], *_digits([row.others[1]])],
    }


def _candidate(runs: Sequence[AlignedRun], pair: Pair, judged: int | None) -> Candidate:
    holding = [run for run in runs if pair in run.numbers and run.ranking is not None]
    places = [run.reciprocal_rank(pair) for run in holding]
    difference = max(places) - min(places) if len(places) > 1 else None
    judges = [run for run in runs[:judged] if run in holding]
    if not judges:
        return Candidate(pair, None, difference=difference)
    success = fmean(run.reciprocal_rank(pair) for run in judges)
    return Candidate(pair, success, judges[0].score(pair), difference)


def _view(run: AlignedRun, places: dict[int, int], pair: Pair) -> dict[str, Any]:
    """What a system makes of a pair; tokens that are new to `places` are added to them."""
    layers = run.store.explain(run.numbers[pair]).layers
    own = _own_reading(run.paradigm)
    weights = {
        reading: pack_matrices(
            torch.cat([_matrices(layer, run.paradigm, reading) for layer in layers])
        )
        for reading in dict.fromkeys((own, *DIRECTIONS))
    }
    weights[PRODUCT] = pack_matrices(torch.cat(list(map(_product, layers))), signed=True)
    query, document = (
        [places.setdefault(number, len(places)) for number in ids[0].tolist()]
        for ids in (layers[-1].query_ids, layers[-1].document_ids)
    )
    return {
        "query_tokens": query,
        "document_tokens": document,
        "layers": len(layers),
        "heads": layers[-1].alignment.shape[1],
        "rank": run.rank(pair),
        "score": score if isfinite(score := run.score(pair)) else None,
        "pair_score": _finite(layers[-1].score),
        "adds": [_digits(side[0].tolist()) for side in reversed(contributions(layers[-1]))],
        "relevance": [_finite(layer.relevance) for layer in layers],
        "weights": weights,
    }


def _own_reading(paradigm: str) -> str:
    """The alignment that a system uses: a generative one's is already directed."""
    own = own_direction(paradigm)
    return OWN if own == "query_to_document" else own


def _product(pair: PairAlignment) -> Tensor:
    """(1, M, N) S·A / Z, summed over heads."""
    terms = (pair.similarity * pair.alignment).sum(1)
    return divide(terms, pair.normaliser[:, None, None])


def _finite(value: Tensor) -> float | None:
    """A number as JSON has it."""
    return value.item() if value.isfinite() else None


def _matrices(pair: PairAlignment, paradigm: str, reading: str) -> Tensor:
    """(1, M, N) of a single head, (1 + H, M, N) of several: their mean, then each head's own."""
    if reading == OWN:
        heads = pair.alignment[0]
        return heads if len(heads) == 1 else torch.cat([heads.mean(0, keepdim=True), heads])
    mean = directed_alignment(pair, paradigm, reading)
    heads = pair.alignment.shape[1]
    if heads == 1:
        return mean
    alone = replace(
        pair,
        similarity=pair.similarity.transpose(0, 1),
        alignment=pair.alignment.transpose(0, 1),
        document_mask=pair.document_mask.expand(heads, -1),
        query_mask=pair.query_mask.expand(heads, -1),
    )
    return torch.cat([mean, directed_alignment(alone, paradigm, reading)])


def pack_matrices(matrices: Tensor, signed: bool = False) -> dict[str, Any]:
    """Matrices for a page: bytes from 0, a matrix's smallest weight, to 255, its largest.

    A softmax over a long text leaves every weight close to the smallest: from zero, all cells
    would look the same.

    Args:
        matrices: (K, M, N), any float dtype.
        signed: weights of both signs, with zero at 127.

    Returns:
        "minima", "maxima": K numbers each; "data": the K·M·N bytes, row by row, as base64 of a
        zlib stream.
    """
    values = matrices.float()
    low, high = values.flatten(1).amin(1), values.flatten(1).amax(1)
    if signed:
        low = -torch.maximum(-low, high)
        high = -low * (LEVELS - ZERO) / ZERO
    span = (high - low).clamp_min(TINY)[:, None, None]  # none where all weights are equal
    levels = ((values - low[:, None, None]) / span * LEVELS).round().to(torch.uint8)
    data = base64.b64encode(zlib.compress(levels.numpy().tobytes(), 9)).decode()
    return {"minima": _digits(low.tolist()), "maxima": _digits(high.tolist()), "data": data}


def _digits(values: Iterable[float]) -> list[float]:
    """Six digits: more than a page shows."""
    return [float(f"{value:.6g}") for value in values]
