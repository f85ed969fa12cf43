"""SEAL's full form: titles as keys, special tokens on the sources, unsupervised examples."""

from functools import cached_property

import numpy as np

from data_modules.examples import SpanExamples, SpanTask
from data_modules.indexing import DocumentTask, Inputs
from data_modules.segments import token_spans
from data_modules.tasks import Example, RetrievalTask, TrainingTables
from gr_mvdr.batch import cut
from gr_mvdr.parts import part
from gr_mvdr.tokenizers import EOS_ID

# What `tokenizer.special_tokens` must name: the texts that ask for a span and for a title, and the
# text that ends a title ("|| body", "|| title" and "@@" in SEAL).
SPECIAL_TOKENS = ("body", "title", "title_end")


@part("examples")
class SealExamples(SpanExamples):
    """Query || body → spans that resemble it, query || title → the title, an example each.

    The spans are those of `SpanExamples`. A pair whose document has no title has no title example.
    """

    def prepare(self, tables: TrainingTables) -> RetrievalTask:
        """The examples of a collection's training pairs.

        Raises:
            ValueError: a special token is missing.
        """
        return _Seal(tables, self)


class _Seal(SpanTask):
    """Numbers below the number of pairs are their spans, the ones from there on titles."""

    def __init__(self, tables: TrainingTables, examples: SpanExamples):
        super().__init__(tables, examples)
        self.marked = _Marked(tables)
        self.titled = np.flatnonzero(self.marked.has_title[self.document_rows])

    def numbers(self, rng: np.random.Generator) -> np.ndarray:
        return np.concatenate([self.pairs, len(self.document_rows) + np.arange(len(self.titled))])

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        n_pairs = len(self.document_rows)
        pair = number if number < n_pairs else self.titled[number - n_pairs]
        row, mark = self.document_rows[pair], "body" if number < n_pairs else "title"
        targets = self.targets(pair, rng) if mark == "body" else [self.marked.title(row)]
        source = self.marked.source(self.query(pair), mark)
        return Example(source, targets, row, relevant=self.relevant(pair))

    def example(self, source: list[int], row: int, rng: np.random.Generator) -> Example:
        return super().example(self.marked.source(source, "body"), row, rng)

    @cached_property
    def lengths(self) -> np.ndarray:
        pairs = super().lengths
        return np.concatenate([pairs, pairs[self.titled]])


@part("inputs")
class UnsupervisedParts(Inputs):
    """Parts of a document that answer each other, for `Indexing`.

    Drawn uniformly: document → title, span → title, title → span, span → another span. Sources
    carry the special tokens of `SealExamples`. Without a title only span → another span is left.
    """

    def __init__(self, length: int = 10, max_tokens: int | None = None):
        """
        Args:
            length: words of a span.
            max_tokens: cut the tokens of a span that is a target.
        """
        self.length, self.max_tokens = length, max_tokens

    def prepare(self, tables: TrainingTables, retrieval: RetrievalTask) -> DocumentTask:
        """See `Inputs`; the targets are the parts'."""
        return _Parts(tables, self)


class _Parts:
    def __init__(self, tables: TrainingTables, inputs: UnsupervisedParts):
        self.tables, self.inputs, self.marked = tables, inputs, _Marked(tables)
        self.rows = np.flatnonzero(tables.document_tokens.lengths)

    def draw(self, row: int, rng: np.random.Generator) -> Example:
        document = self.tables.documents[row]
        kind = int(rng.integers(4)) if self.marked.has_title[row] else 3
        one, another = self._spans(document, rng)
        if kind < 2:
            source = document["tokens"] if kind == 0 else one
            source = self.marked.source(self._ended(source), "title")
            return Example(source, [self.marked.title(row)], row)
        source = document["title_tokens"] if kind == 2 else another
        source = self.marked.source(self._ended(source), "body")
        return Example(source, [self._ended(one[: self.inputs.max_tokens])], row)

    def _spans(self, document: dict, rng: np.random.Generator) -> list[list[int]]:
        """Two spans that start at different words; a document no longer than one has only one."""
        starts = max(1, len(document["word_starts"]) - self.inputs.length + 1)
        chosen = rng.choice(starts, size=2, replace=starts < 2)
        return token_spans(document, chosen.tolist(), self.inputs.length)

    def _ended(self, tokens: list[int]) -> list[int]:
        return cut(tokens, self.tables.document_length, EOS_ID)

    @cached_property
    def lengths(self) -> np.ndarray:
        # The source is the whole document or a part of it: nothing to sort by.
        return np.full(len(self.tables.documents), self.inputs.length)


class _Marked:
    """Sources and titles with the special tokens of `tokenizer.special_tokens`."""

    def __init__(self, tables: TrainingTables):
        missing = [name for name in SPECIAL_TOKENS if name not in tables.special_tokens]
        if missing:
            raise ValueError(
                f"tokenizer.special_tokens: {', '.join(missing)} missing, SEAL's titles need it"
            )
        self.special_tokens, self.titles = tables.special_tokens, tables.documents["title_tokens"]
        self.longest = tables.document_length
        self.has_title = np.array([len(title) > 0 for title in self.titles])

    def source(self, tokens: list[int], mark: str) -> list[int]:
        """The mark between a text, which keeps its length, and its end token."""
        return [*tokens[:-1], *self.special_tokens[mark], EOS_ID]

    def title(self, row: int) -> list[int]:
        """The title's key: its tokens and what ends it."""
        room = max(1, self.longest - len(self.special_tokens["title_end"]))
        return [
            *cut(self.titles[row], room, EOS_ID)[:-1],
            *self.special_tokens["title_end"],
            EOS_ID,
        ]
