"""Constrained beam search against one hypothesis at a time in plain Python."""

import zlib

import pytest
import torch

from gr_mvdr.decoding.beam_search import beam_search
from gr_mvdr.decoding.ngram_index import NgramIndex

END = 1


class PathModel:
    """Log-probabilities that depend on the query and the whole path: a cache that must be right.

    Scores are rounded to `grain`, so that a coarse one makes many hypotheses equal.
    """

    def __init__(self, vocabulary, queries, grain=None):
        self.vocabulary, self.grain = vocabulary, grain
        self.paths = [(query,) for query in queries]
        self.is_first = True

    def __call__(self, tokens, parents):
        if not self.is_first:
            rows = zip(parents.tolist(), tokens.tolist(), strict=True)
            self.paths = [(*self.paths[parent], token) for parent, token in rows]
        self.is_first = False
        return torch.stack([self.log_probs(path) for path in self.paths])

    def log_probs(self, path):
        generator = torch.Generator().manual_seed(zlib.crc32(repr(path).encode()))
        scores = 2 * torch.randn(self.vocabulary, generator=generator)
        if self.grain:
            scores = (scores / self.grain).round() * self.grain
        return scores.log_softmax(-1)


def plain_search(model, successors_of, query, beam_size, length):
    """One query, one hypothesis after the other; `successors_of` a path, ascending."""
    live, final, candidates = [((), torch.zeros(()))], [], []
    for _ in range(length):
        result = []
        for rank, (path, score) in enumerate(live):
            tokens = successors_of(path)
            if path and not tokens:
                final.append((path, score))
            log_probs = model.log_probs((query, *path))
            result += [((*path, t), score + log_probs[t], rank, t) for t in tokens]
        result.sort(key=lambda item: (-item[1].item(), item[2], item[3]))
        result = [(path, score) for path, score, _, _ in result[: 2 * beam_size]]
        candidates += result
        final += [item for item in result if item[0][-1] == END]
        live = [item for item in result if item[0][-1] != END][:beam_size]
    return tuple(
        [(list(path), score.item()) for path, score in part] for part in (final + live, candidates)
    )


def random_documents(seed, vocabulary, n_documents):
    generator = torch.Generator().manual_seed(seed)

    def tokens():
        length = int(torch.randint(1, 8, (), generator=generator))
        return torch.randint(2, vocabulary, (length,), generator=generator).tolist()

    return [tokens() + [END] * (number % 3 > 0) for number in range(n_documents)]


@pytest.mark.parametrize(
    ("vocabulary", "n_documents", "beam_size", "length", "grain"),  # 2: many equal scores
    [
        (6, 5, 1, 4, None),
        (6, 5, 3, 5, 2.0),
        (12, 8, 4, 6, None),
        (4, 3, 20, 5, 2.0),
        (9, 1, 3, 9, None),
        (30, 20, 7, 1, 2.0),
    ],
)
def test_equals_the_plain_search(vocabulary, n_documents, beam_size, length, grain):
    documents = random_documents(vocabulary, vocabulary, n_documents)
    queries = range(3)
    model = PathModel(vocabulary, queries, grain)
    index = NgramIndex.build(documents)
    result = beam_search(model, index, len(queries), beam_size, length, END)

    def successors_of(path):
        n = len(path)
        places = ((d, i + n) for d in documents for i in range(len(d) - n))
        return sorted({d[end] for d, end in places if path == tuple(d[end - n : end])})

    for query in queries:
        final, candidates = plain_search(model, successors_of, query, beam_size, length)
        assert result.candidates.of(query) == candidates
        assert sorted(result.final.of(query)) == sorted(final)
        scores = [score for _, score in result.final.of(query)]
        assert scores == sorted(scores, reverse=True)
        first = model.log_probs((query,))
        assert torch.equal(result.first_log_probs[query], first)
