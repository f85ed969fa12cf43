"""Every multi-vector system: token vectors, an alignment, a salience, a Z, and a search.

DPR, Sentence-T5, ME-BERT, COIL, ColBERT, ALIGNER, XTR and MVA are this one class; `conf/model/`
names the choices of each. From a text to the loss: `TokenEncoder` (D and Q), `Scoring` (all pairs
of a batch), gr_mvdr/alignment.py (A), relevance.py (S, Z), losses.py; `TokenSearch` searches.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gr_mvdr.backbones import check_length, encoder_mask, load_encoder
from gr_mvdr.batch import PairBatch
from gr_mvdr.options import AtLeast, Size, build, part
from gr_mvdr.pooling import AllTokens, ClusteredTokens, Grouped, merge_tokens
from gr_mvdr.ranks import encode_share, gather_batch
from gr_mvdr.relevance import (
    Explanation,
    Factors,
    Normaliser,
    PairAlignment,
    at_least_float32,
    similarity,
)
from gr_mvdr.salience import FrequencySalience, IdfSalience
from gr_mvdr.scoring import Scoring, all_pairs_relevance
from gr_mvdr.token_index.costs import multi_vector_joint_flops, mva_joint_flops
from gr_mvdr.token_index.search import SearchOptions
from gr_mvdr.token_vectors import SIDES, Side, TokenVectors, concatenate
from models.token_search import TokenSearch
from models.training import OptimizerOptions

Projections = Literal["shared", "attention"]
# The description of a part for each side; None = no part.
Sides = dict[Side, dict[str, Any] | None]


class TokenEncoder(nn.Module):
    """Texts to token vectors: encoder, pooling, projection, salience (gr_as_mvdr §3, aligner §3.2).

    projections "shared": one matrix for both sides, unit vectors (ColBERT). "attention": one matrix
    for the keys and one for the values of each side, vectors of any length (mva §2.1).
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        dimension: int,
        projections: Projections = "shared",
        pooling: Sides | None = None,
        salience: Sides | None = None,
        heads: int = 1,
    ):
        """
        Args:
            backbone: arguments of `load_encoder`.
            dimension: d, the size of a token vector (of a key too, where there are keys).
            heads: H parts of a vector, each with its own alignment (mva Table 4).
            pooling: each side's part of `gr_mvdr.pooling`; None = every token.
            salience: each side's part of `gr_mvdr.salience`; None = all tokens weigh the same.

        Raises:
            ValueError: a pooled shared projection, clustered queries, or heads that do not divide d
                or have a salience.
        """
        super().__init__()
        salience = {side: part for side, part in (salience or {}).items() if part}
        if dimension % heads:
            raise ValueError(f"model.heads={heads}: must divide model.dimension={dimension}")
        if heads > 1 and salience:
            raise ValueError(f"model.heads={heads}: must be 1 with model.salience")
        self.heads, self.dimension = heads, dimension
        self.backbone = load_encoder(**backbone)
        self.template, self.vocabulary_size = (
            self.backbone.template,
            self.backbone.config.vocab_size,
        )
        size = self.backbone.get_input_embeddings().embedding_dim, self.vocabulary_size
        chosen = {"_target_": "gr_mvdr.pooling.AllTokens"}
        parts = {side: (pooling or {}).get(side) or chosen for side in SIDES}
        self.pooling = nn.ModuleDict({s: build("pooling", parts[s], *size) for s in SIDES})
        if isinstance(self.pooling["query"], ClusteredTokens):
            raise ValueError("model.pooling.query=ClusteredTokens: must be of documents alone")
        # The learned tokens of a pooling have ids beyond the vocabulary.
        learned = max(getattr(part, "k", 0) for part in self.pooling.values())
        self.n_tokens = self.vocabulary_size + learned
        widths = {s: self.backbone.config.hidden_size * self.pooling[s].width for s in SIDES}
        if projections == "attention":
            matrices = [nn.Linear(widths[s], dimension, bias=False) for s in SIDES * 2]
            self.values = nn.ModuleDict(zip(SIDES, matrices[:2], strict=True))
            self.keys = nn.ModuleDict(zip(SIDES, matrices[2:], strict=True))
        elif widths["query"] == widths["document"]:
            one = nn.Linear(widths["query"], dimension, bias=False)
            self.values, self.keys = nn.ModuleDict(dict.fromkeys(SIDES, one)), None
        else:
            rule = "needs projections=attention, the sides' states have other widths"
            raise ValueError(f"model.pooling=Temporal: {rule}")
        self.salience = nn.ModuleDict(
            {s: build("salience", salience[s], dimension) for s in SIDES if s in salience}
        )
        if self.template.expansion is not None and _has(self.salience, IdfSalience):
            rule = "must be null with an IDF salience, which would rate it highest"
            raise ValueError(f"tokenizer.expansion: {rule}")
        for side, salient in self.salience.items():
            counts = type(self.pooling[side]) in (AllTokens, ClusteredTokens)
            if _has(salient, FrequencySalience) and not counts:
                rule = f"needs model.pooling.{side}=all_tokens: it counts tokens"
                raise ValueError(f"model.salience.{side}=FrequencySalience: {rule}")

    def forward(
        self, ids: Tensor, mask: Tensor, side: Side, attended: Tensor | None = None
    ) -> TokenVectors:
        """Token ids (B, L) int64 and mask (B, L) bool → the side's token vectors.

        Args:
            attended: (B, L) bool, the tokens that others attend to; None = all real tokens.
        """
        return merge_tokens(*self.grouped(ids, mask, side, attended))

    def grouped(
        self, ids: Tensor, mask: Tensor, side: Side, attended: Tensor | None = None
    ) -> Grouped:
        """`forward` before a pooling merges vectors, and the groups that it merges."""
        pooling, table = self.pooling[side], self.backbone.get_input_embeddings()
        embeddings, read = pooling.enter(table(ids), mask)
        seen = read if attended is None else pooling.enter(embeddings, attended)[1]
        seen = encoder_mask(self.backbone, seen)
        states = self.backbone(inputs_embeds=embeddings, attention_mask=seen)
        states, mask, ids = pooling.leave(states.last_hidden_state, read, ids)
        if side == "document" and self.template.skip:
            skipped = torch.tensor(self.template.skip, device=ids.device)
            mask = mask & ~torch.isin(ids, skipped)
        real = mask.unsqueeze(-1)
        vectors = at_least_float32(self.values[side](states))
        if self.keys is None:
            vectors, keys = pooling.unit(vectors, mask) * real, None
        else:
            vectors, keys = vectors * real, at_least_float32(self.keys[side](states)) * real
            if side == "query":
                keys = keys / math.sqrt(keys.shape[-1] / self.heads)
        salience = None
        if side in self.salience:
            salience = at_least_float32(self.salience[side](vectors, ids, mask))
        tokens = TokenVectors(vectors, mask, ids, salience, keys)
        return tokens, pooling.group(tokens)

    def pair_flops(self, query_vectors: float, document_vectors: float) -> float:
        """Operations of Eq. 1 for one pair, from its numbers of vectors."""
        if self.keys is None:
            return multi_vector_joint_flops(query_vectors, document_vectors, self.dimension)
        return mva_joint_flops(query_vectors, document_vectors, self.dimension, self.heads)

    def floats(self, vectors: int) -> int:
        """The floats of a text with this number of vectors, keys included (mva Table 5)."""
        return vectors * self.dimension * (1 if self.keys is None else 2)


