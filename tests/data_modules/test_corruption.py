"""Span corruption: what is taken out of a passage, and that nothing else is lost."""

from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset

from data_modules.corruption import SpanCorruption, TextExamples
from gr_mvdr.template import TextTemplate


class Tokenizer:
    """Has n sentinels, from id 90 down, and a mask."""

    def __init__(self, sentinels: int, mask: int | None = None):
        self.known = {f"<extra_id_{n}>": 90 - n for n in range(sentinels)}
        self.mask_token_id = mask

    def get_vocab(self) -> dict[str, int]:
        return self.known


def tables(lengths, sentinels=100):
    """Documents of the tokens 100, 101, …"""
    documents = [list(range(100, 100 + length)) for length in lengths]
    return SimpleNamespace(
        documents={"tokens": documents},
        document_tokens=Column(documents),
        known_rows=np.arange(len(documents))[1:],
        tokenizer=Tokenizer(sentinels),
        template=TextTemplate(),
        pairs=Dataset.from_dict({"query_row": [], "document_row": []}),
    )


class Column(list):
    """As `TokenColumn`."""

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(tokens) for tokens in self])


@pytest.mark.parametrize("sentinels", [1, 100])
def test_the_target_fills_what_the_source_lacks(sentinels):
    """Each sentinel of the source, replaced by what follows its turn in the target, is the text."""
    examples = TextExamples(inputs=SpanCorruption(length=30, density=0.3, mean_span=2.0))
    task = examples.prepare(tables([50, 1, 40, 30], sentinels))
    assert task.numbers(np.random.default_rng(0)).tolist() == [2, 3]  # 0 is unknown, 1 too short
    for number in range(20):
        example = task.draw(2 + number % 2, np.random.default_rng(number))
        *source, end = example.source
        *target, stop = example.targets[0]
        assert end == stop == 1 and example.document == 2 + number % 2
        spans: list[list[int]] = []
        for token in target:
            if token < 100:
                spans.append([])
            else:
                spans[-1].append(token)
        assert len(spans) == sum(token < 100 for token in source) == 4  # 9 tokens by twos: 4 spans
        text = []
        for token in source:
            text += [token] if token >= 100 else spans.pop(0)
        assert text == list(range(text[0], text[0] + 30)) and sum(t >= 100 for t in target) == 9
