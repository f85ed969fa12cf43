"""Spans: SEAL's own weights, and spans of words cut from the tokens."""

import json
from pathlib import Path

import numpy as np
import pytest

from data_modules.spans import (
    STOPWORDS,
    cut_spans,
    sample_starts,
    span_weights,
)

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden" / "span_weights.json"


def test_weights_equal_the_original():
    golden = json.loads(GOLDEN.read_text())
    assert sorted(STOPWORDS) == golden["stopwords"]
    for case in golden["cases"]:
        weights = span_weights(case["query"], case["passage"])
        assert len(weights) == len(case["passage"].split())
        expected = {int(start): weight for start, weight in case["start_weights"].items()}
        result = {int(start): weights[start] for start in np.flatnonzero(weights)}
        assert result == pytest.approx(expected, abs=1e-6)


def test_a_passage_without_words_has_no_spans():
    assert span_weights("who", "  \n").shape == (0,)
    assert sample_starts(np.empty(0), 3, np.random.default_rng(0)).shape == (0,)
    assert span_weights("", "red house").tolist() == [0.5, 0.5]  # a query that cleaning emptied
    with pytest.raises(ValueError, match="temperature=0"):
        span_weights("who", "me", temperature=0)


# Words of 1, 2, 1, 3 and 1 tokens.
DOCUMENT = {
    "id": "d1",
    "text": "Aldgate bridge the ravensmoor fell",
    "tokens": [10, 20, 21, 30, 40, 41, 42, 50],
    "word_starts": [0, 1, 3, 4, 7],
}


@pytest.mark.parametrize(
    ("start", "length", "tokens"),
    [
        (1, 2, [20, 21, 30]),
        (3, 2, [40, 41, 42, 50]),
        (0, 99, DOCUMENT["tokens"]),
    ],
)
def test_spans_of_words_are_cut_from_the_tokens(start, length, tokens):
    assert cut_spans(DOCUMENT, [start], length) == [tokens]