@part("model")
class MultiVector(TokenSearch):
    """Token vectors of a shared encoder under one form of Eq. 1 (gr_as_mvdr §3, aligner §2)."""

    paradigm = "multi_vector"
    needs_negatives = True

    def __init__(
        self,
        backbone: dict[str, Any],
        dimension: Size,
        query_length: Annotated[int, AtLeast(2)],
        document_length: Annotated[int, AtLeast(2)],
        alignment: dict[str, Any],
        loss: dict[str, Any],
        search: Annotated[dict[str, Any], SearchOptions],
        optimizer: OptimizerOptions,
        training_alignment: dict[str, Any] | None = None,
        normaliser: Normaliser = "none",
        projections: Projections = "shared",
        pooling: dict[str, dict[str, Any]] | None = None,
        salience: dict[str, dict[str, Any] | None] | None = None,
        attend_expansion: bool = True,
        expansion_length: Annotated[int, AtLeast(2)] | None = None,
        gradient_cache: Size | None = None,
        heads: Size = 1,
    ):
        """
        Args:
            backbone, dimension, projections, pooling, salience, heads: see `TokenEncoder`.
            query_length, document_length: tokens kept of a text, those around it included.
            alignment, loss: of `gr_mvdr.alignment` and `gr_mvdr.losses`, as dicts with `_target_`.
            training_alignment: the one that the loss uses; None = the same (xtr has another).
            normaliser: Z of Eq. 1, see `gr_mvdr.relevance.normaliser`.
            search, optimizer: see `SearchOptions` and `System`.
            attend_expansion: whether a query's tokens attend to those that fill it up
                (`TextTemplate.expansion`, ColBERT's query augmentation), which always align.
            expansion_length: tokens that queries are filled up to; None = query_length.
            gradient_cache: texts encoded at once in training (`encode_share`); None = all.
        """
        super().__init__(optimizer)
        self.save_hyperparameters()
        self.search = SearchOptions(**search)
        imputes = self.search.mode == "impute"
        self.scores_need = "similarities imputed from all documents" if imputes else ""
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
        self.search.check(self.scoring, salience or {})

    # Training ---------------------------------------------------------------------------------

    def loss(self, batch: PairBatch) -> Tensor:
        """() the configured loss over the batch's (documents, queries) relevance (Eq. 2).

        The batch is that of all ranks: each encodes its share, and all compute the whole loss.
        """
        batch = gather_batch(batch)
        documents = self._share(self.encode_documents, batch.document_ids, batch.document_mask)
        queries = self._share(self.encode_queries, batch.query_ids, batch.query_mask)
        scores = all_pairs_relevance(documents, queries, self.training_scoring)
        sides = {"query": queries, "document": documents}
        penalties = [  # the L1 gate of aligner §4.3
            part.penalty(sides[side].salience, sides[side].mask)
            for side, part in self.encoder.salience.items()
        ]
        return sum(penalties, self.loss_function(scores, batch))

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
        """Queries as `TokenEncoder.grouped` takes them, filled up with the template's token
        (ColBERT's augmentation)."""
        attended, missing = None, max(0, self.filled_to - ids.shape[1])
        if self.filled_to:
            ids, real = F.pad(ids, (0, missing)), F.pad(mask, (0, missing))
            ids = ids.masked_fill(~real, self.template.expansion)
            mask = real | (torch.arange(ids.shape[1], device=ids.device) < self.filled_to)
            attended = None if self.hparams.attend_expansion else real
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
        return self.scoring.factors(*self._sides(batch))

    # Costs ------------------------------------------------------------------------------------

    def joint_flops(self, query_tokens: int, document_tokens: int) -> float:
        """Operations of Eq. 1 for one pair, after pooling; see `System.joint_flops`."""
        read = max(min(query_tokens, self.hparams.query_length), self.filled_to)
        n = self.encoder.pooling["query"].count(read)
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
        pairwise = _spread(scoring.matrices(*merged)[1], *groups)
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


def _has(salience: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in salience.modules())
