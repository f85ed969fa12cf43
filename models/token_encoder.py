"""Texts to token vectors: one shared encoder, and what each side makes of its states."""

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gr_mvdr.backbones import encoder_mask, load_encoder
from gr_mvdr.options import build
from gr_mvdr.pooling import AllTokens, ClusteredTokens, Grouped, merge_tokens
from gr_mvdr.relevance import at_least_float32
from gr_mvdr.salience import FrequencySalience, IdfSalience
from gr_mvdr.token_index.costs import multi_vector_joint_flops, mva_joint_flops
from gr_mvdr.token_vectors import TokenVectors

Side = Literal["query", "document"]
SIDES = get_args(Side)
PROJECTIONS = ("shared", "attention")
# Of each side, the description of a part; None = none.
Parts = dict[Side, dict[str, Any] | None]


class TokenEncoder(nn.Module):
    """Encoder, pooling, projection, salience (gr_as_mvdr §3, mva §2.1, aligner §3.2).

    projections "shared": one matrix for both sides, unit vectors (ColBERT). "attention": W of the
    query's keys and values and of the document's keys and values, vectors of any length (MVA).
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        dimension: int,
        projections: str = "shared",
        pooling: Parts | None = None,
        salience: Parts | None = None,
        heads: int = 1,
    ):
        """
        Args:
            backbone: arguments of `load_encoder`.
            dimension: d, the size of a token vector (of a key too, where there are keys).
            heads: H parts of a vector that are aligned each by itself (mva Table 4).
            projections: "shared" or "attention".
            pooling: of each side, a part of `gr_mvdr.pooling`; None = every token.
            salience: of each side, a part of `gr_mvdr.salience`; None = all tokens count alike.

        Raises:
            ValueError: unknown projections, a pooled shared projection, clustered queries, or heads
                that do not divide d or have a salience.
        """
        super().__init__()
        if projections not in PROJECTIONS:
            rule = f"must be one of {', '.join(PROJECTIONS)}"
            raise ValueError(f"model.projections={projections}: {rule}")
        if dimension < 1:
            raise ValueError(f"model.dimension={dimension}: must be ≥ 1")
        if dimension % heads:
            raise ValueError(f"model.heads={heads}: must divide model.dimension={dimension}")
        if heads > 1 and any((salience or {}).values()):
            raise ValueError(f"model.heads={heads}: must be 1 with model.salience")
        self.heads = heads
        self.dimension, self.backbone = dimension, load_encoder(**backbone)
        config, self.template = self.backbone.config, self.backbone.template
        size, self.vocabulary_size = config.hidden_size, config.vocab_size
        self._add_pooling(pooling or {})
        self._add_projections(projections, size, dimension)
        named = {side: part for side, part in (salience or {}).items() if part}
        self.salience = nn.ModuleDict(
            {side: build("salience", named[side], dimension) for side in SIDES if side in named}
        )
        self._check_salience()

    def _check_salience(self) -> None:
        if self.template.expansion is not None and _has(self.salience, IdfSalience):
            raise ValueError(
                "tokenizer.expansion: must be null with an IDF salience, to which a token of no "
                "document is the rarest"
            )
        by = getattr(self.pooling["document"], "by", "")
        if by == "salience" and "document" not in self.salience:
            rule = "must be another without model.salience.document"
            raise ValueError(f"model.pooling.document.by=salience: {rule}")
        for side, part in self.salience.items():
            counts = type(self.pooling[side]) in (AllTokens, ClusteredTokens)
            if _has(part, FrequencySalience) and not counts:
                raise ValueError(
                    f"model.salience.{side}=FrequencySalience: needs "
                    f"model.pooling.{side}=all_tokens: it counts tokens"
                )

    def _add_pooling(self, pooling: Parts) -> None:
        size = self.backbone.get_input_embeddings().embedding_dim
        every = {"_target_": "gr_mvdr.pooling.AllTokens"}
        self.pooling = nn.ModuleDict(
            {
                side: build("pooling", pooling.get(side) or every, size, self.vocabulary_size)
                for side in SIDES
            }
        )
        if isinstance(self.pooling["query"], ClusteredTokens):
            raise ValueError("model.pooling.query=ClusteredTokens: must be of documents alone")
        # The learned tokens of a pooling have ids beyond the vocabulary.
        learned = max(getattr(part, "k", 0) for part in self.pooling.values())
        self.n_tokens = self.vocabulary_size + learned

    def _add_projections(self, projections: str, size: int, dimension: int) -> None:
        widths = {side: size * self.pooling[side].width for side in SIDES}

        def one_each() -> nn.ModuleDict:
            return nn.ModuleDict({s: nn.Linear(widths[s], dimension, bias=False) for s in SIDES})

        if projections == "attention":
            self.values, self.keys = one_each(), one_each()
        elif widths["query"] == widths["document"]:
            one = nn.Linear(widths["query"], dimension, bias=False)
            self.values, self.keys = nn.ModuleDict(dict.fromkeys(SIDES, one)), None
        else:
            raise ValueError(
                "model.projections=shared: both sides must be pooled to states of one width; "
                "temporal pooling of one side needs projections=attention"
            )

    def forward(
        self, ids: Tensor, mask: Tensor, side: Side, attended: Tensor | None = None
    ) -> TokenVectors:
        """Token ids (B, L) int64 and mask (B, L) bool → the side's token vectors.

        Args:
            attended: (B, L) bool, the tokens that others attend to; None = all that are real.
        """
        return merge_tokens(*self.grouped(ids, mask, side, attended))

    def grouped(
        self, ids: Tensor, mask: Tensor, side: Side, attended: Tensor | None = None
    ) -> Grouped:
        """`forward` before a pooling merges token vectors, and which it merges."""
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

    def expanded(
        self, ids: Tensor, mask: Tensor, length: int, attend: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries filled up to a length with the template's token (ColBERT's augmentation).

        Args:
            ids: (B, N) int64; mask: (B, N) bool; attend: whether other tokens attend to those.

        Returns:
            Both (B, max(N, length)), and the tokens that others attend to; see `forward`.
        """
        missing = max(0, length - ids.shape[1])
        real, mask = mask, torch.arange(ids.shape[1] + missing, device=ids.device) < length
        ids, real = F.pad(ids, (0, missing)), F.pad(real, (0, missing))
        return (
            ids.masked_fill(~real, self.template.expansion),
            mask | real,
            None if attend else real,
        )

    def vectors_of(self, tokens: int, side: Side) -> int:
        """How many vectors a text of so many tokens has."""
        return self.pooling[side].count(tokens)

    def pair_flops(self, query_vectors: float, document_vectors: float) -> float:
        """Operations of Eq. 1 for a pair of so many vectors."""
        if self.keys is None:
            return multi_vector_joint_flops(query_vectors, document_vectors, self.dimension)
        return mva_joint_flops(query_vectors, document_vectors, self.dimension, self.heads)

    def floats(self, vectors: int) -> int:
        """Numbers that hold a text of so many vectors: those, and keys (mva Table 5)."""
        return vectors * self.dimension * (1 if self.keys is None else 2)

    def penalty(self, queries: TokenVectors, documents: TokenVectors) -> Tensor:
        """() what the saliences add to the loss (the L1 gate; aligner §4.3)."""
        found = queries.vectors.new_zeros(())
        for side, texts in (("query", queries), ("document", documents)):
            if side in self.salience:
                found = found + self.salience[side].penalty(texts.salience, texts.mask)
        return found

    def fit(self, documents: list[list[int]]) -> None:
        """What a salience must know of the collection before training: document frequencies."""
        for part in self.salience.values():
            part.fit(documents, self.vocabulary_size, self.template.special)


def _has(part: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in part.modules())
