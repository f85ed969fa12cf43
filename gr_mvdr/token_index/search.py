"""A search: a proposer of documents × a scorer, over a source of token vectors.

| proposer | proposes | its estimate |
|---|---|---|
| none | all documents | |
| `NearestTokens` | documents with a token near a query token (gr_as_mvdr §6.3) | xtr Eq. 4 |
| `BM25Candidates` | the best documents of BM25 (mva §5) | |
| `OneVector` (models/beyond/muvera.py) | documents whose one vector is near the query's | MaxSim |

A scorer computes the relevance of proposed documents from all their tokens (`FullRelevance`), or
takes xtr's estimate (`Imputed`). A source is a `Searcher`: `TokenIndex` stores the vectors,
`OnDemandDocuments` encodes documents when it scores them, and `EngineIndex` asks a database, which
has its own proposer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from gr_mvdr.alignment import InBatchTopK, MaxSim
from gr_mvdr.evaluation.ranking import Ranking, SearchCosts, best_places
from gr_mvdr.measures import Measured, costs
from gr_mvdr.options import (
    TARGET,
    Proportion,
    Size,
    build,
    check_options,
    find_part,
    inspect_signature,
    part,
)
from gr_mvdr.progress import track
from gr_mvdr.relevance import Scoring
from gr_mvdr.token_vectors import Encode, TokenVectors

_BATCH = 32  # queries searched at once
# How many times faster the exact search reads a token than a search retrieves it, and reads a
# document than a search scores it separately.
_TOKEN, _DOCUMENT = 64, 4
_EFFORT = ("probes", "compared", "neighbours", "refine", "depth")  # the options that `tune` doubles
INDEX = "gr_mvdr.token_index.index.TokenIndex"


class Query(NamedTuple):
    """A query: its id, its token vectors (N, …) without padding, and its text."""

    id: str
    vectors: TokenVectors
    text: str = ""


class Documents(NamedTuple):
    """The documents of a searcher.

    Attributes:
        table: a column table with `id` and `text`.
        encode: computes their token vectors.
        lengths: the number of tokens of each.
        made_from: "dimension", "model" and "collection", which identify their vectors.
    """

    table: Any
    encode: Encode
    lengths: Sequence[int]
    made_from: Mapping[str, Any]


class Proposal(NamedTuple):
    """The documents proposed for one query.

    Attributes:
        documents: (C,) int64 document numbers, ascending.
        estimates: (C,) fp32 the estimated relevance; None = all are scored in full.
        candidates, flops: the documents and operations that count as the proposer's costs.
    """

    documents: Tensor
    estimates: Tensor | None
    candidates: int = 0
    flops: float = 0.0

    def best(self, count: int | None, ids: Sequence[str]) -> "Proposal":
        """Keeps the `count` best by estimate; ties as in `Ranking`, by the documents' `ids`."""
        if self.estimates is None or count is None or count >= len(self.documents):
            return self
        documents = self.documents
        places = best_places(self.estimates.numpy(), count, lambda n: ids[int(documents[n])])
        kept = torch.from_numpy(places).sort().values
        return self._replace(documents=documents[kept], estimates=self.estimates[kept])


# Scorers ------------------------------------------------------------------------------------------


@part("scorer")
@dataclass(frozen=True)
class FullRelevance:
    """Computes the relevance of proposed documents from all their tokens, by any form of Eq. 1.

    Attributes:
        refine: the number of proposed documents, the best by the proposer's estimates, that are
            scored; None = all.
    """

    refine: Size | None = None


@part("scorer")
@dataclass(frozen=True)
class Imputed:
    """Scores by the tokens that `NearestTokens` retrieved alone (xtr Eq. 4).

    Attributes:
        imputation: the similarity of a token that was not retrieved, see
            `gr_mvdr.token_index.scorers.missing_similarity`.
    """

    imputation: Literal["last", "zero", "mean", "none"] | float = "last"

    refine: ClassVar[None] = None


# Proposers ----------------------------------------------------------------------------------------


