"""Texts to token vectors: an encoder, a pooling, a projection, a salience."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gr_mvdr.backbones import load_backbone, read_states
from gr_mvdr.options import Size, build
from gr_mvdr.pooling import AllTokens, Grouped, Temporal, merge_tokens
from gr_mvdr.relevance import at_least_float32
from gr_mvdr.salience import FrequencySalience, IdfSalience
from gr_mvdr.token_index.search import multi_vector_joint_flops, mva_joint_flops
from gr_mvdr.token_vectors import SIDES, Side, TokenVectors

Projections = Literal["shared", "unnormalised", "attention"]
Activation = Literal["Identity", "GELU", "ReLU", "SiLU", "Sigmoid", "Tanh"]  # of torch.nn
Layer = dict[str, Size | Activation | None]
# The description of a part for each side; None = no part.
Sides = dict[Side, dict[str, Any] | None]


class TokenEncoder(nn.Module):
    """Texts to token vectors: encoder, pooling, projection, salience (gr_as_mvdr §3, aligner §3.2).

    Projections "shared" use one matrix for both sides and give unit vectors (ColBERT);
    "unnormalised" is the same with vectors of any length, as for a dot product of single vectors.
    "attention" uses matrices for the keys and the values of each side and gives vectors of any
    length (mva §2.1).
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        dimension: int | None,
        projections: Projections = "shared",
        pooling: Sides | None = None,
        salience: Sides | None = None,
        heads: int = 1,
        layers: Sequence[Layer] | None = None,
    ):
        """
        Args:
            backbone: arguments of `load_backbone`.
            dimension: d, the size of a token vector, and of a key if there are keys; None = the
                size of the backbone's states.
            heads: H parts of a vector, each with its own alignment (mva Table 4).
            pooling: each side's part of `gr_mvdr.pooling`; None = every token.
            salience: each side's part of `gr_mvdr.salience`; None = all tokens weigh the same.
            layers: size (None = d) and activation of each layer of a shared projection, which has
                a bias. None = one matrix without a bias.

        Raises:
            ValueError: a shared projection gets states of different widths, layers do not end with
                d, heads do not divide d or have a salience, or a salience does not fit the other
                options.
        """
        super().__init__()
        salience = {side: part for side, part in (salience or {}).items() if part}
        self.backbone = load_backbone(**backbone)
        dimension = dimension or self.backbone.config.hidden_size
        if dimension % heads:
            raise ValueError(f"model.heads={heads}: must divide model.dimension={dimension}")
        if heads > 1 and salience:
            raise ValueError(f"model.heads={heads}: must be 1 with model.salience")
        self.heads, self.dimension, self.unit = heads, dimension, projections == "shared"
        self.template = self.backbone.template
        skipped = torch.tensor(self.template.skip, dtype=torch.int64)
        self.register_buffer("skipped", skipped, persistent=False)
        self.vocabulary_size = self.backbone.config.vocab_size
        size = self.backbone.get_input_embeddings().embedding_dim, self.vocabulary_size
        chosen = {"_target_": "gr_mvdr.pooling.AllTokens"}
        parts = {side: (pooling or {}).get(side) or chosen for side in SIDES}
        self.pooling = nn.ModuleDict({s: build("pooling", parts[s], *size) for s in SIDES})
        # The learned tokens of a pooling have ids beyond the vocabulary.
        learned = max(getattr(part, "k", 0) for part in self.pooling.values())
        self.n_tokens = self.vocabulary_size + learned
        widths = {s: self.backbone.config.hidden_size * self.pooling[s].width for s in SIDES}
        sizes = [layer["size"] or dimension for layer in layers or ()]
        if layers and (projections == "attention" or sizes[-1] != dimension):
            rule = f"must end with model.dimension={dimension}, and be null with MVA's projections"
            raise ValueError(f"model.layers={[*map(dict, layers)]}: {rule}")
        if projections == "attention":
            matrices = [nn.Linear(widths[s], dimension, bias=False) for s in SIDES * 2]
            self.values = nn.ModuleDict(zip(SIDES, matrices[:2], strict=True))
            self.keys = nn.ModuleDict(zip(SIDES, matrices[2:], strict=True))
        elif widths["query"] == widths["document"]:
            one: nn.Module = nn.Linear(widths["query"], dimension, bias=False)
            if layers:
                names = [layer["activation"] for layer in layers]
                steps = zip([widths["query"], *sizes], sizes, names, strict=False)
                made = [(nn.Linear(*size), getattr(nn, name)()) for *size, name in steps]
                one = nn.Sequential(*(part for step in made for part in step))
            self.values, self.keys = nn.ModuleDict(dict.fromkeys(SIDES, one)), None
        else:
            rule = "needs projections=attention, the sides' states have other widths"
            raise ValueError(f"model.pooling=Temporal: {rule}")
        if backbone["name"] is not None and not layers:
            self._keep_similarities()
        self.salience = nn.ModuleDict(
            {s: build("salience", salience[s], dimension) for s in SIDES if s in salience}
        )
        if self.template.expansion is not None and _has(self.salience, IdfSalience):
            rule = "must be null with an IDF salience, which would rate it highest"
            raise ValueError(f"tokenizer.expansion: {rule}")
        if self.template.skip and type(self.pooling["document"]) is Temporal:
            rule = "needs tokenizer.skip=null: it has no vector of a single token to leave out"
            raise ValueError(f"model.pooling.document=Temporal: {rule}")
        for side, salient in self.salience.items():
            if _has(salient, FrequencySalience) and type(self.pooling[side]) is not AllTokens:
                rule = f"needs model.pooling.{side}=all_tokens: it counts tokens"
                raise ValueError(f"model.salience.{side}=FrequencySalience: {rule}")

    def _keep_similarities(self) -> None:
        """Starts all projections as one orthogonal matrix, which nearly keeps the inner products.

        Pretrained states match equal words before any training; random matrices keep less of it.
        """
        matrices = [
            part.weight for parts in (self.values, self.keys or {}) for part in parts.values()
        ]
        first = nn.init.orthogonal_(matrices[0])
        with torch.no_grad():
            for weight in matrices:
                if weight.shape == first.shape:
                    weight.copy_(first)

    def forward(
        self, ids: Tensor, mask: Tensor, side: Side, attended: Tensor | None = None
    ) -> TokenVectors:
        """Encodes token ids (B, L) int64 with their mask (B, L) bool as the side's token vectors.

        Args:
            attended: (B, L) bool, the tokens that others attend to; None = all real tokens.
        """
        return merge_tokens(*self.grouped(ids, mask, side, attended))

    def grouped(
        self, ids: Tensor, mask: Tensor, side: Side, attended: Tensor | None = None
    ) -> Grouped:
        """Encodes as `forward`, but returns the vectors before merging and the groups to merge."""
        pooling, table = self.pooling[side], self.backbone.get_input_embeddings()
        embeddings, read = pooling.enter(table(ids), mask)
        seen = None if attended is None else pooling.enter(embeddings, attended)[1]
        states = read_states(self.backbone, read, seen, inputs_embeds=embeddings)
        states, mask, ids = pooling.leave(states, read, ids)
        if side == "document" and self.template.skip:
            mask = mask & ~torch.isin(ids, self.skipped)
        real = mask.unsqueeze(-1)
        vectors, keys = at_least_float32(self.values[side](states)), None
        vectors = (pooling.unit(vectors, mask) if self.unit else vectors) * real
        if self.keys is not None:
            keys = at_least_float32(self.keys[side](states)) * real
            if side == "query":
                keys = keys / math.sqrt(keys.shape[-1] / self.heads)
        salience = None
        if side in self.salience:
            salience = at_least_float32(self.salience[side](vectors, ids, mask))
        tokens = TokenVectors(vectors, mask, ids, salience, keys)
        return tokens, pooling.group(tokens)

    def pair_flops(self, query_vectors: float, document_vectors: float) -> float:
        """Counts the operations of Eq. 1 for one pair, from its numbers of vectors."""
        if self.keys is None:
            return multi_vector_joint_flops(query_vectors, document_vectors, self.dimension)
        return mva_joint_flops(query_vectors, document_vectors, self.dimension, self.heads)

    def floats(self, vectors: int) -> int:
        """Returns the number of floats of a text's vectors, keys included (mva Table 5)."""
        return vectors * self.dimension * (1 if self.keys is None else 2)


def _has(salience: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in salience.modules())
