"""The n-gram index against a table of all n-grams, at documents' ends, and damaged on disk."""

import numpy as np
import pytest
import torch

from gr_mvdr.decoding.ngram_index import NgramIndex


def all_ngrams(documents, longest):
    """Every n-gram and its (document, offset) pairs, found by walking through the documents."""
    result = {}
    for number, document in enumerate(documents):
        for start in range(len(document)):
            for end in range(start + 1, min(start + longest, len(document)) + 1):
                result.setdefault(tuple(document[start:end]), []).append((number, start))
    return result


def followers(documents, ngram, places):
    ends = [(number, start + len(ngram)) for number, start in places]
    return sorted({documents[n][end] for n, end in ends if end < len(documents[n])})


def random_documents(seed, vocabulary, n_documents=7, longest=18):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest, n_documents)
    return [rng.integers(0, vocabulary, length).tolist() for length in lengths]


@pytest.mark.parametrize(
    ("vocabulary", "depth"),
    [(2, 16), (3, 4), (60_000, 16), (250_000, 5), (2**32 - 1, 16)],
)
def test_equals_a_table_of_all_ngrams(vocabulary, depth):
    documents = random_documents(vocabulary, vocabulary)
    documents += [documents[3] * 2, documents[3]]  # repeated text: ties beyond the depth
    index = NgramIndex.build(documents, depth)
    assert index.text.dtype == (np.uint16 if vocabulary < 65_536 else np.uint32)
    everything = all_ngrams(documents, 18)
    short = [ngram for ngram in everything if len(ngram) <= depth]
    low, high = index.intervals(short)
    assert (high - low).tolist() == [index.count(ngram) for ngram in short]
    for ngram, places in everything.items():
        assert index.count(ngram) == len(places)
        assert index.successors(ngram).tolist() == followers(documents, ngram, places)
        assert index.documents(ngram).tolist() == sorted({number for number, _ in places})
        result = np.sort(index.positions(ngram))
        assert result.tolist() == [index.starts[number] + offset for number, offset in places]


@pytest.mark.parametrize("vocabulary", [2, 40])
def test_expanding_all_prefixes_at_once_visits_exactly_the_ngrams(vocabulary):
    documents = random_documents(vocabulary, vocabulary)
    table = all_ngrams(documents, 16)
    index = NgramIndex.build(documents)
    prefixes, state = [()], index.root(1, "cpu")
    for length in range(1, 17):
        result = index.expand(state)
        rows = zip(result.row.tolist(), result.token.tolist(), strict=True)
        extended = [(*prefixes[row], token) for row, token in rows]
        assert extended == sorted(extended)
        assert set(extended) == {ngram for ngram in table if len(ngram) == length}
        counts = result.state.high - result.state.low
        assert counts.tolist() == [len(table[ngram]) for ngram in extended]
        chosen = torch.arange(len(extended)) % 3 != 1  # any selection of hypotheses will do
        prefixes = [ngram for ngram, kept in zip(extended, chosen, strict=True) if kept]
        state = result.state[chosen]
        table = {n: p for n, p in table.items() if len(n) <= length or n[:length] in prefixes}


@pytest.mark.parametrize("absent", [[9], [3, 9], [-1], [65_535], [10**12], [3, 65_535]])
def test_tokens_that_occur_nowhere_count_zero(absent):
    index = NgramIndex.build([[3, 4], [3]])
    assert index.count(absent) == 0
    assert index.successors(absent).tolist() == []
    assert index.documents(absent).tolist() == []


def test_what_is_loaded_equals_what_was_saved(tmp_path):
    documents = random_documents(0, 20)
    built = NgramIndex.build(documents)
    built.save(tmp_path / "index")
    loaded = NgramIndex.load(tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    for ngram in all_ngrams(documents, 3):
        assert loaded.successors(ngram).tolist() == built.successors(ngram).tolist()
    with pytest.raises(ValueError, match="exists already"):
        built.save(tmp_path / "index")
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        NgramIndex.load(tmp_path / "elsewhere")


def test_the_ngrams_within_some_documents_are_those_of_an_index_of_them():
    generator = np.random.default_rng(0)
    texts = [[*generator.integers(3, 7, n).tolist(), 1] for n in (5, 1, 12, 3, 12, 7)]
    texts[4] = texts[2]
    for chosen in ([0], [2, 4], [5, 1, 3], range(6)):
        part = NgramIndex.build(texts, depth=4).within(chosen)
        alone = NgramIndex.build([texts[number] for number in sorted(chosen)], depth=4)
        assert part.tokens.tolist() == alone.tokens.tolist() and len(part) == len(alone)
        assert part.token_counts.tolist() == alone.token_counts.tolist()
        assert part.shared.tolist() == alone.shared.tolist()
        for text in texts:
            for length in range(6):
                for start in range(len(text) - length + 1):
                    ngram = text[start : start + length]
                    assert part.count(ngram) == alone.count(ngram)
                    assert part.successors(ngram).tolist() == alone.successors(ngram).tolist()
                    result = [sorted(chosen)[number] for number in alone.documents(ngram)]
                    assert part.documents(ngram).tolist() == result
