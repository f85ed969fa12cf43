import pytest

from data_modules.segments import SampledSpans, Windows, token_spans

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
        (0, 1, [10]),
        (1, 2, [20, 21, 30]),
        (3, 1, [40, 41, 42]),
        (3, 2, [40, 41, 42, 50]),
        (3, 10, [40, 41, 42, 50]),
        (0, 99, DOCUMENT["tokens"]),
    ],
)
def test_spans_of_words_are_cut_from_the_tokens(start, length, tokens):
    assert token_spans(DOCUMENT, [start], length) == [tokens]


def test_windows_cover_the_first_tokens_without_looking_at_the_query():
    windows = Windows(length=3, document_length=8)
    assert windows("ravensmoor", DOCUMENT) == [[10, 20, 21], [30, 40, 41], [42]]
    assert windows("anything else", DOCUMENT) == windows("ravensmoor", DOCUMENT)
    assert Windows(length=10)("", DOCUMENT) == [DOCUMENT["tokens"]]


def pieces(document, length):
    tokens, bounds = document["tokens"], [*document["word_starts"], len(document["tokens"])]
    last = len(bounds) - 1
    return [tokens[bounds[s] : bounds[min(s + length, last)]] for s in range(last)]


def test_sampled_spans_are_pieces_of_the_document_that_resemble_the_query():
    spans = SampledSpans(n_spans=200, length=2, temperature=0.1)("ravensmoor fell", DOCUMENT)
    assert len(spans) == 200 and all(span in pieces(DOCUMENT, 2) for span in spans)
    assert spans.count([10]) + spans.count([10, 20, 21]) < 20 < spans.count([40, 41, 42, 50])
    assert [30, 40, 41, 42] not in spans, "no span starts at a stop word"


def test_the_same_pair_and_seed_draw_the_same_spans():
    draw = lambda seed=0, query="fell", name="d1": SampledSpans(20, 1, seed=seed)(  # noqa: E731
        query, {**DOCUMENT, "id": name}
    )
    assert draw() == draw()
    assert draw() != draw(seed=1)
    assert draw() != draw(name="d2")