class Proposer:
    """Proposes documents for queries; a part of the kind "proposer", a frozen dataclass.

    Attributes:
        imputes: whether `Imputed` can score what it proposes.
        reads_vectors: whether it needs stored vectors.
        prunes: whether it ignores some tokens.
        reads: the tokens that a query token retrieves, as far as that takes time.
    """

    imputes: ClassVar[bool] = False
    reads_vectors: ClassVar[bool] = True
    prunes = False
    reads = 0

    @property
    def opens(self) -> Any:
        """The options on which `open` depends."""
        return self

    def open(self, searcher: Any) -> Any:
        """Opens or makes what a search reads, such as an inverted file."""
        raise NotImplementedError

    def propose(
        self,
        opened: Any,
        queries: Sequence[Query],
        scoring: Scoring,
        scorer: Any,
        kept: Tensor | None = None,
    ) -> list[Proposal]:
        """Returns a proposal for each query.

        Args:
            opened: what `open` returned.
            kept: (K,) int64 the numbers of the documents that may be proposed, ascending; None =
                all.
        """
        raise NotImplementedError

    def check(self, scoring: Scoring, scorer: Any, salience: Mapping[str, Any] | None) -> None:
        """Raises ValueError if it does not suit a system; see `SearchOptions.check`."""


# Options ------------------------------------------------------------------------------------------


@part("search")
@dataclass(frozen=True)
class SearchOptions:
    """The options of `model.search`.

    Attributes:
        proposer: a part that proposes documents; None = all documents are scored.
        scorer: a part that scores the proposed documents; None = `FullRelevance()`.
        source: a part that holds the documents' vectors, with its options.
        recall: the share of the exact search's best documents that `tune` must reach by doubling
            the effort; None = the options are used as they are.
        pool, pool_by: how stored vectors are merged, see `gr_mvdr.pooling.group_tokens`.
    """

    proposer: dict[str, Any] | None = None
    scorer: dict[str, Any] | None = None
    source: dict[str, Any] | None = None
    recall: Proportion | None = None
    pool: Size = 1
    pool_by: Literal["ward", "k_means", "salience"] = "ward"

    def __post_init__(self):
        for kind in ("proposer", "scorer"):
            if isinstance(settings := getattr(self, kind), Mapping):
                object.__setattr__(self, kind, build(kind, settings))
        if self.scorer is None:
            object.__setattr__(self, "scorer", FullRelevance())
        object.__setattr__(self, "source", self.source or {TARGET: INDEX})

    def searcher(self) -> "Searcher":
        """Returns the source, which still has to build or open its documents."""
        searcher = build("source", self.source)
        searcher.options = self
        return searcher

    @cached_property
    def stored(self) -> tuple[Any, ...]:
        """What the stored vectors depend on."""
        return self.pool, self.pool > 1 and self.pool_by, build("source", self.source).stored

    @property
    def settings(self) -> dict[str, Any]:
        """These options as plain values, from which the same options can be made."""
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        for kind in ("proposer", "scorer"):
            if (one := chosen[kind]) is not None:
                path = f"{type(one).__module__}.{type(one).__qualname__}"
                chosen[kind] = {TARGET: path, **vars(one)}
        return chosen

    def changed(self, **options: Any) -> "SearchOptions":
        """Returns the same search with some options replaced.

        Args:
            options: options of the search, or those of its parts, by their names alone.

        Raises:
            ValueError: no part has the option, or its value is not valid.
        """
        own = {field.name for field in fields(self)}
        search = replace(self, **{key: value for key, value in options.items() if key in own})
        for key in options.keys() - own:
            value = options[key]
            for kind in ("proposer", "scorer"):
                one: Any = getattr(search, kind) or object
                if key in vars(one):
                    changed: Any = {kind: replace(one, **{key: value})}
                    search = replace(search, **changed)
                    break
            else:
                source = find_part("source", search.source[TARGET])
                check_options("model.search", inspect_signature(source), {key: value})
                search = replace(search, source={**search.source, key: value})
        return search

    def effort(self, n_tokens: int, n_documents: int) -> float:
        """Returns the cost of the search relative to the exact search of stored documents."""
        return max(self.token_effort(n_tokens), _DOCUMENT * self.n_scored / n_documents)

    def token_effort(self, n_tokens: int) -> float:
        """Returns the cost of retrieving tokens relative to reading `n_tokens`."""
        return _TOKEN * getattr(self.proposer, "reads", 0) / max(1, n_tokens)

    @property
    def n_scored(self) -> int:
        """The number of documents that the proposer's choice leaves to score in full."""
        return max(getattr(self.scorer, "refine", 0) or 0, getattr(self.proposer, "depth", 0))

    @property
    def exact(self) -> "SearchOptions":
        """The same search, but of all documents by all their tokens."""
        return replace(self, proposer=None, scorer=None, recall=None)

    def doubled(self) -> "SearchOptions":
        """Returns the same search with twice the effort."""
        numbers = {**vars(self.proposer), **vars(self.scorer)}.items()
        return self.changed(**{key: 2 * n for key, n in numbers if key in _EFFORT and n})

    def check(self, scoring: Scoring, salience: Mapping[str, Any] | None = None) -> None:
        """Raises ValueError if the search does not suit a system's form of Eq. 1.

        Args:
            salience: side, "query" or "document" → the settings of its salience; None = unknown.
        """
        if isinstance(scoring.alignment, InBatchTopK):
            rule = "must be model.training_alignment, a score may not depend on other documents"
            raise ValueError(f"model.alignment={scoring.alignment}: {rule}")
        by_salience = self.pool > 1 and self.pool_by == "salience"
        if by_salience and salience is not None and not salience.get("document"):
            raise ValueError("model.search.pool_by=salience: must be another without salience")
        proposer: Any = self.proposer
        imputes = isinstance(self.scorer, Imputed)
        if imputes and not (proposer and proposer.imputes):
            rule = "needs proposer=NearestTokens, whose retrieved tokens it scores"
            raise ValueError(f"model.search.scorer=Imputed: {rule}")
        if imputes and scoring.alignment != MaxSim():
            rule = f"must be FullRelevance under {scoring.alignment}, xtr Eq. 4 estimates MaxSim"
            raise ValueError(f"model.search.scorer=Imputed: {rule}")
        if proposer is not None:
            proposer.check(scoring, self.scorer, salience)


