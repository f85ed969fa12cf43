import math

import pytest
import torch

from analysis import tokens as module
from analysis.tokens import (
    document_frequencies,
    idf_bin,
    inverse_document_frequency,
)


def test_counts_documents_not_occurrences(monkeypatch):
    corpus = [[1, 1, 2], [2, 3], [], [2, 2, 2]]
    expected = [0, 1, 3, 1, 0]
    assert document_frequencies(corpus, 5).tolist() == expected
    monkeypatch.setattr(module, "CHUNK", 1)  # the size of a slice changes nothing
    assert document_frequencies(corpus, 5).tolist() == expected


def test_idf_by_hand():
    idf = inverse_document_frequency(torch.tensor([0, 10, 40]), n_documents=40)
    expected = [math.log(82), math.log(1 + 30.5 / 10.5), math.log(1 + 0.5 / 40.5)]
    assert idf.tolist() == pytest.approx(expected)


def test_idf_equals_the_reference():
    # document frequencies and values of golden/alignment_measures.json
    idf = inverse_document_frequency(torch.tensor([21, 19, 15, 28]), n_documents=40)
    assert idf.tolist() == pytest.approx([0.645519132, 0.743157601, 0.972732043, 0.363667979])


def test_bins_hold_their_lower_edge_and_the_last_has_no_end():
    idf = torch.tensor([0.0, 1.99, 2.0, 3.9, 4.0, 6.0, 7.99, 8.0, 14.0, 16.7])
    assert idf_bin(idf).tolist() == [0, 0, 1, 1, 2, 3, 3, 4, 4, 4]
    assert module.BIN_NAMES == ("0-2", "2-4", "4-6", "6-8", "8-15")


def test_an_id_outside_the_vocabulary_is_named():
    with pytest.raises(ValueError, match="from 1 to 5 in the corpus: must be from 0 to 4"):
        document_frequencies([[1, 5]], 5)
