"""Every multi-vector system: token vectors, an alignment, a salience, a Z, and a search.

DPR, Sentence-T5, ME-BERT, COIL, ColBERT, ALIGNER, XTR and MVA are this one class; `conf/model/`
names the choices of each. From a text to the loss: `TokenEncoder` (D and Q), `Scoring` (all pairs
of a batch), gr_mvdr/alignment.py (A), relevance.py (S, Z), losses.py; `TokenSearch` searches.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from torch import Tensor

from gr_mvdr.alignment import InBatchTopK
from gr_mvdr.backbones import check_length
from gr_mvdr.batch import PairBatch
from gr_mvdr.options import build, part
from gr_mvdr.pooling import Grouped, merge_tokens
from gr_mvdr.ranks import check_gradient_cache, encode_share, gather_batch
from gr_mvdr.relevance import Explanation, Factors, PairAlignment, similarity
from gr_mvdr.scoring import Scoring, all_pairs_relevance
from gr_mvdr.token_index.search import SearchOptions
from gr_mvdr.token_vectors import TokenVectors, concatenate
from models.token_encoder import Side, TokenEncoder
from models.token_search import TokenSearch


@part("model")
class MultiVector(TokenSearch):
    """Token vectors of a shared encoder under one form of Eq. 1 (gr_as_mvdr §3, aligner §2)."""

    paradigm = "multi_vector"
    needs_negatives = True

    def __init__(
        self,
        backbone: dict[str, Any],
        dimension: int,
        query_length: int,
        document_length: int,
        alignment: dict[str, Any],
        loss: dict[str, Any],
        search: Annotated[dict[str, Any], SearchOptions],
        optimizer: dict[str, Any],
        training_alignment: dict[str, Any] | None = None,
        normaliser: str = "none",
        projections: str = "shared",
        pooling: dict[str, Any] | None = None,
        salience: dict[str, Any] | None = None,
        attend_expansion: bool = True,
        expansion_length: int | None = None,
        gradient_cache: int | None = None,
        heads: int = 1,
    ):
        """
        Args:
            backbone, dimension, projections, pooling, salience, heads: see `TokenEncoder`.
            query_length, document_length: tokens kept of a text, those around it included.
            alignment, loss: of `gr_mvdr.alignment` and `gr_mvdr.losses`, as dicts with `_target_`.
            training_alignment: the one that the loss uses; None = the same (xtr has another).
            normaliser: Z of Eq. 1, see `gr_mvdr.relevance.normaliser`.
            search, optimizer: see `SearchOptions` and `System`.
            attend_expansion: where queries are filled up (`TextTemplate.expansion`, ColBERT's
                query augmentation), whether other tokens attend to those; they always align.
            expansion_length: tokens that queries are filled up to; None = query_length.
            gradient_cache: texts encoded at once in training (`encode_share`); None = all.
        """
        super().__init__(optimizer)
        self.save_hyperparameters()
        self.search = SearchOptions(**search)
        self.scores_need = self.search.scores_need
        self.scoring = Scoring(build("alignment", alignment), normaliser, heads)
        trained = build("alignment", training_alignment or alignment)
        self.training_scoring = Scoring(trained, normaliser, heads)
        self.loss_function = build("loss", loss)
        self.encoder = TokenEncoder(backbone, dimension, projections, pooling, salience, heads)
        lengths = {"query_length": query_length, "document_length": document_length}
        check_length(self.encoder.backbone, **lengths)
        self.vocabulary_size, self.template = self.encoder.n_tokens, self.encoder.template
        # Tokens that a query has at least.
        self.filled_to = 0 if self.template.expansion is None else expansion_length or query_length
        self._check(salience or {})

    def _check(self, salience: dict[str, Any]) -> None:
        """Refuses choices that do not go together, before hours of training."""
        check_gradient_cache(self.hparams.gradient_cache)
        self.search.check(self.scoring, salience)
        if isinstance(self.scoring.alignment, InBatchTopK):
            rule = "must be model.training_alignment, a score may not depend on other documents"
            raise ValueError(f"model.alignment=InBatchTopK: {rule}")

    # Training ---------------------------------------------------------------------------------

    def loss(self, batch: PairBatch) -> Tensor:
        """() the configured loss over the batch's (documents, queries) relevance (Eq. 2).

        The batch is that of all ranks: each encodes its share, and all compute the whole loss.
        """
        batch = gather_batch(batch)
        documents = self._share(self.encode_documents, batch.document_ids, batch.document_mask)
        queries = self._share(self.encode_queries, batch.query_ids, batch.query_mask)
        scores = all_pairs_relevance(documents, queries, self.training_scoring)
        return self.loss_function(scores, batch) + self.encoder.penalty(queries, documents)

    def _share(
        self, encode: Callable[[Tensor, Tensor], TokenVectors], ids: Tensor, mask: Tensor
    ) -> TokenVectors:
        """The vectors of all texts, of which this rank encodes its share."""
        return concatenate(encode_share(encode, ids, mask, self.hparams.gradient_cache)).gather()

    def encode_documents(self, ids: Tensor, mask: Tensor) -> TokenVectors:
        """Document tokens (B, M) int64 and mask (B, M) bool → their vectors."""
        return self.encoder(ids, mask, "document")

    def encode_queries(self, ids: Tensor, mask: Tensor) -> TokenVectors:
        """Query tokens (B, N) int64 and mask (B, N) bool → their vectors, expansion included."""
        return self.encoder(*self._fill_up(ids, mask))

    def _fill_up(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Side, Tensor | None]:
        """Queries as the encoder takes them, expansion included."""
        if not self.filled_to:
            return ids, mask, "query", None
        attend = self.hparams.attend_expansion
        ids, mask, attended = self.encoder.expanded(ids, mask, self.filled_to, attend)
        return ids, mask, "query", attended

    # Given pairs ------------------------------------------------------------------------------

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) relevance of the pairs under the system's alignment (Eq. 1)."""
        return self.scoring(*self._sides(batch))

    def _tokens(self, batch: PairBatch) -> tuple[Grouped, Grouped]:
        """Token vectors of each query's own document (no hard negatives) and of the queries."""
        own = batch.document_ids[: len(batch)], batch.document_mask[: len(batch)]
        asked = self._fill_up(batch.query_ids, batch.query_mask)
        return self.encoder.grouped(*own, "document"), self.encoder.grouped(*asked)

    def _sides(self, batch: PairBatch) -> list[TokenVectors]:
        return [merge_tokens(*side) for side in self._tokens(batch)]

    def align(self, batch: PairBatch) -> PairAlignment:
        """S and A of each pair, salience included; relevance equals score (Eq. 1)."""
        return self.explain(batch).layers[0]

    def explain(self, batch: PairBatch) -> Explanation:
        """The alignment, and Ã before salience where the system has one.

        Where token vectors are merged, of the tokens: see `_explain`.
        """
        return _explain(*self._tokens(batch), self.scoring)

    def factors(self, batch: PairBatch) -> Factors:
        """The token vectors behind S, and those behind A where they are others (mva §2.1)."""
        sides = self._sides(batch)
        heads = [side.by_head(self.scoring.heads) for side in sides]
        keys = (head.vectors if head.keys is None else head.keys for head in heads)
        return Factors(*(head.vectors for head in heads), *keys, *(side.mask for side in sides))

    # Costs ------------------------------------------------------------------------------------

    def joint_flops(self, query_tokens: int, document_tokens: int) -> float:
        """Operations of Eq. 1 for one pair, after pooling; see `System.joint_flops`."""
        read = max(min(query_tokens, self.hparams.query_length), self.filled_to)
        n = self.encoder.vectors_of(read, "query")
        return self.encoder.pair_flops(n, self._document_vectors(document_tokens))