class Searcher:
    """The documents of a collection and their search; a part of the kind "source".

    Its verbs are build, open, update, search, score and vectors. Documents are named by their ids;
    a document's number is its place in `names`.

    Attributes:
        options: the options of a search that is not given others.
        names: the ids of the documents.
        costs: running totals of all searches; assign a new `SearchCosts()` to start at zero.
        keeps_vectors: whether proposers can read stored vectors.
        in_shards: whether every rank builds it and writes its own shards.
        stored: the part's own options on which the stored vectors depend.
        bytes_per_token: the bytes of a stored token vector.
    """

    options: SearchOptions
    names: Sequence[str] = ()
    keeps_vectors = in_shards = False
    stored: Any = None
    bytes_per_token = 0.0

    def __init__(self) -> None:
        self.options, self.costs = SearchOptions(), SearchCosts()
        self._opened: dict[type, tuple[Any, Any]] = {}  # kind of proposer → its options, its data

    def check(self, options: SearchOptions, scoring: Scoring, salience: Any = None) -> None:
        """Raises ValueError if a search does not suit this source; see `SearchOptions.check`."""
        options.check(scoring, salience)
        if options.recall and options.proposer is None:
            rule = "must be null without a proposer, whose effort it doubles"
            raise ValueError(f"model.search.recall={options.recall}: {rule}")
        proposer: Any = options.proposer
        needs = options.recall or (proposer is not None and proposer.reads_vectors)
        if needs and not self.keeps_vectors:
            rule = "needs source=index, which stores vectors"
            raise ValueError(f"model.search.proposer={type(proposer).__name__}: {rule}")

    def connect(self, directory: Path) -> None:
        """Raises ValueError if the source cannot be reached."""

    def build(self, documents: Documents, directory: str | Path | None = None) -> None:
        """Writes the documents' vectors; `directory` keeps them, None = they are temporary."""
        raise NotImplementedError

    def open(self, documents: Documents, directory: str | Path) -> None:
        """Opens what `build` wrote of the same documents.

        Raises:
            FileNotFoundError: the folder holds nothing.
            ValueError: the vectors were made from something else, or are damaged.
        """
        raise NotImplementedError

    def update(self, documents: Documents) -> None:
        """Holds exactly these documents from now on; encodes only those that it lacks."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes what is held open; until then, no other process may open it."""

    @torch.inference_mode()
    def search(
        self,
        queries: Sequence[Query],
        scoring: Scoring,
        k: int,
        options: SearchOptions | None = None,
        among: Sequence[str] | None = None,
    ) -> Ranking:
        """Retrieves the k best documents of each query.

        Args:
            queries: their vectors are on the device that compares them with the documents'.
            scoring: the system's form of Eq. 1.
            options: None = `self.options`.
            among: ids of the documents that can be retrieved; None = all.

        Raises:
            ValueError: an option does not suit the scoring or the source, or an id is not that of
                a document.
        """
        source = self
        if among is not None and not len(among):
            return Ranking({query.id: {} for query in queries})
        if options is not None:
            self.check(options, scoring)
            source = self.stored_as(options)
        results, starts = {}, range(0, len(queries), _BATCH)
        kept = None if among is None else source.restriction(among)
        for start in track(starts, "searching"):
            some = queries[start : start + _BATCH]
            scored = source.scored(some, scoring, options or self.options, k, kept)
            for query, proposal in zip(some, scored, strict=True):
                best = proposal.best(k, source.names)
                names = [source.names[number] for number in best.documents.tolist()]
                results[query.id] = dict(zip(names, best.estimates.tolist(), strict=True))
        return Ranking(results)

    def narrowed(self, options: SearchOptions, among: Sequence[str]) -> SearchOptions:
        """Returns the search for some documents: the exact one if they are few."""
        return options.exact if len(among) <= options.n_scored else options

    def restriction(self, among: Sequence[str]) -> Any:
        """Returns what restricts `scored` to some documents: their numbers, ascending."""
        return self.numbers(among).unique()

    def scored(
        self,
        queries: Sequence[Query],
        scoring: Scoring,
        options: SearchOptions,
        k: int,
        kept: Any = None,
    ) -> list[Proposal]:
        """Returns at least the k best documents of each query, with their scores as estimates.

        Args:
            kept: what `restriction` returned; None = all documents.
        """
        proposer: Any = options.proposer
        if proposer is None:
            return self.score_all(queries, scoring, kept)
        with self.costs.timed():
            opened = self.opened(proposer)
            proposals = proposer.propose(opened, queries, scoring, options.scorer, kept)
        results = []
        for query, proposal in zip(queries, proposals, strict=True):
            self.costs.add(proposal.candidates, 0, proposal.flops)
            if isinstance(options.scorer, FullRelevance):
                proposal = proposal.best(options.scorer.refine, self.names)
                scores = self.relevance(query.vectors, proposal.documents, scoring)
                proposal = proposal._replace(estimates=scores)
            results.append(proposal)
        return results

    def score_all(
        self, queries: Sequence[Query], scoring: Scoring, kept: Tensor | None = None
    ) -> list[Proposal]:
        """Scores all documents for each query, or those of the numbers `kept`."""
        every = torch.arange(len(self.names)) if kept is None else kept
        self.costs.add(len(queries) * len(every), 0, 0.0, len(queries))
        return [Proposal(every, self.relevance(q.vectors, every, scoring)) for q in queries]

    def score(self, query: TokenVectors, names: Sequence[str], scoring: Scoring) -> Tensor:
        """Computes the relevance (C,) fp32 of documents to a query (N, …), on the CPU.

        Raises:
            ValueError: an id is not that of a document.
        """
        self.costs.add(len(names), 0, 0.0)
        return self.relevance(query, self.numbers(names), scoring)

    def relevance(self, query: TokenVectors, documents: Tensor, scoring: Scoring) -> Tensor:
        """Computes the relevance (C,) fp32 of documents (C,) from all their tokens (Eq. 1)."""
        raise NotImplementedError

    def vectors(self, names: Sequence[str]) -> TokenVectors:
        """Returns the vectors of documents, padded to (C, M, …); raises as `score`."""
        raise NotImplementedError

    def numbers(self, names: Sequence[str]) -> Tensor:
        """(C,) int64 the numbers of documents; ValueError if an id is not that of a document."""
        if unknown := [name for name in names if name not in self.number_of]:
            raise ValueError(f"document {unknown[0]!r} is not in the index")
        return torch.tensor([self.number_of[name] for name in names], dtype=torch.int64)

    def hold(self, names: Sequence[str]) -> None:
        """Replaces the documents, and closes what proposers read of the former ones."""
        self.names, self._opened = names, {}
        self.number_of = {name: number for number, name in enumerate(names)}

    def stored_as(self, options: SearchOptions) -> "Searcher":
        """Returns a searcher of the same documents whose vectors are stored as in the options.

        Raises:
            ValueError: these vectors cannot be stored in another way.
        """
        if options.stored != self.options.stored:
            rule = "must be a TokenIndex to search vectors that are stored in other ways"
            raise ValueError(f"model.search.source={type(self).__name__}: {rule}")
        return self

    def opened(self, proposer: Any) -> Any:
        """Returns what a proposer reads; the last of each kind is kept open."""
        kept, opened = self._opened.get(type(proposer), (None, None))
        if kept != proposer.opens:
            opened = proposer.open(self)
            self._opened[type(proposer)] = proposer.opens, opened
        return opened

    def exact_search(self) -> SearchOptions | None:
        """Returns the search to compare an approximate one with; None = it costs too much."""
        return self.options.exact

    def storage_costs(self, options: SearchOptions) -> list[Measured]:
        """Returns metrics: the bytes of a stored token, and those that a search may read."""
        return costs({"bytes_per_token": self.bytes_per_token})


