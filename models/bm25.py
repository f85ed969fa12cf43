"""Lexical systems, where A_ij > 0 if the terms are equal (Eq. 1)."""

from collections.abc import Hashable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.alignment import pair_mask
from gr_mvdr.batch import PairBatch
from gr_mvdr.evaluation.bm25 import InvertedLists, Query, index_bm25
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.options import Fraction, NonNegative, part
from gr_mvdr.relevance import PairAlignment, relevance
from gr_mvdr.texts import split_words
from gr_mvdr.tokenizers import UNK_ID
from models.base import Among, Candidates, Share, System, Table, hash_documents


class LexicalSystem(System):
    """A system whose texts are weighted terms, searched exactly by inverted lists.

    Attributes:
        searcher: the lists of the documents, after `index`.
    """

    paradigm = "lexical"
    searcher: InvertedLists

    def query_terms(self, queries: Table) -> dict[str, Query]:
        """Returns query id → its terms."""
        raise NotImplementedError

    def _retrieve(self, queries: Table, k: int, among: Among, with_shares: bool) -> Ranking:
        """Adds up the lists of each query's terms; a share is a term's contribution."""
        asked = self.query_terms(queries)
        ranking = self.searcher.search(asked, k, among)
        if with_shares:
            ranking.shares = {
                query: {
                    name: [Share(t if isinstance(t, str) else (t,), value) for t, value in parts]
                    for name, parts in self.searcher.shares(terms, ranking.documents(query)).items()
                }
                for query, terms in asked.items()
            }
        return ranking

    def _rerank(self, queries: Table, documents: Table, candidates: Candidates) -> Ranking:
        """Ranks the candidates by the scores of their indexed terms."""
        number, results = self.searcher.numbers, {}
        for query, terms in self.query_terms(queries).items():
            scores = self.searcher.scores(terms)
            results[query] = {name: float(scores[number[name]]) for name in candidates[query]}
        return Ranking(results)


@part("model")
class BM25(LexicalSystem):
    """BM25 over the run's tokens, which are whole words under conf/model/bm25.yaml."""

    share_of, score_is = "word", "BM25"
    trainable = False

    def __init__(self, k1: NonNegative = 1.5, b: Fraction = 0.75):
        """
        Args:
            k1: saturation of the term frequency.
            b: strength of the length normalisation.
        """
        super().__init__()
        self.save_hyperparameters()

    def index(self, documents: Table, directory: str | Path | None = None) -> None:
        """Indexes the documents' terms."""
        self.searcher = index_bm25(documents["id"][:], self.terms(documents), **self.hparams)
        if directory is not None:
            self.searcher.save(directory, collection=hash_documents(documents))

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """Opens what `index` wrote; see `System.open_index`."""
        made_of = {"collection": hash_documents(documents), **self.hparams}
        self.searcher = InvertedLists.open(directory, **made_of)

    def terms(self, table: Table) -> Iterator[list[Hashable]]:
        """Yields each text's terms, without special tokens; a list would need 3 kB per text."""
        return ([t for t in tokens if t > UNK_ID] for tokens in table["tokens"])

    def query_terms(self, queries: Table) -> dict[str, Query]:
        """Returns query id → its terms, each as often as it occurs."""
        return dict(zip(queries["id"][:], self.terms(queries), strict=True))

    def joint_flops(self, query_tokens: int, document_tokens: int) -> float:
        """0: all weights are in the index, and a query only adds some of them up."""
        return 0.0

    def score(self, batch: PairBatch) -> Tensor:
        """Computes BM25 (B,) of the batch's texts, which may be truncated documents."""
        return self.align(batch).score

    def align(self, batch: PairBatch) -> PairAlignment:
        """Sets A_ij = 1 for equal terms and S_ij to the term's BM25 weight divided by its tf.

        Then Σ_i S_ij A_ij = idf(q_j) · tf / (tf + k1 (1 − b + b |d| / mean |d|)). Special tokens,
        including the end token, and unknown words are not terms.
        """
        equal = batch.document_ids.unsqueeze(2) == batch.query_ids.unsqueeze(1)
        documents = batch.document_mask & (batch.document_ids > UNK_ID)
        queries = batch.query_mask & (batch.query_ids > UNK_ID)
        aligned = (equal & pair_mask(documents, queries)).float()
        frequency = aligned.sum(1, keepdim=True)  # (B, 1, N)
        length = documents.sum(1)[:, None, None] / self.searcher.settings["mean_length"]
        k1, b = self.hparams.k1, self.hparams.b
        idf = self._idf(batch.query_ids).unsqueeze(1)
        matrix = (idf / (frequency + k1 * (1 - b + b * length))).expand_as(aligned)
        scores = relevance(matrix, aligned)
        return PairAlignment(
            similarity=(matrix * pair_mask(batch.document_mask, batch.query_mask)).unsqueeze(1),
            alignment=aligned.unsqueeze(1),
            normaliser=torch.ones_like(scores),
            relevance=scores,
            score=scores,
            **batch.sides,
        )

    def _idf(self, terms: Tensor) -> Tensor:
        """Returns each term's idf; a term that no document holds has the largest possible idf."""
        known, counts = self.searcher.vocabulary, np.diff(self.searcher.matrix.indptr)
        places = [known.get(term, -1) for term in terms.flatten().tolist()]
        frequency = terms.new_tensor(np.append(counts, 0)[places]).float().view(terms.shape)
        return torch.log1p((len(self.searcher.ids) - frequency + 0.5) / (frequency + 0.5))


class WordBM25(BM25):
    """BM25 over the words of `text`, for any tokeniser."""

    def terms(self, table: Table) -> Iterator[list[Hashable]]:
        """Yields the words of each text."""
        return map(split_words, table["text"])

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """See `BM25.open_index`; also raises ValueError if the index holds token ids."""
        super().open_index(documents, directory)
        if any(not isinstance(term, str) for term in self.searcher.vocabulary):
            raise ValueError(f"{directory}: must be an index of words, not of token ids")

    def align(self, batch: PairBatch) -> PairAlignment:
        raise NotImplementedError("BM25 of words: has no alignment of a batch of token ids")
