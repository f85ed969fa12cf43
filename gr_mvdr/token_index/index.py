"""The index of a multi-vector system: every document token's vector on disk, and its searches.

Documents can be added and deleted.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from torch import Tensor

from gr_mvdr.files import check, read_json, reading, remove_with, temporary_folder, write_json
from gr_mvdr.options import admitting, build
from gr_mvdr.pooling import group_tokens, merge_tokens
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index import store as token_store
from gr_mvdr.token_index.costs import SearchCosts, all_tokens_cost
from gr_mvdr.token_index.max_sim import score_all, score_some
from gr_mvdr.token_index.neighbours import TokenNeighbours
from gr_mvdr.token_index.search import (
    OPEN_KEYS,
    CheckedProposer,
    NearestTokens,
    Proposal,
    Proposer,
    SearchOptions,
)
from gr_mvdr.token_index.store import Sample, TokenStore
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, stack

PLANS = "plans.json"
_DOCUMENTS = 64  # pooled at once
_QUERIES = 32  # of the sample searched at once
# The exact search reads a token, and a document, in so much less time than a search that retrieves
# it, or scores it by itself.
_TOKEN, _DOCUMENT = 64, 4


class ScoredDocuments(NamedTuple):
    """Scored documents of one query, in no order: (C,) int64 numbers of an index, (C,) fp32."""

    documents: Tensor
    scores: Tensor


class TokenIndex:
    """Token vectors of documents on disk. A document's number is its place in `document_ids`.

    A deleted document keeps its number and is never retrieved. If its id is added again, it gets a
    new number.

    Attributes:
        store: the tokens; neighbours: their retrieval.
        costs: running totals of all searches; a new `SearchCosts()` begins at zero.
        is_copy: whether `updated` made it, in a temporary folder.
    """

    is_copy = False
    _one_vector: tuple[Any, Proposer] | None = None  # of mode fde, after its options
    _others: dict[tuple[Any, ...], "TokenIndex"]  # by `SearchOptions.storage`

    def __init__(self, directory: str | Path, fingerprint: dict[str, str] | None = None):
        """Opens an index by memory map; arguments and errors as of `TokenStore`."""
        self.directory, self.costs, self._others = Path(directory), SearchCosts(), {}
        self.store = TokenStore(directory, fingerprint)
        self.neighbours = TokenNeighbours(self.store)

    @classmethod
    def build(
        cls,
        directory: str | Path,
        document_ids: Sequence[str],
        encode: token_store.Encode,
        **options: Any,
    ) -> "TokenIndex":
        """Writes an index; arguments and errors as of `store.create`."""
        token_store.create(Path(directory), document_ids, encode, **options)
        return cls(directory)

    def add(self, document_ids: Sequence[str], encode: token_store.Encode) -> None:
        """Appends documents; an error leaves the index unchanged. See `build`."""
        token_store.append(self.store, document_ids, encode)
        self._open_changed()

    def delete(self, document_ids: Sequence[str]) -> None:
        """Deletes documents: searches skip them, their bytes remain.

        Raises:
            ValueError: an id that is not in the index.
        """
        token_store.delete(self.store, document_ids)
        self._open_changed()

    def updated(self, document_ids: Sequence[str], encode: token_store.Encode) -> "TokenIndex":
        """A copy of the index in a temporary folder that holds exactly these documents.

        Args:
            encode: gives the tokens of documents that are missing here, by id.
        """
        place = temporary_folder("token-index")
        shutil.copytree(self.directory, place, dirs_exist_ok=True)
        index, wanted = TokenIndex(place), set(document_ids)
        held = {self.document_ids[number] for number in self.store.live.nonzero()[:, 0].tolist()}
        if gone := held - wanted:
            index.delete(sorted(gone))
        if new := [name for name in document_ids if name not in held]:
            index.add(new, encode)
        index.is_copy = True
        remove_with(index, place)
        if self.is_copy:
            shutil.rmtree(self.directory, ignore_errors=True)
        return index

    def stored_as(self, options: SearchOptions, own: SearchOptions) -> "TokenIndex":
        """The index of the same documents with other pooling or another `dtype`.

        It is made once from this index's vectors, in a temporary folder; both count costs together.

        Args:
            own: the options that this index was made with.

        Raises:
            ValueError: this index's vectors are pooled.
        """
        if options.storage == own.storage:
            return self
        if own.pool > 1:
            rule = "must be 1 for an index that is stored in other ways"
            raise ValueError(f"model.search.pool={own.pool}: {rule}")
        if options.storage not in self._others:
            live = self.store.live.nonzero()[:, 0]
            place = temporary_folder("token-index")
            index = TokenIndex.build(
                place,
                [self.document_ids[number] for number in live.tolist()],
                lambda names: self._pooled(self.numbers(names), options),
                dtype=options.dtype,
                pq_bytes=options.pq_bytes,
                seed=options.seed,
                lists=options.lists,
            )
            remove_with(index, place)
            index.costs, self._others[options.storage] = self.costs, index
            if sample := Sample(self.directory).read():
                index.keep_sample(sample)
        return self._others[options.storage]

    def _pooled(self, documents: Tensor, options: SearchOptions) -> Iterator[PackedTokens]:
        for numbers in documents.split(_DOCUMENTS):
            tokens = self.vectors(numbers)
            groups = group_tokens(tokens, options.pool, options.pool_by)
            yield merge_tokens(tokens, groups).pack()

    def _open_changed(self) -> None:
        self.store = TokenStore(self.directory)
        self.neighbours = TokenNeighbours(self.store, self.neighbours.keep)
        self._one_vector, self._others = None, {}

    def __len__(self) -> int:
        """The number of live documents."""
        return int(self.store.live.sum())

    @property
    def document_ids(self) -> list[str]:
        """The ids by number, those of deleted documents included."""
        return self.store.document_ids

    def numbers(self, document_ids: Sequence[str]) -> Tensor:
        """(C,) int64 numbers of live documents; ValueError for an id that is not in the index."""
        return self.store.numbers(document_ids)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all the index's files."""
        return sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())

    @property
    def bytes_per_token(self) -> float:
        """Bytes a stored token: columns, codebooks, the inverted file and fde's vectors."""
        held = self.store.size_in_bytes + self.neighbours.size_in_bytes
        held += self._one_vector[1].size_in_bytes if self._one_vector else 0
        return held / self.store.n_tokens

    def searched_bytes(self, options: SearchOptions) -> int:
        """Bytes that a search under these options may read, of vectors and of the proposer."""
        proposer, held = self.proposer(options), self.store.size_in_bytes
        if options.mode == "impute":
            held = held * self.neighbours.count // self.store.n_tokens
        elif options.scores_are_estimates:
            held = 0
        reads = proposer is not None and (options.mode == "fde" or options.probes is not None)
        return held + (proposer.size_in_bytes if reads else 0)

    def proposer(self, options: SearchOptions) -> Proposer | None:
        """The proposer of a mode, ready to search; None if all documents are scored.

        A saved inverted file with the same settings is opened; otherwise one is built.

        Raises:
            ValueError: `keep_document` < 1 without stored saliences.
        """
        if options.mode == "exact":
            return None
        if options.mode == "fde":
            wanted = options.proposer, options.encoding
            if self._one_vector is None or self._one_vector[0] != wanted:
                is_checked = isinstance(options.proposer, CheckedProposer)
                with admitting(options.proposer if is_checked else ()):
                    made = build("proposer", options.proposer, self.store, options)
                self._one_vector = wanted, made
            return self._one_vector[1]
        if options.keep_document != self.neighbours.keep:
            self.neighbours = TokenNeighbours(self.store, options.keep_document)
        return NearestTokens(self.neighbours, options)

    def keep_sample(self, queries: Sequence[TokenVectors]) -> None:
        """Keeps queries (N, …) without padding, on which `planned` chooses values."""
        Sample(self.directory).write(queries)

    def planned(self, options: SearchOptions, scoring: Scoring, depth: int) -> SearchOptions:
        """The options with a value for each that is "auto".

        Values are chosen on the sample of queries, so that the search finds `options.recall` of
        the exact search's best `depth` documents, and kept with the index until it changes.
        """
        if not options.open_keys:
            return options
        sample = Sample(self.directory)
        age = self.store.revision, sample.made_of
        key, path = repr((options, scoring, depth, age)), self.directory / PLANS
        with reading(f"{path}"):
            plans = read_json(path) if path.is_file() else {}
            if key not in plans:
                plans[key] = self._choose(options, scoring, min(depth, len(self)), sample.read())
                with suppress(OSError):  # a folder that cannot be written
                    write_json(path, plans)
            chosen = plans[key].keys() <= {"mode", *options.open_keys}
            check(chosen, path, "must choose nothing but open options")
            return replace(options, **plans[key])

    def _choose(
        self, options: SearchOptions, scoring: Scoring, depth: int, sample: list[TokenVectors]
    ) -> dict[str, Any]:
        """Doubles the open values until the recall holds, less its standard error over the sample,
        then searches for the least `refine` that keeps it, within a tenth.

        It stops where the exact search would be less work. That is chosen then, unless it would
        ignore a value that the user has set; else the values with the highest recall are.
        """
        is_whole = options.keep_query == options.keep_document == 1 and options.mode != "impute"
        may_be_exact = is_whole and options.open_keys == OPEN_KEYS[options.mode]
        self.proposer(options)  # counts the tokens and the lists
        if not sample:
            return {"mode": "exact"} if may_be_exact else self._values(options, depth, 8)
        costs, self.costs = self.costs, SearchCosts()  # those of the user's searches are kept
        exact = replace(options, mode="exact", keep_query=1.0, keep_document=1.0)
        wanted = self._best(sample, scoring, exact, depth)

        def measured(values: dict[str, Any]) -> float:
            results = self._best(sample, scoring, replace(options, **values), depth)
            shares = [len(a & b) / depth for a, b in zip(wanted, results, strict=True)]
            return fmean(shares) - pstdev(shares) / len(shares) ** 0.5

        chosen: dict[str, Any] = {"mode": "exact"}
        values: dict[str, Any] = {}
        best, effort = -1.0, 1
        while best < options.recall and values != self._values(options, depth, effort):
            values = self._values(options, depth, effort)
            retrieved, scored = values.get("neighbours", 0), values.get("refine", 0)
            is_much = _TOKEN * retrieved >= self.neighbours.count or _DOCUMENT * scored > len(self)
            if is_much and (may_be_exact or best >= 0):
                break
            if (recall := measured(values)) > best:
                best, chosen = recall, values
            effort *= 2
        if best < options.recall and may_be_exact:
            chosen, best = {"mode": "exact"}, 1.0
        low, high = depth, chosen.get("refine", depth)
        while best >= options.recall and high - low > max(1, high // 10):
            middle = (low + high) // 2
            if (recall := measured(chosen | {"refine": middle})) >= options.recall:
                chosen, best, high = chosen | {"refine": middle}, recall, middle
            else:
                low = middle
        self.costs = costs
        said = ", ".join(f"{key}={value}" for key, value in chosen.items())
        print(f"model.search.recall={options.recall}: {said} finds {best:.3f} of the best {depth}")
        return chosen

    def _values(self, options: SearchOptions, depth: int, effort: int) -> dict[str, int]:
        """The open options at a multiple of their least values, up to what is of use."""
        tokens, lists = self.neighbours.count, self.neighbours.n_lists
        least = {"neighbours": 250, "probes": 4, "refine": depth}
        refine = max(depth, len(self) // _DOCUMENT)
        most = {"neighbours": tokens, "probes": lists, "refine": refine}
        return {key: min(effort * least[key], most[key]) for key in options.open_keys}

    def _best(
        self, queries: list[TokenVectors], scoring: Scoring, options: SearchOptions, depth: int
    ) -> list[set[int]]:
        """The numbers of the `depth` best documents of each query."""
        results = []
        for start in range(0, len(queries), _QUERIES):
            for scored in self.search(queries[start : start + _QUERIES], scoring, options):
                best = scored.scores.topk(min(depth, len(scored.scores))).indices
                results.append({*scored.documents[best].tolist()})
        return results

    def search(
        self, queries: Sequence[TokenVectors], scoring: Scoring, options: SearchOptions
    ) -> list[ScoredDocuments]:
        """The scored documents of each query.

        Args:
            queries: token vectors (N, …) without padding, on the device that compares them with
                the stored ones; results are on the CPU.
            scoring: the system's form of Eq. 1; "impute" has its own.
            options: without an "auto" value, see `planned`.

        Raises:
            ValueError: an option is "auto", or does not suit the scoring.
        """
        if options.open_keys:
            key = options.open_keys[0]
            raise ValueError(f"model.search.{key}=auto: must have a value, `planned` chooses it")
        options.check(scoring)
        if (proposer := self.proposer(options)) is None:
            scores = self.exact(stack(queries), scoring).T
            live = self.store.live.nonzero()[:, 0]
            return [ScoredDocuments(live, row[live]) for row in scores]
        with self.costs.timed():
            proposals = proposer.propose(queries, scoring, options)
        return [
            self._scored(query, proposal, scoring, options)
            for query, proposal in zip(queries, proposals, strict=True)
        ]

    def _scored(
        self, query: TokenVectors, proposal: Proposal, scoring: Scoring, options: SearchOptions
    ) -> ScoredDocuments:
        """A query's proposed documents, scored by their estimates or with all their tokens."""
        documents, flops = proposal.documents, proposal.flops
        if options.scores_are_estimates:
            self.costs.add(proposal.candidates, 0, flops)
            return ScoredDocuments(documents, proposal.estimates)
        with self.costs.timed():
            scores = score_some(self.store, query, documents, scoring)
        tokens, scoring_flops = all_tokens_cost(self.store, len(query), documents)
        self.costs.add(proposal.candidates, tokens, flops + scoring_flops)
        return ScoredDocuments(documents, scores)

    def exact(self, queries: TokenVectors, scoring: Scoring) -> Tensor:
        """Relevance of all documents from all their tokens (Eq. 1).

        Args:
            queries: (Q, N, …) padded.

        Returns:
            (D, Q) fp32, −inf for deleted documents.
        """
        with self.costs.timed():
            scores = score_all(self.store, queries, scoring)
        live = self.store.live.nonzero()[:, 0]
        for n in queries.mask.sum(1).tolist():
            self.costs.add(len(live), *all_tokens_cost(self.store, n, live))
        return scores

    def vectors(self, documents: Tensor) -> TokenVectors:
        """The stored vectors (C, M, …) of documents (C,), padded."""
        return self.store.read(documents).pad()

    def score(self, query: TokenVectors, documents: Tensor, scoring: Scoring) -> Tensor:
        """Relevance of some documents, from all their tokens (Eq. 1).

        Args:
            query: (N, …) token vectors without padding.
            documents: (C,) int64 document numbers.

        Returns:
            (C,) fp32, in the order given.
        """
        with self.costs.timed():
            scores = score_some(self.store, query, documents, scoring)
        self.costs.add(len(documents), *all_tokens_cost(self.store, len(query), documents))
        return scores
