"""Inverse document frequency of token ids, the paper's stand-in for importance (Wu et al. §7.2)."""

from collections.abc import Sequence
from itertools import chain, pairwise

import numpy
import torch
from torch import Tensor

BIN_EDGES = (0, 2, 4, 6, 8, 15)  # the paper's Figures 2 and 3
BIN_NAMES = tuple(f"{low}-{high}" for low, high in pairwise(BIN_EDGES))
CHUNK = 4096  # documents at a time: bounds memory, whatever the corpus


def document_frequencies(tokens: Sequence[Sequence[int]], vocabulary_size: int) -> Tensor:
    """In how many documents does each token id occur?

    Args:
        tokens: the corpus' token column, one sequence of ids for each document (a list or a
            `datasets` column; it is read in slices).
        vocabulary_size: ids are below this number.

    Returns:
        (vocabulary_size,) int64.

    Raises:
        ValueError: an id that is negative or not below `vocabulary_size`.
    """
    frequencies = numpy.zeros(vocabulary_size, dtype=numpy.int64)
    for start in range(0, len(tokens), CHUNK):
        documents = tokens[start : start + CHUNK]
        ids = numpy.fromiter(chain.from_iterable(documents), dtype=numpy.int64)
        if ids.size and not (ids.min() >= 0 and ids.max() < vocabulary_size):
            raise ValueError(
                f"token ids from {ids.min()} to {ids.max()} in the corpus: "
                f"must be from 0 to {vocabulary_size - 1}"
            )
        numbers = numpy.repeat(numpy.arange(len(documents)), [len(d) for d in documents])
        distinct = numpy.unique(numbers * vocabulary_size + ids)
        frequencies += numpy.bincount(distinct % vocabulary_size, minlength=vocabulary_size)
    return torch.from_numpy(frequencies)


def inverse_document_frequency(frequencies: Tensor, n_documents: int) -> Tensor:
    """idf = ln(1 + (N − df + 0.5) / (df + 0.5)), always positive, fp32 of the same shape."""
    frequencies = frequencies.double()
    return torch.log1p((n_documents - frequencies + 0.5) / (frequencies + 0.5)).float()


def idf_bin(idf: Tensor) -> Tensor:
    """The number of the bin 0-2-4-6-8-15 that each value falls into, int64 of the same shape.

    A bin holds its lower edge. The last has no upper end, so that a corpus of more than a million
    documents, whose rarest tokens pass 15, keeps them.
    """
    inner = torch.tensor(BIN_EDGES[1:-1], dtype=idf.dtype, device=idf.device)
    return torch.bucketize(idf, inner, right=True)
