"""SEAL's training and reranking: spans that resemble the query, and texts of further views."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from datasets import Features, List, Value

from data_modules.collection import TokenColumn, TrainingTables, cache_table
from data_modules.examples import Example, Examples
from data_modules.indexing import Inputs
from data_modules.tokenisation import cut_spans
from gr_mvdr.batch import cut
from gr_mvdr.options import Positive, Seed, Size, part
from gr_mvdr.passages import name_document
from gr_mvdr.progress import track
from gr_mvdr.texts import BODY, find_views, first_words, read_view

_WEIGHTS = Features({"weights": List(Value("float32"))})
# No span begins at these words (single letters are the remains of contractions).
STOPWORDS = frozenset(
    """
    a about above after again against all am an and any are as at be because been before being
    below between both but by can did do does doing don down during each few for from further
    had has have having he her here hers him his how i if in into is it its just me more most my
    myself no nor not now of off on once only or other our ours ourselves out over own s same
    she should so some such t than that the their them then there these they this those through
    to too under until up very was we were what when where which while who whom why will with
    you your yours
    """.split()
)


def span_weights(query: str, passage: str, temperature: float = 1.0, window: int = 3) -> np.ndarray:
    """The probability that a span starts at each word of the passage (SEAL's supervised targets).

    The weights are softmax(s / temperature). The score s of a start sums, over all windows of
    `window` words in the query, the indel similarity (rounded to whole percents) between the
    query's window and the passage's window at that start. No span starts at a stopword; if the
    passage has only stopwords, every start is equally probable.

    Args:
        query, passage: split at white space; compared in lower case.
    Returns:
        (passage words,) float64, summing to 1; (0,) if the passage has no words.
    """
    from rapidfuzz import fuzz, process

    words = passage.lower().split()
    starts = np.flatnonzero([word not in STOPWORDS for word in words])
    if not len(starts):
        return np.full(len(words), 1 / max(1, len(words)))
    query_windows = _windows(query.lower().split(), window)
    passage_windows = _windows(words, window)
    percents = process.cdist(
        query_windows, [passage_windows[start] for start in starts], scorer=fuzz.ratio
    )
    similarity = np.rint(percents.astype(np.float64)).sum(0) / 100 / temperature
    weights = np.zeros(len(words))
    weights[starts] = np.exp(similarity - similarity.max())
    return weights / weights.sum()


def _windows(words: list[str], width: int) -> list[str]:
    """The window of words that starts at each word; the last windows are shorter."""
    return [" ".join(words[start : start + width]) for start in range(len(words))]


def sample_starts(weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draws n start words with replacement from the weights of `span_weights`: (n,) int64.

    Returns (0,) for a text without words.
    """
    if not len(weights):
        return np.empty(0, dtype=np.int64)
    cumulative = np.cumsum(weights)
    return np.searchsorted(cumulative / cumulative[-1], rng.random(n), side="right")


@part("examples", negatives="negatives")
@dataclass
class SpanExamples(Examples):
    """Query → spans of the document that resemble it: SEAL's targets.

    The weights of the start words are computed once and cached. The spans are drawn again in every
    epoch, from (seed, epoch, place of the example in the epoch).

    Args:
        n_spans: spans per pair and epoch (10 on MS MARCO, 5 on NQ320k in the paper).
        length: words per span.
        temperature: T of the softmax over start words.
        max_tokens: maximum length of a span in tokens; None = not cut (the paper). Search generates
            keys of 10 tokens, but a span has 10 words: its further tokens cost training time and
            are never generated.
        separate: True = each span is an example of its own, so `data.batch_size` counts spans;
            False = the spans of a pair are one example, whose query is encoded once.
    """

    n_spans: Size = 10
    length: Size = 10
    temperature: Positive = 1.0
    max_tokens: Size | None = None
    separate: bool = False

    def prepare(self, tables: TrainingTables) -> Self:
        """See `Examples`; also computes the start weights, or reads them from the cache."""

        def weights() -> Iterator[dict]:
            for pair in track(tables.pairs, "span weights", total=len(tables.pairs)):
                query = tables.queries[pair["query_row"]]["text"]
                query = first_words(query, tables.query_length)  # the encoder reads no more
                document = tables.documents[pair["document_row"]]["text"]
                yield {"weights": span_weights(query, document, self.temperature)}

        prepared, made = super().prepare(tables), (tables.pairs, tables.queries, tables.documents)
        made_from = str(self.temperature), str(tables.query_length)
        made_from += tuple(table._fingerprint for table in made)
        prepared.weights = cache_table(weights, _WEIGHTS, "span-weights/2", *made_from)
        return prepared

    @property
    def has_targets(self) -> np.ndarray:
        # A text may consist only of characters that the tokeniser drops.
        words = TokenColumn(self.tables.documents, "word_starts").lengths
        return (words > 0) & (self.tables.document_tokens.lengths > 0)

    def numbers(self, rng: np.random.Generator) -> np.ndarray:
        return np.repeat(self.pairs, self.n_spans if self.separate else 1)

    def pair_targets(self, pair: int, rng: np.random.Generator) -> list[list[int]]:
        weights = np.asarray(self.weights[pair]["weights"])
        return self._spans(int(self.tables.document_rows[pair]), weights, rng)

    def targets(self, row: int, source: list[int], rng: np.random.Generator) -> list[list[int]]:
        text = self.tables.tokenizer.decode(source, skip_special_tokens=True)
        passage = self.tables.documents[row]["text"]
        return self._spans(row, span_weights(text, passage, self.temperature), rng)

    def _spans(self, row: int, weights: np.ndarray, rng: np.random.Generator) -> list[list[int]]:
        starts = sample_starts(weights, 1 if self.separate else self.n_spans, rng)
        spans = cut_spans(self.tables.documents[row], starts, self.length)
        longest, stop = self.tables.document_length, self.tables.template.stop
        return [cut(span[: self.max_tokens], longest, stop) for span in spans]


@part("examples")
class SealExamples(SpanExamples):
    """Query || body → spans that resemble it; query || NAME → a text of the view NAME.

    Spans are drawn as in `SpanExamples`. Full SEAL has the title as its view; MINDER (Li et al.
    2023) adds pseudo-queries, of which one is drawn. Each view of a pair is an example of its own;
    a document without a text of the view has no such example. Examples are numbered: first the
    spans, one number per pair, then the examples of each view in turn.
    """

    takes_negatives = False  # the negatives of a title would have to be titles

    def prepare(self, tables: TrainingTables) -> Self:
        """See `SpanExamples`.

        Raises:
            ValueError: a special token or the texts of a view are missing.
        """
        prepared = super().prepare(tables)
        prepared.texts, rows = _ViewTexts(tables), tables.document_rows
        pairs = {BODY: np.arange(len(rows))}
        pairs |= {view: np.flatnonzero(has[rows]) for view, has in prepared.texts.has.items()}
        # (examples,): the pair of each example, and the view that its source asks for.
        prepared.pair_of = np.concatenate(list(pairs.values()))
        prepared.asked = np.repeat(list(pairs), [len(own) for own in pairs.values()])
        return prepared

    def numbers(self, rng: np.random.Generator) -> np.ndarray:
        return np.append(
            super().numbers(rng), np.arange(len(self.tables.document_rows), len(self.pair_of))
        )

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        pair, asked = int(self.pair_of[number]), str(self.asked[number])
        row, body = int(self.tables.document_rows[pair]), asked == BODY
        targets = self.pair_targets(pair, rng) if body else [self.texts.target(asked, row, rng)]
        source = self.texts.source(self.query(pair), asked)
        return Example(source, targets, row, relevant=self.relevant(pair))

    def make_example(self, source: list[int], row: int, rng: np.random.Generator) -> Example:
        # Spans resemble the text alone, not the special token after it.
        example = super().make_example(source, row, rng)
        return example._replace(source=self.texts.source(source, BODY))

    @cached_property
    def lengths(self) -> np.ndarray:
        return super().lengths[self.pair_of]


@part("inputs")
@dataclass
class UnsupervisedParts(Inputs):
    """Indexing examples in which one part of a document is the source and another the target.

    The kind of example is drawn uniformly among those that the document allows. SEAL has document
    → title, span → title, title → span, and span → another span. MINDER adds, for each further
    view, a text of the view → a span that resembles it, → the title, and → another text of the
    view. Sources end with the special tokens of `SealExamples`.

    Args:
        length: words per span.
        max_tokens: maximum length in tokens of a span that is a target; None = not cut.
    """

    length: Size = 10
    max_tokens: Size | None = None

    def prepare(self, tables: TrainingTables, retrieval: Examples) -> Self:
        """See `Inputs`; `retrieval` gives only the spans that resemble a view's text.

        Raises:
            ValueError: the retrieval task has hard negatives, which these examples lack.
        """
        if retrieval.negatives is not None:
            raise ValueError("data.examples.negatives: must be null with indexing=seal")
        prepared = super().prepare(tables, retrieval)
        prepared.texts = _ViewTexts(tables)
        return prepared

    def draw(self, row: int, rng: np.random.Generator) -> Example:
        parts = self._parts(row)
        part, asked = parts[int(rng.integers(len(parts)))]
        if part not in ("document", "span", "title"):
            return self._draw_from_view(row, part, asked, rng)
        document = self.tables.documents[row]
        # The two spans start at different words, unless the document has only one start.
        starts = max(1, len(document["word_starts"]) - self.length + 1)
        chosen = rng.choice(starts, size=2, replace=starts < 2)
        one, another = cut_spans(document, chosen.tolist(), self.length)
        is_body = asked == BODY
        texts = {"document": document["tokens"], "title": document["title_tokens"]}
        source = texts.get(part, another if is_body else one)
        longest, stop = self.tables.document_length, self.tables.template.stop
        span = cut(one[: self.max_tokens], longest, stop)
        target = span if is_body else self.texts.target(asked, row, rng)
        return Example(self.texts.source(self._read(source), asked), [target], row)

    def _parts(self, row: int) -> list[tuple[str, str]]:
        """The kinds of examples of a document: (source part, view that the source asks for)."""
        views = [view for view, has in self.texts.has.items() if has[row]]
        titles = [("document", "title"), ("span", "title"), ("title", BODY)]
        parts = [*(titles if "title" in views else []), ("span", BODY)]
        for view in views:
            if view != "title":
                parts += [
                    (view, asked) for asked in (BODY, "title", view) if asked in (BODY, *views)
                ]
        return parts

    def _draw_from_view(self, row: int, view: str, asked: str, rng: np.random.Generator) -> Example:
        texts = self.texts.read(view, row)
        one, another = rng.choice(len(texts), size=2, replace=len(texts) < 2).tolist()
        source = self._read(texts[one])
        if asked == BODY:
            return self.retrieval.make_example(source, row, rng)
        target = self.texts.end(texts[another], view) if asked == view else None
        target = target or self.texts.target(asked, row, rng)
        return Example(self.texts.source(source, asked), [target], row)

    def _read(self, tokens: list[int]) -> list[int]:
        return self.tables.template.read_query(tokens, self.tables.document_length)

    @cached_property
    def lengths(self) -> np.ndarray:
        # Constant: the kind of source is drawn later, so its length is not known here.
        return np.full(len(self.tables.documents), self.length)


class _ViewTexts:
    """Makes sources and targets from the texts of the views in `tokenizer.special_tokens`.

    Attributes:
        has: view → (documents,) bool, True = the document has a text in the view.
    """

    def __init__(self, tables: TrainingTables):
        views = find_views(tables.special_tokens) or ["title"]
        needed = [BODY, *(name for view in views for name in (view, f"{view}_end"))]
        if missing := [name for name in needed if name not in tables.special_tokens]:
            raise ValueError(
                f"tokenizer.special_tokens: {', '.join(missing)} missing, its views need it"
            )
        for view in views:
            if f"{view}_tokens" not in tables.documents.column_names:
                raise ValueError(f"data.views.{view}=null: must be a file of the view's texts")
        self.template, self.special_tokens = tables.template, tables.special_tokens
        self.longest = tables.document_length
        self.columns = {view: tables.documents[f"{view}_tokens"] for view in views}
        self.has = {
            view: np.array([len(read_view(cell)) > 0 for cell in column])
            for view, column in self.columns.items()
        }

    def source(self, tokens: list[int], asked: str) -> list[int]:
        """Inserts the special tokens of the requested view before the suffix; nothing is cut."""
        return self.template.append(tokens, self.special_tokens[asked])

    def read(self, view: str, row: int) -> list[list[int]]:
        """A document's texts in a view."""
        return read_view(self.columns[view][row])

    def target(self, view: str, row: int, rng: np.random.Generator) -> list[int]:
        """Draws one of a document's texts in a view and returns it as a key."""
        texts = self.read(view, row)
        return self.end(texts[int(rng.integers(len(texts)))], view)

    def end(self, text: list[int], view: str) -> list[int]:
        """A text of a view as a key: its tokens, the view's end tokens and the stop token."""
        end = self.special_tokens[f"{view}_end"]
        room = max(1, self.longest - len(end))
        return [*text[: room - 1], *end, self.template.stop]


@part("segments")
@dataclass
class SampledSpans:
    """Draws spans by similarity to the query, as in training: the paper's reranking setting.

    Words that the query and the document share therefore raise the score. A document without text
    has no spans; spans without a token are left out.

    Args:
        n_spans: spans per document.
        length: words per span.
        temperature: T of the softmax over start words.
        seed: random seed; the spans of a pair depend on the pair and the seed alone. The passages
            of a document share its random numbers.
    """

    n_spans: Size = 3
    length: Size = 10
    temperature: Positive = 1.0
    seed: Seed = 0

    def __call__(self, query: str, document: dict) -> list[list[int]]:
        """Returns the token lists of one document's spans."""
        name = name_document(document["id"]) if "start" in document else document["id"]
        pair = zlib.crc32(f"{query}\n{name}".encode())
        weights = span_weights(query, document["text"], self.temperature)
        starts = sample_starts(weights, self.n_spans, np.random.default_rng((self.seed, pair)))
        return [span for span in cut_spans(document, starts, self.length) if span]
