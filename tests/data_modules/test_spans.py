"""Span sampling: SEAL's own weights, draws that follow them, and the ends of passages."""

import numpy as np
import pytest

from data_modules.spans import (
    STOPWORDS,
    fixed_windows,
    sample_spans,
    sample_starts,
    span_weights,
    spans_at,
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


def test_the_temperature_sharpens_the_weights():
    query, passage = next(iter(CASES))
    cold, warm = (span_weights(query, passage, temperature) for temperature in (0.1, 100.0))
    assert cold.argmax() == 1 and cold.max() > 0.99
    assert warm[warm > 0] == pytest.approx(1 / 9, abs=0.01)


def test_a_passage_of_stopwords_has_equal_weights():
    assert span_weights("who was it", "It was then").tolist() == pytest.approx([1 / 3] * 3)
    assert len(STOPWORDS) == 120


def test_an_empty_query_has_no_preference():
    assert span_weights("", "the red house").tolist() == pytest.approx([0, 0.5, 0.5])


def test_a_passage_shorter_than_a_window():
    assert span_weights("the red house", "House").tolist() == [1.0]
    rng = np.random.default_rng(0)
    assert sample_spans("the red house", "House", 2, rng) == ["House", "House"]


def test_a_passage_without_words_has_no_spans():
    assert span_weights("who", "  \n").shape == (0,)
    assert sample_spans("who", "", 3, np.random.default_rng(0)) == []
    assert span_weights("", "red house").tolist() == [0.5, 0.5]  # a query that cleaning emptied
    with pytest.raises(ValueError, match="temperature=0"):
        span_weights("who", "me", temperature=0)


def test_starts_follow_the_weights():
    weights = np.array([0.0, 0.5, 0.0, 0.2, 0.3, 0.0])
    starts = sample_starts(weights, 20_000, np.random.default_rng(0))
    assert starts.dtype == np.int64
    shares = np.bincount(starts, minlength=6) / len(starts)
    assert shares == pytest.approx(weights, abs=0.015)
    assert not shares[weights == 0].any()


def test_the_smallest_random_number_draws_the_first_start_that_has_a_weight():
    class Zero:
        def random(self, n):
            return np.zeros(n)

    assert sample_starts(np.array([0.0, 0.5, 0.5]), 2, Zero()).tolist() == [1, 1]


def test_spans_keep_their_case_and_stop_at_the_end():
    words = [f"Word{number}" for number in range(15)]
    passage = "  ".join(words)
    assert spans_at(passage, [0, 5, 6, 14]) == [
        " ".join(words[:10]), " ".join(words[5:15]), " ".join(words[6:]), "Word14",
    ]  # fmt: skip
    assert spans_at(passage, [3], length=2) == ["Word3 Word4"]
    with pytest.raises(ValueError, match="length=0"):
        spans_at(passage, [0], length=0)


def test_the_same_seed_draws_the_same_spans():
    query, passage = next(iter(CASES))
    first, again, other = (
        sample_spans(query, passage, 8, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert all(span in passage for span in first)


def test_windows_cover_a_document_once():
    tokens = list(range(23))
    windows = fixed_windows(tokens, 10)
    assert [len(window) for window in windows] == [10, 10, 3]
    assert [token for window in windows for token in window] == tokens
    assert fixed_windows([], 10) == []
    assert fixed_windows(tokens, 23) == [tokens]
    with pytest.raises(ValueError, match="length=0"):
        fixed_windows(tokens, 0)
