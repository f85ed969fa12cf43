"""Lexical systems, where A_ij > 0 if the terms are equal (Eq. 1)."""

from collections.abc import Hashable, Iterator
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.alignment import pair_mask
from gr_mvdr.analyzer import Analyzer, Language
from gr_mvdr.batch import PairBatch
from gr_mvdr.evaluation.bm25 import InvertedLists, Query, count_terms
from gr_mvdr.evaluation.metrics import name_metric
from gr_mvdr.evaluation.ranking import Qrels, Ranking, evaluate
from gr_mvdr.options import Fraction, NonNegative, Text, part
from gr_mvdr.progress import track
from gr_mvdr.relevance import PairAlignment, relevance
from gr_mvdr.salience import inverse_document_frequency
from gr_mvdr.tokenizers import first_term, keep_terms
from models.base import Among, Candidates, Share, System, Table, hash_documents

# What `tune` chooses from.
_K1, _B = (0.6, 0.9, 1.2, 1.5, 2.0), (0.3, 0.4, 0.6, 0.75, 0.9)


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
    """BM25 over the terms of an analyzer, which are the run's tokens under conf/model/bm25.yaml."""

    share_of, score_is = "word", "BM25"
    trainable = False

    def __init__(
        self,
        k1: NonNegative = 1.5,
        b: Fraction = 0.75,
        language: Language = "none",
        reads: Literal["tokens", "texts"] = "tokens",
        tune: Text | None = None,
        metric: Text = "mrr@10",
    ):
        """
        Args:
            k1: saturation of the term frequency.
            b: strength of the length normalisation.
            language: the language of the texts, see `Analyzer`.
            reads: "tokens" of a `WordTokenizer`, or "texts", whatever the run's tokens are.
            tune: the split on which k1 and b are chosen, by `metric`; None = as given.
        """
        super().__init__()
        self.save_hyperparameters()
        self.tunes_search, self.tuning_split = bool(tune), tune
        self.first_term = first_term(language)

    def index(self, documents: Table, directory: str | Path | None = None) -> None:
        """Indexes the documents' terms."""
        counts = count_terms(documents["id"][:], self.terms(documents))
        self.searcher = counts.bm25(self.hparams.k1, self.hparams.b)
        self.tuned = (counts, documents, directory) if self.tunes_search else None
        self._save(documents, directory)

    def _save(self, documents: Table, directory: str | Path | None) -> None:
        if directory is not None:
            made_of = {name: self.hparams[name] for name in ("language", "reads")}
            self.searcher.save(directory, collection=hash_documents(documents), **made_of)

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """Opens what `index` wrote; see `System.open_index`."""
        made_of = {name: self.hparams[name] for name in ("k1", "b", "language", "reads")}
        collection = hash_documents(documents)
        self.searcher = InvertedLists.open(directory, collection=collection, **made_of)

    @property
    def proposes_candidates(self) -> bool:
        """Whether its index is the one that proposes candidates to every system."""
        return self.hparams.reads == "tokens" and (self.hparams.k1, self.hparams.b) == (1.5, 0.75)

    def tune_search(self, queries: Table, depth: int, qrels: Qrels) -> None:
        """Chooses the k1 and b that are best for judged queries, and saves the index again."""
        counts, *place = self.tuned
        name, asked = name_metric(self.hparams.metric), self.query_terms(queries)
        values = {
            (k1, b): evaluate(counts.bm25(k1, b).search(asked, depth), qrels, [name])[name]
            for k1, b in track([*product(_K1, _B)], "choosing k1 and b")
        }
        k1, b = best = max(values, key=values.__getitem__)
        print(f"model.k1={k1} model.b={b}: {name} is {values[best]:.3f} on {self.tuning_split}")
        self.hparams.update(k1=k1, b=b, tune=None)
        self.searcher, self.tunes_search, self.tuned = counts.bm25(k1, b), False, None
        self._save(*place)

    def terms(self, table: Table) -> Iterator[list[Hashable]]:
        """Yields each text's terms; a list of all would need 3 kB per text."""
        if self.hparams.reads == "texts":
            return map(Analyzer(self.hparams.language).terms, table["text"])
        return keep_terms(table["tokens"], self.hparams.language)

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
        including the end token, stop words and unknown words are not terms.
        """
        if self.hparams.reads == "texts":
            raise NotImplementedError("BM25 of texts: has no alignment of a batch of token ids")
        equal = batch.document_ids.unsqueeze(2) == batch.query_ids.unsqueeze(1)
        documents = batch.document_mask & (batch.document_ids >= self.first_term)
        queries = batch.query_mask & (batch.query_ids >= self.first_term)
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
        idf = inverse_document_frequency(np.append(counts, 0)[places], len(self.searcher.ids))
        return torch.from_numpy(idf).to(terms.device, torch.float32).view(terms.shape)