def _explain(documents: Grouped, queries: Grouped, scoring: Scoring) -> Explanation:
    """The alignment of B pairs, and Ã before salience where a side has one.

    Where tokens are merged, A of a group is spread evenly over its tokens. The relevance stays the
    same, since a group's similarity is the mean of its tokens' (`merge_tokens`).
    """
    sides, groups = zip(documents, queries, strict=True)
    merged, pairwise = [merge_tokens(*side) for side in (documents, queries)], None
    pairs = scoring.align(*merged)
    if any(side.salience is not None for side in sides):
        pairwise = _spread(scoring.pairwise(*merged)[1].unsqueeze(1), *groups)
    if any(group is not None for group in groups):
        pairs = replace(
            pairs,
            similarity=similarity(*(side.by_head(scoring.heads).vectors for side in sides)),
            alignment=_spread(pairs.alignment, *groups),
            document_ids=sides[0].ids,
            document_mask=sides[0].mask,
            query_ids=sides[1].ids,
            query_mask=sides[1].mask,
        )
    return Explanation([pairs], pairwise=pairwise)


def _spread(alignment: Tensor, documents: Tensor | None, queries: Tensor | None) -> Tensor:
    """(B, H, K, L) of groups → (B, H, M, N) of their tokens."""
    if documents is not None:
        alignment = documents.mT.unsqueeze(1).to(alignment) @ alignment
    return alignment if queries is None else alignment @ queries.unsqueeze(1).to(alignment)
