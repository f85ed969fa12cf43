"""Compares alignments and generated identifiers with the tokens that answer the question.

The almanac knows which characters of a relevant document answer its query ("gold") and which state
what the query gives ("evidence"; docs/data.md). A document token is aligned if its strength, the
largest A_ij over the query's tokens, reaches a threshold or is among the k largest. Tokens of equal
strength share the remaining places, so every number is an expectation over their random order;
constant strengths are a random choice. In the terms of Och and Ney (2003), the sure tokens S answer
the question, and the possible tokens P also include those that state what the question gives.

Special tokens do not count on either side: an end token that attracts every other token says
nothing about where the answer is. Pairs are left out if their document is not read as text (docids,
pooled vectors).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas
import torch
from datasets import Dataset
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor

from analysis.figures import GalleryEntry, draw_lines
from analysis.questions.analysis import Analysis, Findings, PairAnalysis, Subject
from analysis.statistics import long_frame, spread_numbers
from analysis.viewer.directed_alignment import (
    DIRECTIONS,
    aligning_words,
    directed_alignment,
    directed_heads,
)
from data_modules.module import RetrievalDataModule
from gr_mvdr.measures import Metric
from gr_mvdr.options import Count, part
from gr_mvdr.progress import track
from gr_mvdr.relevance import Explanation, PairAlignment
from gr_mvdr.texts import SEPARATOR

SPANS = ("gold", "evidence")


def find_gold_tokens(
    data: RetrievalDataModule, split: str, pairs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Tensor]:
    """Finds the tokens with which the documents of some pairs answer their queries.

    A token counts if one of its characters is in a span. The template's tokens around a text, a
    title's tokens, and tokens beyond `document_length` never count.

    Args:
        split: the queries' split.
        pairs: (query id, relevant document id), as from `data.evaluation.test_pairs`.

    Returns:
        For each pair whose answer is not cut off: (2, m) bool, the tokens that answer the question,
        and the tokens that state what it gives. m is the document's length in a batch, including
        the tokens around the text. {} if the collection has no answers, if documents are read
        without their text or cleaned (which moves the spans), or if the tokeniser does not map
        tokens to characters (ByT5).
    """
    queries = data.queries(split)
    known = set(SPANS) <= set(queries.column_names)
    is_read = "text" in data.text_fields and not data.cleaning
    if not (pairs and known and is_read and data.tokenizer.is_fast):
        return {}
    columns = (queries[name][:] for name in ("id", *SPANS))
    spans = {query: parts for query, *parts in zip(*columns, strict=True)}
    characters = _characters(data, {document for _, document in pairs})
    gold = {}
    for query, document in pairs:
        sides = torch.stack([_inside(characters[document], part) for part in spans[query]])
        if sides[0].any():
            gold[query, document] = sides
    return gold


def _characters(data: RetrievalDataModule, documents: set[str]) -> dict[str, np.ndarray]:
    """Returns, for each document, (m, 2) the characters [start, end) of `text` that a token covers.

    Positions in a title before the text are negative; the tokens around a text cover nothing.
    """
    before, after = len(data.template.document), len(data.template.suffix)
    room = data.document_length - before - after
    read = _select(data, documents)
    joined = data.joined.get("document", "")
    texts = [joined + text for text in read["text"]]
    encoded = data.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    first = data.text_fields[: list(data.text_fields).index("text")]  # joined before the text
    found = {}
    for document, offsets in zip(read, encoded["offset_mapping"], strict=True):
        shift = sum(len(document[field]) + len(SEPARATOR) for field in first if document[field])
        shift += len(joined) - document.get("start", 0)  # of a passage
        own = np.array(offsets[:room], dtype=np.int64).reshape(-1, 2) - shift
        found[document["id"]] = np.pad(own, ((before, after), (0, 0)))
    return found


def _select(data: RetrievalDataModule, names: Collection[str]) -> Dataset:
    """Selects the rows of some documents."""
    rows = [row for row, name in enumerate(data.documents["id"][:]) if name in names]
    return data.documents.select(rows)


def _inside(characters: np.ndarray, spans: Sequence[Mapping[str, int]]) -> Tensor:
    """(m,) bool: the tokens with a character in one of the spans {"start", "end"}."""
    bounds = np.array([(span["start"], span["end"]) for span in spans]).reshape(-1, 2)
    starts, ends = characters[:, :1], characters[:, 1:]
    overlap = np.minimum(ends, bounds[:, 1]) - np.maximum(starts, bounds[:, 0])
    return torch.from_numpy((overlap > 0).any(1))


MEASURES = ("precision", "recall", "possible_precision", "possible_recall", "aer")
# A softmax over a long text has small weights, cross-attention large ones: thresholds cover both.
THRESHOLDS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
DEPTHS = (1, 2, 3, 5, 10, 20)
MAXIMUM_LAYERS = 4  # more curves in a panel cannot be distinguished
# Gold tokens that an alignment is compared with → columns of the table.
GOLDS = {
    "the answer": ("recall", "precision"),
    "the answer and what is given": ("possible_recall", "possible_precision"),
}
LABELS = {
    "own": "its own alignment",
    "softmax": "softmax of similarity",
    "random": "random order",
}


def strength(alignment: Tensor, query_mask: Tensor) -> Tensor:
    """(…, M) max_j A_ij: how strongly each document token is aligned.

    Args:
        alignment: (…, M, N), not negative.
        query_mask: (…, N) bool, the query tokens that count.
    """
    return (alignment * query_mask.unsqueeze(-2)).amax(-1)


def at_thresholds(strengths: Tensor, mask: Tensor, thresholds: Sequence[float]) -> Tensor:
    """(…, T, M) fp32, 1 if a document token is aligned at a threshold θ: strength ≥ θ.

    Args:
        strengths: (…, M).
        mask: (…, M) bool, the document tokens that count.
    """
    least = torch.tensor(thresholds, dtype=strengths.dtype, device=strengths.device)
    return ((strengths.unsqueeze(-2) >= least.unsqueeze(-1)) & mask.unsqueeze(-2)).float()


def at_top(strengths: Tensor, mask: Tensor, depths: Sequence[int]) -> Tensor:
    """Returns the probability that a token is among the k strongest, with ties in random order.

    Args:
        strengths: (…, M).
        mask: (…, M) bool, the document tokens that count.
        depths: T values of k; in a document with fewer tokens, all are aligned.

    Returns:
        (…, T, M) fp32 from 0 to 1, summing to min(k, number of tokens).
    """
    values = strengths.masked_fill(~mask, -torch.inf)
    places = torch.tensor(depths, device=values.device)
    ordered = values.sort(-1, descending=True).values
    last = ordered[..., (places - 1).clamp(max=values.shape[-1] - 1)].unsqueeze(-1)
    above = (values.unsqueeze(-2) > last).float()
    tied = ((values.unsqueeze(-2) == last) & mask.unsqueeze(-2)).float()
    left = places.unsqueeze(-1) - above.sum(-1, keepdim=True)
    return above + tied * (left / tied.sum(-1, keepdim=True).clamp(min=1)).clamp(max=1)


def measure(aligned: Tensor, answer: Tensor, evidence: Tensor) -> dict[str, Tensor]:
    """Computes precision, recall and alignment error rate of aligned tokens A (Och and Ney 2003).

    precision |A∩S| / |A| and recall |A∩S| / |S| are over the answer, possible_precision
    |A∩P| / |A| and possible_recall |A∩P| / |P| over the possible tokens; precisions are NaN if
    nothing is aligned. AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|), which is 0 if S ⊆ A ⊆ P.

    Args:
        aligned: (…, T, M) from 0 to 1, zero at tokens that do not count.
        answer: (…, M) bool, S, with at least one token in each row.
        evidence: (…, M) bool; P is the union of answer and evidence.

    Returns:
        (…, T) fp32 each.
    """
    golden = torch.stack([answer, answer | evidence, torch.ones_like(answer)], -1).float()
    sure, possible, total = (aligned @ golden).unbind(-1)
    n_sure, n_possible, _ = golden.sum(-2, keepdim=True).unbind(-1)
    error = 1 - (sure + possible) / (total + n_sure)
    values = sure / total, sure / n_sure, possible / total, possible / n_possible, error
    return dict(zip(MEASURES, values, strict=True))


@part("analysis")
class GoldAlignment(PairAnalysis):
    """Precision, recall and alignment error rate (Och and Ney 2003), means over pairs with gold.

    A precision is averaged over the pairs in which something is aligned. Each layer and direction
    is measured, averaged over heads. For a multi-vector or lexical system, two alignments are
    measured: the softmax of its similarity, and its own A with columns that sum to one.

    The metric `aer` is cross-fitted: pairs with even numbers in the store are measured at the
    threshold that is best for pairs with odd numbers, and vice versa. `align_all_aer` is a baseline
    that aligns every token that counts.
    """

    name, title = "gold", "Gold alignments"
    reading = (
        "The alignment compared with the document tokens that answer the question. AER is measured "
        "on each half of the pairs at the threshold that is best for the other half."
    )
    metrics = (
        Metric("precision@1", "The share of the chosen tokens that answer the question."),
        Metric("recall@5", "The share of the tokens that answer the question that are chosen."),
        Metric(
            "possible_precision@1",
            "The share of the chosen tokens that answer the question or state what it gives.",
        ),
        Metric(
            "aer",
            "Alignment error rate against the tokens that answer: 0 is perfect, 1 the worst.",
            label="AER",
            headline=True,
        ),
        Metric("align_all_aer", "The alignment error rate of aligning every token."),
        Metric("random_precision", "The precision of tokens in random order."),
        Metric("random_possible_precision", "The possible precision of tokens in random order."),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pairs = self.subject.store.pairs
        self.generative = self.description.paradigm == "generative"

    def measure(self, batch: Explanation, first: int) -> Iterable[DataFrame]:
        last, special = batch.layers[-1], self.texts.kinds.special
        real, counted = (aligning_words(last, side, special) for side in DIRECTIONS[::-1])
        answer, evidence = (gold & real for gold in self._gold(last, first))
        if not answer.any():
            return

        # With equal strengths, the k strongest are a random choice, and thresholds select all.
        found = [("random", "", 0, torch.ones(real.shape))]
        paradigm, name = self.description.paradigm, "own" if self.generative else "softmax"
        for layer, pairs in enumerate(batch.layers, start=1):
            for side in DIRECTIONS:
                mean = directed_alignment(pairs, paradigm, side)
                found.append((name, side, layer, strength(mean, counted)))
            if not self.generative:
                own = directed_heads(pairs, DIRECTIONS[0]).mean(1)
                found.append(("own", DIRECTIONS[0], layer, strength(own, counted)))
        for alignment, direction, layer, strengths in found:
            chosen = at_thresholds(strengths, real, THRESHOLDS), at_top(strengths, real, DEPTHS)
            values = measure(torch.cat(chosen, -2), answer, evidence)
            place = {"alignment": alignment, "direction": direction, "layer": layer}
            table = long_frame(first, values, "selection", **place)
            yield table[answer.any(1).numpy()[table["pair"] - first]]

    def _gold(self, pairs: PairAlignment, first: int) -> Tensor:
        """(2, B, M) bool, answer and evidence; all False if a pair has no gold of its length."""
        found = torch.zeros(2, *pairs.document_ids.shape, dtype=torch.bool)
        for row, length in enumerate(pairs.document_mask.sum(1).tolist()):
            gold = self.texts.gold.get(tuple(self.pairs[first + row]))
            if gold is not None and gold.shape[1] == length:
                found[:, row, :length] = gold
        return found

    def summarise(self, frame: DataFrame) -> Findings:
        """Returns metrics of the last layer, a table and curves."""
        keys = ["alignment", "direction", "layer", "selection"]
        table = frame.groupby(keys)[list(MEASURES)].mean()
        rows, name = [], "own" if self.generative else "softmax"
        random = table.loc["random", "", 0]
        top = {k: len(THRESHOLDS) + n for n, k in enumerate(DEPTHS, start=1)}  # selections from 1
        for direction in DIRECTIONS:
            place = name, direction, frame["layer"].max()
            means = table.loc[place]
            values = {
                "precision@1": means["precision"][top[1]],
                "recall@5": means["recall"][top[5]],
                "possible_precision@1": means["possible_precision"][top[1]],
                "aer": fitted_error(frame.groupby(keys[:3]).get_group(place)),
                "align_all_aer": random["aer"][1],
                "random_precision": random["precision"][top[1]],
                "random_possible_precision": random["possible_precision"][top[1]],
            }
            rows += self.rows(values, direction)
        table = table.reset_index()
        table["at"] = [[*THRESHOLDS, *DEPTHS][n - 1] for n in table["selection"]]
        table["selection"] = np.where(table["selection"] > len(THRESHOLDS), "top", "threshold")
        pairs = frame["pair"].nunique()
        title = f"{self.description.title}: alignments against {pairs:,} gold pairs"
        entry = GalleryEntry("gold_alignment", "Alignments against the answer's tokens", CAPTION)
        tables = {"gold_alignment": table.to_dict("records")}
        return self.findings(rows, tables, [(gold_figure(table, title), entry)])


def fitted_error(frame: DataFrame) -> float:
    """Computes the mean AER, with each half of the pairs at the threshold that is best for the
    other half; NaN if a half is empty.
    """
    errors = frame[frame["selection"] <= len(THRESHOLDS)].pivot(
        index="pair", columns="selection", values="aer"
    )
    halves = [errors[errors.index % 2 == odd] for odd in (0, 1)]
    if any(half.empty for half in halves):
        return float("nan")
    best = [half.mean().idxmin() for half in halves]
    return (halves[0][best[1]].sum() + halves[1][best[0]].sum()) / len(errors)


CAPTION = (
    "Document tokens are ordered by their strongest alignment with a query token, averaged over "
    "heads; the points of a curve are the first 1, 2, 3, 5, 10 and 20 tokens. In the upper panels, "
    "the gold tokens are those that answer the question; in the lower panels, they include those "
    "that state what the question gives. If a curve is above the random order only in the lower "
    "panels, the system aligns what the question states and finds the answer next to it."
)


def gold_figure(table: DataFrame, title: str) -> Figure:
    """Plots a panel per direction and kind of gold, a curve per layer or alignment."""
    top = table[table["selection"] == "top"]
    layers = sorted(set(top["layer"]) - {0})  # the first layer, the last, and some between them
    shown = [layers[number] for number in spread_numbers(len(layers), MAXIMUM_LAYERS)]
    lines = top["alignment"].map(LABELS)
    if len(shown) > 1:
        lines = lines.where(top["layer"] == 0, "layer " + top["layer"].astype(str))
    curves = top.assign(line=lines)
    chance = curves[curves["layer"] == 0]
    curves = pandas.concat(
        [curves[curves["layer"].isin(shown)], *(chance.assign(direction=d) for d in DIRECTIONS)]
    )
    points = [
        curves.assign(panel=f"{gold}, " + curves["direction"].str.replace("_", " ")).rename(
            columns={x: "x", y: "y"}
        )
        for gold, (x, y) in GOLDS.items()
    ]
    return draw_lines(pandas.concat(points), title, "recall", "precision")


_SEARCHED = 16  # queries at once


def occurrences(document: Tensor, identifier: Sequence[int]) -> Tensor:
    """(m,) bool: the document's tokens that belong to an occurrence of the identifier.

    Args:
        document: (m,) int64.
        identifier: token ids, without an end token.
    """
    covered = torch.zeros(len(document), dtype=torch.bool)
    size = len(identifier)
    if 0 < size <= len(document):
        starts = (document.unfold(0, size, 1) == torch.tensor(identifier)).all(1).nonzero()
        covered[(starts + torch.arange(size)).flatten()] = True
    return covered


@part("analysis")
@dataclass
class DecodedIdentifiers(Analysis):
    """Searches with test queries and locates the generated identifiers in relevant documents.

    If an identifier occurs in the relevant document's own tokens (an n-gram, a title), its tokens
    can be compared with the tokens that answer the question; docids that are not text occur
    nowhere. The identifiers are the sequences in the search's final beam.

    Args:
        queries: the maximum number of test queries, evenly spread over the first test split.
    """

    queries: Count

    name, title, reading = GoldAlignment.name, GoldAlignment.title, GoldAlignment.reading
    metrics = (
        Metric("recall", "The share of the tokens that answer the question that are generated."),
        Metric("random_precision", "The precision of tokens in random order."),
        Metric("found", "The share of pairs whose document holds a generated identifier."),
        Metric("precision", "The share of the generated tokens that answer the question."),
        Metric(
            "possible_precision",
            "The share of the generated tokens that answer the question or state what it gives.",
        ),
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return getattr(subject.model, "names", None) is not None

    def finish(self) -> Findings:
        """Returns metrics "decoded/…": "found" is the share of pairs whose document contains an
        identifier, and precision and recall are means over these pairs; "random_precision" is the
        answer's share of a document's tokens. Returns nothing without gold, and for docids that
        are not text.
        """
        data, split = self.subject.data, self.subject.split
        queries = self.subject.queries(self.queries)
        passages, relevant = self.subject.model.passages, data.evaluation.relevant(split, queries)
        pairs = [(query, one) for query, found in relevant.items() for one in passages.of(found)]
        gold = find_gold_tokens(data, split, pairs)
        if not gold:
            return Findings()
        read, frames, decoded = data.template.read_document, [], self._decode(queries)
        documents = {
            row["id"]: torch.tensor(read(row["tokens"], data.document_length))
            for row in _select(data, {document for _, document in gold})
        }
        for (query, name), sides in gold.items():
            covered = [occurrences(documents[name], one) for one in decoded[query]]
            covered = torch.stack(covered or [torch.zeros_like(sides[0])]).any(0, keepdim=True)
            frames.append(DataFrame(measure(covered.float(), *sides), dtype=float))
        kept = pandas.concat(frames).dropna(subset="precision")
        if kept.empty:
            return Findings()
        flat = kept[["precision", "possible_precision", "recall"]].mean().to_dict()
        flat["found"] = len(kept) / len(gold)
        around = len(read((), 0))  # the tokens around a text are not candidates
        chances = [float(sides[0].sum()) / (sides.shape[1] - around) for sides in gold.values()]
        flat["random_precision"] = sum(chances) / len(chances)
        return self.findings(self.rows(flat, "decoded"))

    def _decode(self, queries: Dataset) -> dict[str, list[list[int]]]:
        """Returns each query's identifiers, without template tokens, the most probable first."""
        model, decoded = self.subject.model, {}
        around = {*model.template.target, model.template.stop}
        for start in track(range(0, len(queries), _SEARCHED), "decoding identifiers"):
            rows = queries[start : start + _SEARCHED]
            final = model.search(rows["tokens"], texts=rows["text"]).final
            for number, query in enumerate(rows["id"]):
                outputs = [tokens for tokens, _ in final.of(number)]
                decoded[query] = [[t for t in tokens if t not in around] for tokens in outputs]
        return decoded
