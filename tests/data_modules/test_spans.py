"""Spans: SEAL's own weights, draws that follow them, the ends of passages, and segments."""

import numpy as np
import pytest

from data_modules.spans import (
    STOPWORDS,
    SampledSpans,
    cut_spans,
    sample_starts,
    span_weights,
)

# Weights that the original implementation gives (reference file `span_weights.json`).
CASES = {
    (
        "who painted the night watch",
        "The Night Watch is a 1642 painting by Rembrandt van Rijn in the Rijksmuseum Amsterdam",
    ): {
        1: 0.30088236,
        2: 0.171866731,
        5: 0.083656519,
        6: 0.091534812,
        8: 0.062597125,
        9: 0.056640221,
        10: 0.121112438,
        13: 0.04973552,
        14: 0.061974274,
    },
    (
        "when was the eiffel tower built",
        "Gustave Eiffel designed the tower which was completed in 1889 for the World Fair",
    ): {
        0: 0.164303021,
        1: 0.183407859,
        2: 0.183407859,
        4: 0.148667521,
        7: 0.078391258,
        9: 0.112360496,
        12: 0.079974866,
        13: 0.049487119,
    },
}


@pytest.mark.parametrize(("pair", "expected"), CASES.items())
def test_weights_equal_the_original(pair, expected):
    weights = span_weights(*pair)
    assert len(weights) == len(pair[1].split())
    found = {int(start): weights[start] for start in np.flatnonzero(weights)}
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_passage_of_stopwords_has_equal_weights():
    assert span_weights("who was it", "It was then").tolist() == pytest.approx([1 / 3] * 3)
    assert len(STOPWORDS) == 120


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


def test_sampled_spans_are_pieces_of_the_document_that_resemble_the_query():
    spans = SampledSpans(n_spans=200, length=2, temperature=0.1)("ravensmoor fell", DOCUMENT)
    assert len(spans) == 200 and all(span in cut_spans(DOCUMENT, range(5), 2) for span in spans)
    assert spans.count([10]) + spans.count([10, 20, 21]) < 20 < spans.count([40, 41, 42, 50])
    assert [30, 40, 41, 42] not in spans, "no span starts at a stop word"
