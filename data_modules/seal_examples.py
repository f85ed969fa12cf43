"""SEAL's training examples: spans that resemble the query; in full SEAL titles and parts, too."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Self

import numpy as np
from datasets import Features, List, Value

from data_modules.collection import TrainingTables
from data_modules.epoch import Example
from data_modules.examples import Examples
from data_modules.indexing import Inputs
from data_modules.spans import cut_spans, sample_starts, span_weights
from data_modules.tables import TokenColumn, cache_table
from gr_mvdr.batch import cut
from gr_mvdr.parts import part
from gr_mvdr.progress import track

_WEIGHTS = Features({"weights": List(Value("float32"))})
# What `tokenizer.special_tokens` must name: the texts that ask for a span and for a title, and the
# text that ends a title ("|| body", "|| title" and "@@" in SEAL).
SPECIAL_TOKENS = ("body", "title", "title_end")


@part("examples", negatives="negatives")
@dataclass
class SpanExamples(Examples):
    """Query → spans of the document that resemble it: SEAL's targets.

    The weights of the start words are computed once and cached; the spans are drawn in every
    epoch, from (seed, epoch, pair).

    Args:
        n_spans: spans a pair and epoch (10 on MS MARCO, 5 on NQ320k in the paper).
        length: words of a span.
        temperature: T of the softmax over start words.
        max_tokens: cut a span's tokens. Keys in search are 10 tokens long, spans 10 words: what
            lies behind costs time and is never generated. None = the paper's form.
    """

    n_spans: int = 10
    length: int = 10
    temperature: float = 1.0
    max_tokens: int | None = None

    def prepare(self, tables: TrainingTables) -> Self:
        """See `Examples`; reads or computes the start weights."""
        prepared, made = super().prepare(tables), (tables.pairs, tables.queries, tables.documents)
        rows = partial(_start_weights, tables, self.temperature)
        made_from = str(self.temperature), *(table._fingerprint for table in made)
        prepared.weights = cache_table(rows, _WEIGHTS, "span-weights/2", *made_from)
        return prepared

    @property
    def has_targets(self) -> np.ndarray:
        # A text may be all characters that the tokeniser drops.
        words = TokenColumn(self.tables.documents, "word_starts").lengths
        return (words > 0) & (self.tables.document_tokens.lengths > 0)

    def pair_targets(self, pair: int, rng: np.random.Generator) -> list[list[int]]:
        weights = np.asarray(self.weights[pair]["weights"])
        return self._spans(int(self.document_rows[pair]), weights, rng)

    def targets(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        text = self.tables.tokenizer.decode(source, skip_special_tokens=True)
        passage = self.tables.documents[row]["text"]
        return self._spans(row, span_weights(text, passage, self.temperature), rng)

    def _spans(self, row: int, weights: np.ndarray, rng: np.random.Generator) -> list[list[int]]:
        starts = sample_starts(weights, self.n_spans, rng)
        spans = cut_spans(self.tables.documents[row], starts, self.length)
        longest = self.tables.document_length
        stop = self.tables.template.stop
        return [cut(span[: self.max_tokens], longest, stop) for span in spans]


def _start_weights(tables: TrainingTables, temperature: float) -> Iterator[dict]:
    for pair in track(tables.pairs, "span weights", total=len(tables.pairs)):
        query = tables.queries[pair["query_row"]]["text"]
        document = tables.documents[pair["document_row"]]["text"]
        yield {"weights": span_weights(query, document, temperature)}


@part("examples")
class SealExamples(SpanExamples):
    """Query || body → spans that resemble it, query || title → the title, an example each.

    The spans are those of `SpanExamples`. A pair whose document has no title has no title example.
    Numbers below the number of pairs are their spans, the ones from there on titles.
    """

    def prepare(self, tables: TrainingTables) -> Self:
        """See `SpanExamples`.

        Raises:
            ValueError: a special token is missing, or there are negatives.
        """
        if self.negatives:  # a title's would have to be titles
            raise ValueError("data.examples.negatives: must be null in full SEAL")
        prepared = super().prepare(tables)
        prepared.texts = _SealTexts(tables)
        prepared.titled = np.flatnonzero(prepared.texts.has_title[prepared.document_rows])
        return prepared

    def numbers(self, rng: np.random.Generator) -> np.ndarray:
        return np.concatenate([self.pairs, len(self.document_rows) + np.arange(len(self.titled))])

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        n_pairs = len(self.document_rows)
        pair = number if number < n_pairs else self.titled[number - n_pairs]
        row, asked = self.document_rows[pair], "body" if number < n_pairs else "title"
        targets = self.pair_targets(pair, rng) if asked == "body" else [self.texts.title(row)]
        source = self.texts.source(self.query(pair), asked)
        return Example(source, targets, row, relevant=self.relevant(pair))

    def make_example(self, source: list[int], row: int, rng: np.random.Generator) -> Example:
        return super().make_example(self.texts.source(source, "body"), row, rng)

    @cached_property
    def lengths(self) -> np.ndarray:
        pairs = super().lengths
        return np.concatenate([pairs, pairs[self.titled]])


@part("inputs")
@dataclass
class UnsupervisedParts(Inputs):
    """Parts of a document as sources and targets of each other, for `Indexing`.

    Drawn uniformly: document → title, span → title, title → span, span → another span. Sources
    carry the special tokens of `SealExamples`. Without a title only span → another span is left.

    Args:
        length: words of a span.
        max_tokens: cut the tokens of a span that is a target.
    """

    length: int = 10
    max_tokens: int | None = None

    def prepare(self, tables: TrainingTables, retrieval: Examples) -> Self:
        """See `Inputs`; the targets are the parts'."""
        prepared = super().prepare(tables, retrieval)
        prepared.texts = _SealTexts(tables)
        return prepared

    def draw(self, row: int, rng: np.random.Generator) -> Example:
        document = self.tables.documents[row]
        kind = int(rng.integers(4)) if self.texts.has_title[row] else 3
        # Two spans that start at different words; a document no longer than one has only one.
        starts = max(1, len(document["word_starts"]) - self.length + 1)
        chosen = rng.choice(starts, size=2, replace=starts < 2)
        one, another = cut_spans(document, chosen.tolist(), self.length)
        if kind < 2:
            source = document["tokens"] if kind == 0 else one
            source = self.texts.source(self._read(source), "title")
            return Example(source, [self.texts.title(row)], row)
        source = document["title_tokens"] if kind == 2 else another
        source = self.texts.source(self._read(source), "body")
        span = cut(one[: self.max_tokens], self.tables.document_length, self.tables.template.stop)
        return Example(source, [span], row)

    def _read(self, tokens: list[int]) -> list[int]:
        return self.tables.template.read_query(tokens, self.tables.document_length)

    @cached_property
    def lengths(self) -> np.ndarray:
        # The source is the whole document or a part of it: nothing to sort by.
        return np.full(len(self.tables.documents), self.length)


class _SealTexts:
    """Sources and titles with the special tokens of `tokenizer.special_tokens`."""

    def __init__(self, tables: TrainingTables):
        missing = [name for name in SPECIAL_TOKENS if name not in tables.special_tokens]
        if missing:
            raise ValueError(
                f"tokenizer.special_tokens: {', '.join(missing)} missing, SEAL's titles need it"
            )
        self.template, self.special_tokens = tables.template, tables.special_tokens
        self.titles, self.longest = tables.documents["title_tokens"], tables.document_length
        self.has_title = np.array([len(title) > 0 for title in self.titles])

    def source(self, tokens: list[int], asked: str) -> list[int]:
        """What is asked for, between a text, which keeps its length, and what ends it."""
        return self.template.append(tokens, self.special_tokens[asked])

    def title(self, row: int) -> list[int]:
        """The title's key: its tokens and what ends it."""
        room = max(1, self.longest - len(self.special_tokens["title_end"]))
        return [
            *self.titles[row][: room - 1],
            *self.special_tokens["title_end"],
            self.template.stop,
        ]