def relevance_cost(query: TokenVectors, counts: Tensor, heads: int = 1) -> tuple[int, float]:
    """Counts tokens and operations for scoring documents by all their tokens.

    Operations are floating-point operations, as in xtr App. B or, if a query has keys, as in
    mva §2.1. One is an addition, multiplication, comparison, exponential or division; a
    multiply-add is two. MVA's Tables 5 and 6 count it as one: halve the values to compare.

    Args:
        query: (N, …) without padding.
        counts: (C,) the number of tokens of each document.
    """
    tokens, sizes = int(counts.sum()), (len(query), query.vectors.shape[1])
    mean = tokens / max(1, len(counts))
    if query.keys is None:
        return tokens, len(counts) * multi_vector_joint_flops(sizes[0], mean, sizes[1])
    return tokens, len(counts) * mva_joint_flops(sizes[0], mean, sizes[1], heads)


def multi_vector_joint_flops(
    query_tokens: float, document_tokens: float, dimension: float
) -> float:
    """Operations for one pair under sum-of-max: n (2 m d + m + 1) (xtr App. B).

    These are 2 n m d for S, n m for the maxima, and n for their sum. A single-vector system has
    n = m = 1. A search scores C candidates this way, at worst C = n k', which gives
    n² k' (2 m̄ d + m̄ + 1) of xtr Table 1.

    Args:
        query_tokens: n.
        document_tokens: m.
        dimension: d, the size of a vector.
    """
    n, m, d = query_tokens, document_tokens, dimension
    return n * (2 * m * d + m + 1)


def mva_joint_flops(
    query_tokens: float, document_tokens: float, dimension: float, heads: int = 1
) -> float:
    """Operations for one pair under attention with H heads: n (m (4 h + 7 H) + 1) (mva §2.1).

    These are 2 n m h for the products of the keys and 2 n m h for S of the values; in each head,
    n m for each of the softmax's maximum, difference, exponential, sum and quotient, and 2 n m for
    Σ S A; and n for the mean. The projections belong to the encoders and are not counted.

    Half of this, for 1,000 documents and the 7 query vectors of MVA's data (a [CLS] and 6 tokens),
    is 127, 22 and 7.6 MFLOPs; MVA's Table 5 says 130, 25 and 8.

    Args:
        query_tokens: n.
        document_tokens: m, after pooling.
        dimension: h, the size of a vector, all heads together.
        heads: H.
    """
    n, m, h = query_tokens, document_tokens, dimension
    return n * (m * (4 * h + 7 * heads) + 1)
