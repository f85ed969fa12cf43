"""Every multi-vector system: token vectors, an alignment, a salience, a Z, and a search.

DPR, ME-BERT, COIL, ColBERT, ALIGNER, XTR and MVA are this one class; `conf/model/` says which
choices each of them makes (facts: "which alignment is which system").
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gr_mvdr.alignment import InBatchTopK
from gr_mvdr.all_pairs import all_pairs_relevance
from gr_mvdr.batch import PairBatch
from gr_mvdr.distributed.gradient_cache import check_gradient_cache, encode_share
from gr_mvdr.distributed.whole_batch import whole_batch
from gr_mvdr.explanation import Explanation, Factors
from gr_mvdr.parts import build, part
from gr_mvdr.relevance import PairAlignment, normaliser
from gr_mvdr.salience import IdfSalience
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.flops import multi_vector_joint_flops, mva_joint_flops
from gr_mvdr.token_vectors import TokenVectors, concatenated
from models.base import Table
from models.token_encoder import SIDES, TokenEncoder
from models.token_searching import TokenSearching


@part("model")
class MultiVector(TokenSearching):
    """Token vectors of a shared T5 encoder under one form of Eq. 1 (gr_as_mvdr §3, aligner §2)."""

    paradigm = "multi_vector"

    def __init__(
        self,
        backbone: dict[str, Any],
        dimension: int,
        query_length: int,
        document_length: int,
        alignment: dict[str, Any],
        loss: dict[str, Any],
        search: dict[str, Any],
        optimizer: dict[str, Any],
        training_alignment: dict[str, Any] | None = None,
        normaliser: str = "none",
        projections: str = "shared",
        pooling: dict[str, Any] | None = None,
        salience: dict[str, Any] | None = None,
        sentinel_id: int | None = None,
        gradient_cache: int | None = None,
    ):
        """
        Args:
            backbone, dimension, projections, pooling, salience: see `TokenEncoder`.
            query_length, document_length: tokens kept of a text, the end token included.
            alignment: a strategy of `gr_mvdr.alignment`, as a dict with `_target_`.
            training_alignment: the one that the loss uses; None = the same (xtr has another).
            normaliser: Z of Eq. 1, see `gr_mvdr.relevance.normaliser`.
            loss: a loss of `gr_mvdr.losses`, as a dict with `_target_`.
            search: see `TokenSearch`.
            optimizer: see `System`.
            sentinel_id: pad queries up to query_length with this token (T5's <extra_id_0>) and
                let it align like any other: ColBERT's query augmentation. None = off.
            gradient_cache: texts that are encoded at once in training, see `encode_share`;
                None = the whole batch.
        """
        super().__init__(search, optimizer)
        self.save_hyperparameters()
        self.scoring = Scoring(build("alignment", alignment), normaliser)
        trained = build("alignment", training_alignment or alignment)
        self.training_scoring = Scoring(trained, normaliser)
        self.loss_function = build("loss", loss)
        self.encoder = TokenEncoder(backbone, dimension, projections, pooling, salience)
        self._check(salience)
        check_gradient_cache(gradient_cache)
        self.vocabulary_size = self.encoder.n_tokens

    def _check(self, salience: dict[str, Any] | None) -> None:
        """Refuses choices that do not go together, before hours of training."""
        self.search.check(self.scoring)
        if isinstance(self.scoring.alignment, InBatchTopK):
            raise ValueError(
                "model.alignment=InBatchTopK: must be model.training_alignment, a score may not "
                "depend on what is scored beside it"
            )
        for side in SIDES:
            share = getattr(self.search, f"keep_{side}")
            if share < 1 and not (salience or {}).get(side):
                raise ValueError(
                    f"model.search.keep_{side}={share}: must be 1 for a system without salience"
                )
        if self.hparams.sentinel_id is not None and self.encoder.counts(IdfSalience):
            raise ValueError(
                f"model.sentinel_id={self.hparams.sentinel_id}: must be null with an IDF salience, "
                "to which a token of no document is the rarest"
            )

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Lets a salience count the collection's tokens (IDF); see `System.prepare`.

        Raises:
            ValueError: a query token is to retrieve more tokens than the index will hold.
        """
        self._check_neighbours(documents)
        if self.encoder.salience:
            tokens = documents["tokens"]
            self.encoder.fit([self.cut_document(tokens[row]) for row in known])

    def _check_neighbours(self, documents: Table) -> None:
        asked, held = self.search.neighbours, 0
        if self.search.mode not in ("gather", "impute"):
            return
        for tokens in documents["tokens"]:
            read = len(self.cut_document(tokens))
            vectors = self.encoder.vectors_of(read, "document")
            held += math.ceil(self.search.keep_document * vectors)
            if held >= asked:
                return
        raise ValueError(
            f"model.search.neighbours={asked}: must be ≤ the {held} tokens that can be retrieved"
        )

    def encode_documents(self, ids: Tensor, mask: Tensor) -> TokenVectors:
        """Document tokens (B, M) int64 and mask (B, M) bool → their vectors."""
        return self.encoder(ids, mask, "document")

    def encode_queries(self, ids: Tensor, mask: Tensor) -> TokenVectors:
        """Query tokens (B, N) int64 and mask (B, N) bool → their vectors."""
        return self.encoder(*self._augmented(ids, mask), "query")

    def _augmented(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Queries filled up to query_length with sentinels that align like their own tokens."""
        if self.hparams.sentinel_id is None:
            return ids, mask
        missing = self.hparams.query_length - ids.shape[1]
        ids, mask = F.pad(ids, (0, missing)), F.pad(mask, (0, missing))
        return ids.masked_fill(~mask, self.hparams.sentinel_id), mask.new_ones(mask.shape)

    def loss(self, batch: PairBatch) -> Tensor:
        """() the configured loss over the batch's (documents, queries) relevance (Eq. 2).

        The batch is that of all ranks: each encodes its share, and all compute the whole loss.
        """
        batch = whole_batch(batch)
        documents = self._shared(self.encode_documents, batch.document_ids, batch.document_mask)
        queries = self._shared(self.encode_queries, batch.query_ids, batch.query_mask)
        scores = all_pairs_relevance(documents, queries, self.training_scoring)
        return self.loss_function(scores, batch) + self.encoder.penalty(queries, documents)

    def _shared(
        self, encode: Callable[[Tensor, Tensor], TokenVectors], ids: Tensor, mask: Tensor
    ) -> TokenVectors:
        """The vectors of all texts, of which this rank encodes its share."""
        parts = encode_share(encode, ids, mask, self.hparams.gradient_cache)
        return concatenated(parts).gathered()

    def _positives(self, batch: PairBatch) -> TokenVectors:
        """The vectors of each query's own document, without hard negatives."""
        pairs = slice(len(batch))
        return self.encode_documents(batch.document_ids[pairs], batch.document_mask[pairs])

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) relevance of the pairs under the system's alignment (Eq. 1)."""
        return self.scoring(*self._sides(batch))

    def _sides(self, batch: PairBatch) -> tuple[TokenVectors, TokenVectors]:
        """Token vectors of each query's own document, and of the queries."""
        queries = self.encode_queries(batch.query_ids, batch.query_mask)
        return self._positives(batch), queries

    def align(self, batch: PairBatch) -> PairAlignment:
        """S and A of each pair, salience included, H = 1; relevance equals score (Eq. 1)."""
        return self._align(*self._sides(batch))

    def explain(self, batch: PairBatch) -> Explanation:
        """The alignment, and Ã before salience where the system has one."""
        documents, queries = self._sides(batch)
        pairwise = None
        if documents.salience is not None or queries.salience is not None:
            pairwise = self.scoring.pairwise(documents, queries)[1].unsqueeze(1)
        return Explanation([self._align(documents, queries)], pairwise=pairwise)

    def factors(self, batch: PairBatch) -> Factors:
        """The token vectors behind S, and those behind A where they are others (mva §2.1)."""
        documents, queries = self._sides(batch)
        vectors = (documents.vectors, queries.vectors, *map(_keys, (documents, queries)))
        return Factors(*(part.unsqueeze(1) for part in vectors), documents.mask, queries.mask)

    def _align(self, documents: TokenVectors, queries: TokenVectors) -> PairAlignment:
        matrix, aligned = self.scoring.matrices(documents, queries)
        scores = self.scoring.divide(matrix, aligned, queries)
        return PairAlignment(
            similarity=matrix.unsqueeze(1),
            alignment=aligned.unsqueeze(1),
            normaliser=normaliser(self.scoring.normaliser, matrix, aligned, queries.mask),
            relevance=scores,
            score=scores,
            document_ids=documents.ids,
            document_mask=documents.mask,
            query_ids=queries.ids,
            query_mask=queries.mask,
        )

    def joint_flops(self, query_tokens: int, document_tokens: int) -> float:
        """Operations of Eq. 1 for one pair, after pooling; see `System.joint_flops`."""
        longest = self.hparams.query_length
        read = longest if self.hparams.sentinel_id is not None else min(query_tokens, longest)
        n = self.encoder.vectors_of(read, "query")
        m = self.encoder.vectors_of(min(document_tokens, self.hparams.document_length), "document")
        return self.pair_flops(n, m)

    def pair_flops(self, query_vectors: float, document_vectors: float) -> float:
        """Operations of Eq. 1 for a pair of so many vectors."""
        count = multi_vector_joint_flops if self.encoder.keys is None else mva_joint_flops
        return count(query_vectors, document_vectors, self.hparams.dimension)

    def document_floats(self, document_tokens: int) -> int:
        """Numbers that stand for a document: its vectors, and keys (mva Table 5, "Storage")."""
        m = self.encoder.vectors_of(min(document_tokens, self.hparams.document_length), "document")
        return m * self.hparams.dimension * (1 if self.encoder.keys is None else 2)


def _keys(tokens: TokenVectors) -> Tensor:
    """What a side's alignment is made of."""
    return tokens.vectors if tokens.keys is None else tokens.keys
