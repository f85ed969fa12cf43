"""Learning from texts alone: span corruption (T5, Raffel et al. 2020, §3.1.4)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Self

import numpy as np
from transformers import PreTrainedTokenizerBase

from data_modules.collection import TrainingTables
from data_modules.epoch import Example
from data_modules.examples import Examples
from data_modules.indexing import Inputs
from gr_mvdr.options import AtLeast, Rule, part


@part("inputs")
@dataclass
class SpanCorruption(Inputs):
    """A passage in which sentinels take the place of some spans → the spans, after their sentinels.

    Args:
        length: tokens of a passage, which begins anywhere in the document.
        density: the share of them that is taken out. mean_span: tokens of a span, on average.
    """

    length: Annotated[int, AtLeast(2)] = 128
    density: Annotated[float, Rule("> 0 and < 1", lambda share: 0 < share < 1)] = 0.15
    mean_span: Annotated[float, AtLeast(1)] = 3.0

    def prepare(self, tables: TrainingTables, retrieval: Examples) -> Self:
        """See `Inputs`: documents of two tokens or more.

        Raises:
            ValueError: the tokeniser has no token that could be a sentinel.
        """
        prepared = super().prepare(tables, retrieval)
        prepared.rows = np.flatnonzero(tables.document_tokens.lengths > 1)
        prepared.sentinels = find_sentinels(tables.tokenizer)
        return prepared

    def draw(self, row: int, rng: np.random.Generator) -> Example:
        tokens = self.tables.document_tokens[row]
        start = int(rng.integers(max(1, len(tokens) - self.length + 1)))
        passage = tokens[start : start + self.length]
        kept, taken = split_spans(passage, self.density, self.mean_span, rng)
        source: list[int] = []
        target: list[int] = []
        for number, (before, span) in enumerate(zip(kept, taken, strict=True)):
            sentinel = self.sentinels[min(number, len(self.sentinels) - 1)]
            source += [*before, sentinel]
            target += [sentinel, *span]
        template = self.tables.template
        source = template.read_query(source, self.length + 2)
        return Example(source, [[*target, template.stop]], row)

    @cached_property
    def lengths(self) -> np.ndarray:
        return self.tables.document_tokens.lengths.clip(max=self.length)


def find_sentinels(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of <extra_id_0>, <extra_id_1>, …; of a tokeniser without them its mask's alone.

    Where a passage has more spans than there are sentinels the last one is used again: their order
    tells them apart.

    Raises:
        ValueError: there is neither.
    """
    known, found = tokenizer.get_vocab(), []
    while (token := f"<extra_id_{len(found)}>") in known:
        found.append(known[token])
    if not found and tokenizer.mask_token_id is None:
        raise ValueError(
            "inputs: must not be SpanCorruption with a tokeniser that has neither "
            "<extra_id_0> nor a mask"
        )
    return found or [tokenizer.mask_token_id]


def split_spans(
    tokens: Sequence[int], density: float, mean_span: float, rng: np.random.Generator
) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
    """Cuts a passage into spans that are kept and spans that are taken out, in turns.

    Lengths are drawn as T5 does: of all ways to cut the kept tokens, and those taken out, into so
    many parts, each is equally probable. The passage begins with a part that is kept.

    Args:
        tokens: two or more.

    Returns:
        Equally many kept and taken spans, none of them empty.
    """
    n_taken = min(max(1, round(density * len(tokens))), len(tokens) - 1)
    n_spans = min(max(1, round(n_taken / mean_span)), n_taken, len(tokens) - n_taken)
    kept, taken = (_cut(n, n_spans, rng) for n in (len(tokens) - n_taken, n_taken))
    ends = np.stack([kept, taken], 1).ravel().cumsum().tolist()
    spans = [tokens[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return spans[::2], spans[1::2]


def _cut(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """(parts,) int64 ≥ 1 whose sum is `total`."""
    cuts = np.sort(rng.choice(total - 1, size=parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total)


@part("examples", inputs="inputs")
@dataclass
class TextExamples(Examples):
    """The documents known in training, no pairs: a first stage of training.

    Args:
        inputs: what is made of a document, such as `SpanCorruption`; an epoch has each once.
    """

    inputs: Inputs = field(kw_only=True)

    def __post_init__(self):
        if self.negatives:
            raise ValueError("data.examples.negatives: must be null where texts alone are learned")

    def prepare(self, tables: TrainingTables) -> Self:
        """See `Examples`."""
        prepared = super().prepare(tables)
        prepared.inputs = self.inputs.prepare(tables, prepared)
        prepared.rows = np.intersect1d(tables.known_rows, prepared.inputs.rows)
        return prepared

    def numbers(self, rng: np.random.Generator) -> np.ndarray:
        return self.rows

    def draw(self, number: int, rng: np.random.Generator) -> Example:
        return self.inputs.draw(number, rng)

    @cached_property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths
