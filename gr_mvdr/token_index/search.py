"""Defines a search of an index: a proposer of documents, a scorer, and their options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from gr_mvdr.alignment import InBatchTopK, MaxSim
from gr_mvdr.evaluation.ranking import best_places
from gr_mvdr.options import (
    TARGET,
    Count,
    Fraction,
    Proportion,
    Rule,
    Seed,
    Size,
    check_options,
    find_part,
    inspect_signature,
)
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.codec import Storage
from gr_mvdr.token_vectors import SIDES, TokenVectors

AUTO: Any = "auto"  # instead of a number
EDGE = "edge"  # the engine within this process
Engine = Annotated[
    str,
    Rule(
        "edge or http://HOST:PORT/COLLECTION",
        lambda text: text == "edge" or (text.startswith("http") and text.count("/") == 3),
    ),
]
_ENGINES = ("mean", "turbo8")  # modes and types of an engine alone, and of our own index alone
_OURS = ("gather", "impute", "fde", "rerank", "pq", "residual")
# The options of each mode that `TokenIndex.planned` may choose.
OPEN_KEYS: dict[str, tuple[str, ...]] = {
    "exact": (),
    "gather": ("neighbours", "probes", "refine"),
    "impute": ("neighbours", "probes"),
    "fde": ("refine",),
    "mean": (),
    "rerank": (),
}


@dataclass(frozen=True)
class SearchOptions:
    """The options of `model.search`: how documents are searched.

    | mode | proposer | scorer | source |
    |---|---|---|---|
    | exact | all documents | full relevance, Eq. 1 | stored vectors |
    | gather | nearest tokens (gr_as_mvdr §6.3) | full | stored vectors |
    | impute | nearest tokens | imputed relevance (xtr Eq. 4) | stored vectors |
    | fde | `proposer`, one vector a document (MUVERA) | full | stored vectors |
    | mean | the mean of a document's vectors | full | an engine |
    | rerank | BM25 (mva §5) | full | the encoder |

    Attributes:
        neighbours: k', the number of tokens that a query token retrieves; under "rerank", the
            number of documents that BM25 proposes. "auto" = chosen by `TokenIndex.planned`, like
            probes and refine.
        probes: number of clusters that the token retrieval visits; None = it compares all tokens.
        lists: number of clusters of the inverted file; None = √ of the number of tokens. With
            residual codes, the clusters are the centroids, see `Storage`.
        refine: number of proposed documents, the best by the proposer's estimates, that are scored
            in full; None = all. 0 under "fde": the estimates are the scores. "auto" under "mean" =
            ten times the number of wanted documents.
        recall: the share of the exact search's best documents that "auto" values must find.
        imputation: how similarities that were not retrieved are imputed, see `missing_similarity`.
        keep_query, keep_document: β_q and β_d, the shares of most salient tokens that the token
            retrieval reads; full relevance reads all tokens (aligner §3.2, "Pruning").
        dtype: stored type of vectors; "pq" and "residual" store codes of `pq_bytes` bytes, and an
            engine's "turbo8" stores a byte for each number.
        pool, pool_by: how stored vectors are merged, see `gr_mvdr.pooling.group_tokens`.
        proposer: the part that proposes documents under "fde"; the `fde_…` options are its options.
        engine: the database that holds the vectors, see `gr_mvdr.token_index.engine`; None = a
            `TokenIndex` holds them.
        seed: random seed of the k-means, and of the one vector's projections.
    """

    mode: Literal["exact", "gather", "impute", "fde", "mean", "rerank"] = "exact"
    neighbours: Size | Literal["auto"] = AUTO
    probes: Size | Literal["auto"] | None = AUTO
    lists: Size | None = None
    refine: Count | Literal["auto"] | None = AUTO
    recall: Proportion = 0.99
    imputation: Literal["last", "zero", "mean", "none"] | float = "last"
    keep_query: Proportion = 1.0
    keep_document: Proportion = 1.0
    dtype: Literal["float32", "float16", "pq", "residual", "turbo8"] = "float32"
    pq_bytes: Size | None = None
    pool: Size = 1
    pool_by: Literal["ward", "k_means", "salience"] = "ward"
    fde_repetitions: Size = 20
    fde_planes: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] = 5
    fde_projection: Size | None = 16
    fde_size: Size | None = None
    fde_dtype: Literal["float32", "float16"] = "float16"
    fde_centre: Fraction = 0.3
    proposer: dict | None = None
    engine: Engine | None = None
    seed: Seed = 0

    def __post_init__(self):
        check_options("model.search", inspect_signature(type(self)), vars(self))
        for value in (self.mode, self.dtype):
            if value in (_OURS if self.engine else _ENGINES):
                rule = f"cannot be searched with mode={self.mode} and dtype={self.dtype}"
                raise ValueError(f"model.search.engine={self.engine}: {rule}")
        prunes = self.mode in ("gather", "impute")
        for key in ("keep_query", "keep_document"):
            if (share := getattr(self, key)) < 1 and not prunes:
                rule = f"must be 1 in mode {self.mode}, which reads all tokens"
                raise ValueError(f"model.search.{key}={share}: {rule}")
        if self.mode == "gather" and self.refine == 0:
            raise ValueError("model.search.refine=0: must be ≥ 1 in mode gather")
        if self.mode == "fde" and self.proposer is None:
            raise ValueError("model.search.proposer=null: must name a part in mode fde")
        if self.proposer is not None and not isinstance(self.proposer, ProposerPart):
            object.__setattr__(self, "proposer", ProposerPart(self.proposer))

    @property
    def open_keys(self) -> tuple[str, ...]:
        """The names of this mode's options that are still "auto"."""
        return tuple(key for key in OPEN_KEYS[self.mode] if getattr(self, key) == AUTO)

    @property
    def storage(self) -> Storage:
        """How the vectors are stored."""
        storage = Storage(self.dtype, self.pq_bytes, self.seed, self.lists)
        return storage if storage.is_coded else Storage(self.dtype)

    @property
    def stored(self) -> tuple[Any, ...]:
        """The options on which the stored vectors depend."""
        return self.pool, self.pool > 1 and self.pool_by, self.storage, self.engine

    @property
    def fde(self) -> dict[str, Any]:
        """The options on which the documents' vectors under "fde" depend, without their prefix."""
        own = {key: value for key, value in vars(self).items() if key.startswith("fde_")}
        return {key.removeprefix("fde_"): own[key] for key in own} | {"seed": self.seed}

    @property
    def scores_are_estimates(self) -> bool:
        """Whether the proposer's estimates are the scores, so no document is scored in full."""
        return self.mode == "impute" or (self.mode == "fde" and self.refine == 0)

    def changed(self, **options: Any) -> "SearchOptions":
        """Returns the same search with some options replaced.

        Raises:
            ValueError: an option is unknown or invalid, or there is no index to search.
        """
        if self.mode == "rerank":
            rule = "must have an index to change search options: use another mode, such as exact"
            raise ValueError(f"model.search.mode=rerank: {rule}")
        check_options("model.search", inspect_signature(type(self)), options)
        changed = replace(self, **options)
        if self.engine and changed.stored != self.stored:
            rule = "must be null to search vectors that are stored in other ways"
            raise ValueError(f"model.search.engine={self.engine}: {rule}")
        return changed

    def check(self, scoring: Scoring, salience: Mapping[str, Any] | None = None) -> None:
        """Raises ValueError if the search does not suit a system's form of Eq. 1.

        Args:
            salience: side, "query" or "document" → the settings of its salience; None = unknown.
        """
        if salience is not None:
            if self.pool > 1 and self.pool_by == "salience" and not salience.get("document"):
                raise ValueError("model.search.pool_by=salience: must be another without salience")
            for side in SIDES:
                share = getattr(self, f"keep_{side}")
                if share < 1 and not salience.get(side):
                    rule = "must be 1 without salience"
                    raise ValueError(f"model.search.keep_{side}={share}: {rule}")
        if isinstance(scoring.alignment, InBatchTopK):
            rule = "must be model.training_alignment, a score may not depend on other documents"
            raise ValueError(f"model.alignment={scoring.alignment}: {rule}")
        if scoring.heads > 1 and self.dtype == "residual":  # its basis mixes the heads' parts
            raise ValueError(f"model.heads={scoring.heads}: must be 1 with dtype=residual")
        scores = scoring.alignment == MaxSim() and scoring.normaliser != "non_zero"
        if self.engine and (not scores or any((salience or {}).values())):
            rule = "must be null unless the score is MaxSim, over Z or not, without salience"
            raise ValueError(f"model.search.engine={self.engine}: {rule}")
        if self.mode in ("impute", "fde") and scoring.alignment != MaxSim():
            rule = f"must be exact or gather under {scoring.alignment}"
            raise ValueError(f"model.search.mode={self.mode}: {rule}; it estimates MaxSim")


