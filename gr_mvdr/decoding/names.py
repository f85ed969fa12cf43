"""Names of documents: identifiers in a trie, or all n-grams of a document's text (gr_as_mvdr §4).

A search generates sequences of at most `length` tokens under the `constraint` of the names. The
names map a generated sequence to documents, and the result of a search to document scores.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from gr_mvdr.decoding.beam_search import BeamSearchResult
from gr_mvdr.decoding.evidence import score_documents, share_scores
from gr_mvdr.decoding.ngram_index import NgramIndex
from gr_mvdr.decoding.trie import Trie
from gr_mvdr.template import Ids


@dataclass(frozen=True)
class TrieNames:
    """One identifier for each document (DSI, GENRE); documents with the same identifier tie.

    Attributes:
        constraint: the trie of the identifiers.
        sequences: the tokens of each document's identifier; [] = it has none.
        length_penalty: a document's score is log p(identifier | query) / length^penalty.
    """

    constraint: Trie
    sequences: Sequence[Sequence[int]]
    length_penalty: float = 0.0

    @property
    def length(self) -> int:
        return self.constraint.depth

    def within(self, documents: frozenset[int]) -> "TrieNames":
        """Returns the names of these documents alone; a search with them finds no others."""
        chosen = [own if row in documents else [] for row, own in enumerate(self.sequences)]
        return replace(self, constraint=Trie.build(chosen))

    def documents_of(self, tokens: Sequence[int]) -> np.ndarray:
        """Returns (n,) int64, the numbers of the documents that a sequence names, ascending."""
        node = int(self.constraint.find(torch.tensor([list(tokens)])))
        return self.constraint.documents_at(node) if node >= 0 else np.empty(0, np.int64)

    def gold_prefixes(self, document: int) -> set[Ids]:
        """Returns every token sequence that a search may hold on its way to a document."""
        tokens = tuple(self.sequences[document])
        return {tokens[:length] for length in range(1, len(tokens) + 1)}

    def scores(self, result: BeamSearchResult, query: int) -> dict[int, float]:
        """Returns document number → score, from the sequences generated for one query."""
        final = result.final[result.final.query == query]
        # On the CPU: not every accelerator has double precision.
        lengths = final.lengths.cpu() ** self.length_penalty
        scores = final.log_probs.cpu().double() / lengths
        nodes = self.constraint.find(final.tokens).tolist()
        return {
            document: score
            for node, score in zip(nodes, scores.tolist(), strict=True)
            if node >= 0
            for document in self.constraint.documents_at(node).tolist()
        }

    def shares(
        self, result: BeamSearchResult, query: int, documents: Sequence[int]
    ) -> dict[int, list[tuple]]:
        """Returns document number → the parts of its score as (tokens, value); they sum to it.

        Here a part is a token's log-probability / length^penalty, the difference of the sums of two
        prefixes. If documents have several views (`models.beyond.views`), a third item names the
        part's view.
        """
        totals = {tuple(tokens): total for tokens, total in result.candidates.of(query)}
        shares = {}
        for document in documents:
            tokens = tuple(self.sequences[document])
            sums = [0.0, *(totals[tokens[:end]] for end in range(1, len(tokens) + 1))]
            scale = len(tokens) ** self.length_penalty
            values = [(after - before) / scale for before, after in pairwise(sums)]
            shares[document] = [((t,), value) for t, value in zip(tokens, values, strict=True)]
        return shares


@dataclass(frozen=True)
class NgramNames:
    """Any n-gram of a document's text names it; a score sums the evidence of n-grams (SEAL).

    Attributes:
        corpus: the n-grams of all documents, whose counts weigh the evidence.
        constraint: the n-grams that may be generated.
        length: the maximum length of a generated n-gram, in tokens.
        document_ids: ids that break ties between documents.
        evidence: parameters of `score_documents`.
        documents: numbers of the documents that may get a score; None = all.
    """

    corpus: NgramIndex
    constraint: NgramIndex
    length: int
    document_ids: Sequence[str]
    evidence: Mapping[str, Any]
    documents: Collection[int] | None = None

    def within(self, documents: frozenset[int]) -> "NgramNames":
        return replace(self, constraint=self.corpus.within(documents), documents=documents)

    def documents_of(self, tokens: Sequence[int]) -> np.ndarray:
        return self.corpus.documents(list(tokens))

    def gold_prefixes(self, document: int) -> set[Ids]:
        """Returns every n-gram of the document up to `length` tokens."""
        tokens = self.corpus.sequence(document).tolist()
        # The last token, the end token, does not name a document on its own.
        return {
            tuple(tokens[start : start + length])
            for start in range(len(tokens) - 1)
            for length in range(1, self.length + 1)
        }

    def keys(self, result: BeamSearchResult, query: int) -> dict[Ids, float]:
        """Returns one query's n-grams and their log-probabilities: the candidates of all steps."""
        return {tuple(tokens): score for tokens, score in result.candidates.of(query)}

    def scores(self, result: BeamSearchResult, query: int) -> dict[int, float]:
        evidence = self._evidence(result, query)
        options = dict(document_ids=self.document_ids, among=self.documents, **self.evidence)
        return score_documents(self.corpus, *evidence, **options)

    def shares(
        self, result: BeamSearchResult, query: int, documents: Sequence[int]
    ) -> dict[int, list[tuple]]:
        """Returns the n-grams and unigrams that count for each document, greatest value first."""
        evidence = self._evidence(result, query)
        return share_scores(self.corpus, *evidence, documents, **self.evidence)

    def _evidence(self, result: BeamSearchResult, query: int) -> tuple[list, np.ndarray]:
        """Returns a query's keys and the log-probabilities of the unigrams."""
        first = result.first_log_probs[query].cpu().numpy()
        return list(self.keys(result, query).items()), first


Names = TrieNames | NgramNames
