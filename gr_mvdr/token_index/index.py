"""The index of a multi-vector system: every document token's vector on disk, and its searches."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gr_mvdr.evaluation.ranking import SearchCosts
from gr_mvdr.files import (
    open_tensors,
    read_json,
    reading,
    remove_with,
    sha256,
    temporary_folder,
    write_json,
    write_tensors,
)
from gr_mvdr.measures import Measured, costs
from gr_mvdr.pooling import group_tokens, merge_tokens
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index import scorers, store
from gr_mvdr.token_index.costs import all_tokens_cost
from gr_mvdr.token_index.neighbours import NearestTokens
from gr_mvdr.token_index.search import OPEN_KEYS, Proposer, SearchOptions
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, stack

PLANS, SAMPLE = "plans.json", "sample.safetensors"
# How many times faster the exact search reads a token than a search retrieves it, and reads a
# document than a search scores it separately.
_TOKEN, _DOCUMENT = 64, 4
_MARGIN = 2  # standard errors: in 49 of 50 samples, the recall on all queries is higher


class ScoredDocuments(NamedTuple):
    """Scored documents of one query, unordered: (C,) int64 numbers in the index, (C,) fp32."""

    documents: Tensor
    scores: Tensor


class TokenIndex:
    """Token vectors of documents on disk, and their searches.

    A document's number is its place in `store.document_ids`.

    Attributes:
        store: the tokens.
        costs: running totals of all searches; assign a new `SearchCosts()` to start at zero.
    """

    def __init__(self, directory: str | Path, fingerprint: dict[str, str] | None = None):
        """Opens an index by memory map; arguments and errors as in `TokenStore`."""
        self.directory, self.costs = Path(directory), SearchCosts()
        self.store = store.TokenStore(self.directory, fingerprint)
        self._nearest: NearestTokens | None = None
        self._one_vector: tuple[Any, Proposer] | None = None  # mode fde: its options, its proposer
        self._others: dict[Any, TokenIndex] = {}  # of `stored_as`, by their options

    @classmethod
    def build(cls, directory: str | Path, *content: Any, **options: Any) -> "TokenIndex":
        """Writes an index and opens it; further arguments and errors as in `store.create`."""
        store.create(Path(directory), *content, **options)
        return cls(directory)

    def updated(self, document_ids: Sequence[str], encode: store.Encode) -> "TokenIndex":
        """Makes an index of exactly these documents in a temporary folder; see `store.revise`.

        Args:
            encode: encodes the documents that are missing here, by id.
        """
        place = temporary_folder("token-index")
        store.revise(self.store, place, document_ids, encode)
        return self._opened(place)

    def _opened(self, place: Path) -> "TokenIndex":
        """Opens an index that was made of this one in a temporary folder, with its sample."""
        index = TokenIndex(place)
        remove_with(index, place)
        if (sample := self.directory / SAMPLE).is_file():
            shutil.copyfile(sample, place / SAMPLE)
        return index

    def stored_as(self, options: SearchOptions) -> "TokenIndex":
        """Returns an index of the same documents with the pooling and storage of these options.

        It is made once from this index's vectors, in a temporary folder. Both share their costs.
        """

        def pooled(names: Sequence[str]) -> Iterator[PackedTokens]:
            tokens = self.vectors(self.numbers(names))
            groups = group_tokens(tokens, options.pool, options.pool_by)
            yield merge_tokens(tokens, groups).pack()

        if options.stored not in self._others:
            place = temporary_folder("token-index")
            store.create(place, self.store.document_ids, pooled, options.storage)
            index = self._others[options.stored] = self._opened(place)
            index.costs = self.costs
        return self._others[options.stored]

    def numbers(self, document_ids: Sequence[str]) -> Tensor:
        """(C,) int64 the numbers of documents; ValueError if an id is not in the index."""
        return self.store.numbers(document_ids)

    @property
    def bytes_per_token(self) -> float:
        """Bytes for each stored token: columns, codebooks, the inverted file and fde's vectors."""
        held = self.store.size_in_bytes
        held += self._nearest.size_in_bytes if self._nearest else 0
        held += self._one_vector[1].size_in_bytes if self._one_vector else 0
        return held / self.store.n_tokens

    def storage_costs(self, options: SearchOptions) -> list[Measured]:
        """Returns bytes for each token, and bytes a search may read, the proposer's included."""
        proposer, read = self.proposer(options), self.store.size_in_bytes
        if options.mode == "impute":
            read = read * len(self.nearest(options.keep_document).rows) // self.store.n_tokens
        elif options.scores_are_estimates:
            read = 0
        if proposer and (options.mode == "fde" or options.probes is not None):
            read += proposer.size_in_bytes
        return costs({"searched_bytes": read, "bytes_per_token": self.bytes_per_token})

    def nearest(self, keep: float = 1.0) -> NearestTokens:
        """Returns the token retrieval over a share β_d = `keep` of each document's tokens."""
        if self._nearest is None or self._nearest.keep != keep:
            self._nearest = NearestTokens(self.store, keep)
        return self._nearest

    def proposer(self, options: SearchOptions) -> Proposer | None:
        """Returns the proposer of a mode, ready to search; None if all documents are scored.

        Opens a saved inverted file with the same settings, or builds one.

        Raises:
            ValueError: `keep_document` < 1 without stored saliences.
        """
        if options.mode == "exact":
            return None
        if options.mode == "fde":
            part: Any = options.proposer
            if self._one_vector is None or self._one_vector[0] != (part, options.fde):
                self._one_vector = (part, options.fde), part.build(self.store, options)
            return self._one_vector[1]
        nearest = self.nearest(options.keep_document)
        if options.probes is not None:
            nearest.build_lists(options.lists, options.seed)
        return nearest

    def keep_sample(self, queries: Sequence[TokenVectors]) -> None:
        """Saves a sample of queries (N, …) without padding, on which `planned` chooses values."""
        packed = stack(queries).pack().to("cpu")._asdict()
        parts = {name: part for name, part in packed.items() if part is not None}
        write_tensors(self.directory / SAMPLE, parts, {})

    def planned(self, options: SearchOptions, scoring: Scoring, depth: int) -> SearchOptions:
        """Returns the options with a value in place of each "auto".

        The values are chosen on the sample of queries, so that the search retrieves a share
        `options.recall` of the exact search's best `depth` documents. They are saved with the index
        and hold for its sample.
        """
        if not options.open_keys:
            return options
        path, sample = self.directory / PLANS, self.directory / SAMPLE
        key = repr((options, scoring, depth, sample.is_file() and sha256(sample)))
        with reading(f"{path}"):
            plans = read_json(path) if path.is_file() else {}
            if key not in plans:
                plans[key] = self._choose(options, scoring, depth)
                with suppress(OSError):  # the folder is not writable
                    write_json(path, plans)
            return replace(options, **plans[key])

    def _choose(self, options: SearchOptions, scoring: Scoring, depth: int) -> dict[str, Any]:
        """Multiplies the open values by √2 until recall minus `_MARGIN` reaches `options.recall`.

        Stops if the next values would cost more than the exact search. Then the exact search is
        chosen, unless it would ignore a value that the user set; in this case, the values with the
        highest recall are chosen. Without a saved sample of queries, no recall is measured: the
        exact search is chosen, or else eight times the least values.
        """
        is_whole = options.keep_query == options.keep_document == 1 and options.mode != "impute"
        may_be_exact = is_whole and options.open_keys == OPEN_KEYS[options.mode]
        self.proposer(options)  # counts the lists
        nearest, documents = self.nearest(options.keep_document), len(self.store)
        tokens, depth = len(nearest.rows), min(depth, documents)
        bounds = {"neighbours": (250, tokens), "probes": (4, nearest.n_lists)}
        bounds["refine"] = depth, max(depth, documents // _DOCUMENT)
        # The open options at 1, √2, 2, … times their least values, up to the largest useful ones.
        ladder: list[dict[str, Any]] = []
        for step in range(2 * tokens.bit_length()):
            factor = 2 ** (step / 2)
            values = {k: min(int(factor * bounds[k][0]), bounds[k][1]) for k in options.open_keys}
            ladder += [] if values in ladder else [values]
        if not (self.directory / SAMPLE).is_file():
            return {"mode": "exact"} if may_be_exact else ladder[min(6, len(ladder) - 1)]
        tried = [
            values
            for values in ladder
            if _TOKEN * values.get("neighbours", 0) <= tokens
            and _DOCUMENT * values.get("refine", 0) <= documents
        ]
        tried = [*tried, {"mode": "exact"}] if may_be_exact else tried or ladder[:1]
        sample = PackedTokens(**open_tensors(self.directory / SAMPLE)[0]).pad()
        queries = [sample.unpad(number) for number in range(len(sample))]

        def retrieve(options: SearchOptions) -> list[set[int]]:
            scored = self.search(queries, scoring, options)
            best = [scores.topk(min(depth, len(scores))).indices for _, scores in scored]
            return [{*one.documents[own].tolist()} for one, own in zip(scored, best, strict=True)]

        costs, self.costs = self.costs, SearchCosts()  # the trials do not count
        wanted = retrieve(replace(options, mode="exact", keep_query=1.0, keep_document=1.0))
        recalls: list[float] = []
        while len(recalls) < len(tried) and max(recalls, default=0.0) < options.recall:
            results = retrieve(replace(options, **tried[len(recalls)]))
            shares = [len(a & b) / depth for a, b in zip(wanted, results, strict=True)]
            recalls.append(fmean(shares) - _MARGIN * pstdev(shares) / len(shares) ** 0.5)
        self.costs = costs
        best = max(recalls)
        chosen = tried[recalls.index(best)]
        shown = ", ".join(f"{key}={value}" for key, value in chosen.items())
        print(f"model.search.recall={options.recall}: {shown} finds {best:.3f} of the best {depth}")
        return chosen

    def search(
        self, queries: Sequence[TokenVectors], scoring: Scoring, options: SearchOptions
    ) -> list[ScoredDocuments]:
        """Searches the index, and returns the scored documents of each query.

        Args:
            queries: token vectors (N, …) without padding, on the device that compares them with
                the stored vectors; results are on the CPU.
            scoring: the system's form of Eq. 1; mode "impute" has its own.
            options: must have no "auto" value, see `planned`.

        Raises:
            ValueError: an option does not suit the scoring.
        """
        options.check(scoring)
        if (proposer := self.proposer(options)) is None:
            every = torch.arange(len(self.store))
            return [ScoredDocuments(every, row) for row in self.exact(stack(queries), scoring).T]
        with self.costs.timed():
            proposals = proposer.propose(queries, scoring, options)
        results = []
        for query, proposal in zip(queries, proposals, strict=True):
            scores, tokens, flops = proposal.estimates, 0, 0.0
            if not options.scores_are_estimates:
                scores, tokens, flops = self._scored(query, proposal.documents, scoring)
            self.costs.add(proposal.candidates, tokens, proposal.flops + flops)
            results.append(ScoredDocuments(proposal.documents, scores))
        return results

    def exact(self, queries: TokenVectors, scoring: Scoring) -> Tensor:
        """Computes the relevance of all documents from all their tokens (Eq. 1).

        Args:
            queries: (Q, N, …) padded.

        Returns:
            (D, Q) fp32.
        """
        with self.costs.timed():
            scores = scorers.score(self.store, queries, scoring)
        every = torch.arange(len(self.store))
        for n in queries.mask.sum(1).tolist():
            self.costs.add(len(every), *all_tokens_cost(self.store, n, every))
        return scores

    def vectors(self, documents: Tensor) -> TokenVectors:
        """Returns the stored vectors of documents (C,), padded to (C, M, …)."""
        return self.store.read(documents).pad()

    def score(self, query: TokenVectors, documents: Tensor, scoring: Scoring) -> Tensor:
        """Computes the relevance of some documents from all their tokens (Eq. 1).

        Args:
            query: (N, …) token vectors without padding.
            documents: (C,) int64 document numbers.

        Returns:
            (C,) fp32, in the order given.
        """
        scores, tokens, flops = self._scored(query, documents, scoring)
        self.costs.add(len(documents), tokens, flops)
        return scores

    def _scored(
        self, query: TokenVectors, documents: Tensor, scoring: Scoring
    ) -> tuple[Tensor, int, float]:
        """Returns the scores of `score`, and the tokens and operations that they cost."""
        with self.costs.timed():
            scores = scorers.score(self.store, query[None], scoring, documents)[:, 0]
        return scores, *all_tokens_cost(self.store, len(query), documents)