class ProposerPart(dict):
    """The settings of a proposer, and the class that they name.

    The class is looked up while the user's own classes are admitted (`gr_mvdr.options`). It is
    called when a search needs it, which may be much later.

    Raises:
        ValueError: the class is not a proposer, or may not be built.
    """

    def __init__(self, settings: Mapping[str, Any]):
        super().__init__(settings)
        self.kind = find_part("proposer", settings.get(TARGET))

    def build(self, *arguments: Any) -> "Proposer":
        return self.kind(*arguments, **{key: self[key] for key in self if key != TARGET})


class Proposal(NamedTuple):
    """The documents proposed for one query; at most `refine` if they are scored in full.

    Attributes:
        documents: (C,) int64 document numbers of an index, ascending.
        estimates: (C,) fp32 the estimated relevance; None = not needed, since all are scored in
            full.
        candidates, flops: the documents and operations that count as the proposer's costs.
    """

    documents: Tensor
    estimates: Tensor | None
    candidates: int = 0
    flops: float = 0.0

    def best(self, count: int, ids: Sequence[str]) -> "Proposal":
        """Keeps the `count` best by estimate; ties as in `Ranking`, by the index's `ids`."""
        documents = self.documents
        places = best_places(self.estimates.numpy(), count, lambda n: ids[int(documents[n])])
        kept = torch.from_numpy(places).sort().values
        return self._replace(documents=documents[kept], estimates=self.estimates[kept])


class Proposer(Protocol):
    """Proposes documents of an index for queries; a part of the kind "proposer".

    It is built from a `TokenStore` and `SearchOptions`.
    """

    @property
    def size_in_bytes(self) -> int: ...

    def propose(
        self, queries: Sequence[TokenVectors], scoring: Scoring, options: SearchOptions
    ) -> list[Proposal]:
        """Returns a proposal for each query (N, …) without padding."""

    def terms(self, query: TokenVectors, options: SearchOptions) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the terms of which one query's (N, …) estimates are the sum.

        Returns:
            (C,) int64 ascending document numbers, (C, N) fp32 terms, and (C,) fp32 Z. An estimate
            is the sum of a row divided by Z.
        """
