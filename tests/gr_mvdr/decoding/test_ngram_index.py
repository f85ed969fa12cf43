"""The n-gram index against a table of all n-grams, at documents' ends."""

import numpy as np
import pytest

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
