"""The index of a multi-vector system: every document token's vector, searched in four ways.

Documents can be added and deleted.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gr_mvdr.evaluation.ranking import best_places
from gr_mvdr.files import remove_with, temporary_folder
from gr_mvdr.pooling import group_tokens, merge_tokens
from gr_mvdr.progress import track
from gr_mvdr.relevance import divide
from gr_mvdr.salience import keep_salient
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index import writer
from gr_mvdr.token_index.costs import SearchCosts, all_tokens_cost, imputing_flops
from gr_mvdr.token_index.fixed_dimensional import DocumentEncodings, encoding_settings
from gr_mvdr.token_index.imputation import (
    expected_relevance,
    group_by_document,
    imputed_terms,
    missing_similarity,
)
from gr_mvdr.token_index.max_sim import score_all, score_some
from gr_mvdr.token_index.neighbours import TokenNeighbours
from gr_mvdr.token_index.plan import SearchOptions, plan_search
from gr_mvdr.token_index.store import Sample, TokenStore
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, stack

_DOCUMENTS = 64  # pooled at once


class FoundDocuments(NamedTuple):
    """Scored documents of one query, in no order: (C,) int64 numbers of an index, (C,) fp32."""

    documents: Tensor
    scores: Tensor


class TokenIndex:
    """Token vectors of documents on disk. A document's number is its place in `document_ids`.

    A deleted document keeps its number and is never found; an id that is added again gets a new
    one.

    Attributes:
        store: the tokens; neighbours: their retrieval; encodings: of a search by them (MUVERA).
        costs: running totals of all searches; a new `SearchCosts()` begins at zero.
        is_copy: it was made by `updated`, in a folder that is nobody else's.
    """

    is_copy = False
    encodings: DocumentEncodings | None = None
    _others: dict[tuple[Any, ...], "TokenIndex"]  # by how they are stored

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
        encoded: writer.Stream,
        **options: Any,
    ) -> "TokenIndex":
        """Writes an index from a stream; arguments and errors as of `writer.create`."""
        writer.create(Path(directory), document_ids, encoded, **options)
        return cls(directory)

    def add(self, document_ids: Sequence[str], encoded: Iterable[PackedTokens]) -> None:
        """Adds documents behind the others. An error leaves the index as it was; see `build`."""
        writer.append(self.store, document_ids, encoded)
        self._open_changed()

    def delete(self, document_ids: Sequence[str]) -> None:
        """Deletes documents: no search finds them any more; their bytes remain.

        Raises:
            ValueError: an id that is not in the index.
        """
        writer.delete(self.store, document_ids)
        self._open_changed()

    def updated(
        self, document_ids: Sequence[str], encode: Callable[[list[str]], Iterable[PackedTokens]]
    ) -> "TokenIndex":
        """An index of these documents, in a temporary folder; what this one holds is taken over.

        Args:
            encode: the tokens of documents that this index lacks, by id.
        """
        place = temporary_folder("token-index")
        shutil.copytree(self.directory, place, dirs_exist_ok=True)
        index, wanted = TokenIndex(place), set(document_ids)
        held = {self.document_ids[number] for number in self.store.live.nonzero()[:, 0].tolist()}
        if gone := held - wanted:
            index.delete(sorted(gone))
        if new := [name for name in document_ids if name not in held]:
            index.add(new, encode(new))
        index.is_copy = True
        remove_with(index, place)
        if self.is_copy:
            shutil.rmtree(self.directory, ignore_errors=True)
        return index

    def stored_as(self, options: SearchOptions, own: SearchOptions) -> "TokenIndex":
        """This index, or one of the same documents whose vectors are pooled or coded otherwise.

        That is made of this one's vectors, in a temporary folder, once. Costs are counted together.

        Args:
            own: the options that this index was made with.

        Raises:
            ValueError: this one's vectors are pooled.
        """
        if options.storage == own.storage:
            return self
        if own.pool > 1:
            rule = "must be 1 for an index that others are made of"
            raise ValueError(f"model.search.pool={own.pool}: {rule}")
        if options.storage not in self._others:
            live = self.store.live.nonzero()[:, 0]
            place = temporary_folder("token-index")
            index = TokenIndex.build(
                place,
                [self.document_ids[number] for number in live.tolist()],
                self._pooled(live, options),
                dtype=options.dtype,
                pq_bytes=options.pq_bytes,
                seed=options.seed,
                lists=options.lists,
                vocabulary=1 if self.store.header.get("ids") == "uint16" else None,
            )
            remove_with(index, place)
            index.costs, self._others[options.storage] = self.costs, index
            if sample := Sample(self.directory).read():
                index.keep_sample(sample)
        return self._others[options.storage]

    def _pooled(self, documents: Tensor, options: SearchOptions) -> Iterator[PackedTokens]:
        for numbers in track(documents.split(_DOCUMENTS), "storing vectors in another way"):
            tokens = self.vectors(numbers)
            groups = group_tokens(tokens, options.pool, options.pool_by)
            yield merge_tokens(tokens, groups).pack()

    def _open_changed(self) -> None:
        self.store = TokenStore(self.directory)
        self.neighbours = TokenNeighbours(self.store, self.neighbours.keep)
        self.encodings, self._others = None, {}

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
        """Bytes that search holds of a stored token: columns, codebooks, the inverted file, and the
        documents' encodings."""
        held = self.store.size_in_bytes + self.neighbours.size_in_bytes
        held += self.encodings.size_in_bytes if self.encodings else 0
        return held / self.store.n_tokens

    def searched_bytes(self, options: SearchOptions) -> int:
        """Bytes that a search under these options may read: of the vectors, unless only those that
        pruning keeps or none, and of what proposes documents."""
        self.prepare(options)
        held, found = self.store.size_in_bytes, self.neighbours
        if options.mode == "impute":
            held = held * found.count // self.store.n_tokens
        if options.mode in ("gather", "impute") and options.probes is not None:
            held += found.size_in_bytes
        if options.mode == "fde" and self.encodings:
            held = (held if options.refine != 0 else 0) + self.encodings.size_in_bytes
        return held

    def prepare(self, options: SearchOptions) -> None:
        """Makes what a search needs besides the vectors: which tokens are kept, their clusters, or
        the documents' encodings.

        A faiss inverted file that was saved with the same settings is opened, and built again after
        `add` and `delete`. Every search calls this.

        Raises:
            ValueError: a share of tokens is asked for and the index holds no saliences.
        """
        if options.mode == "exact":
            return
        if options.mode == "fde":
            known = self.encodings and self.encodings.settings
            if known != encoding_settings(self.store, options):
                self.encodings = DocumentEncodings(self.store, options)
            return
        if options.keep_document != self.neighbours.keep:
            self.neighbours = TokenNeighbours(self.store, options.keep_document)
        if options.probes is not None:
            self.neighbours.build_lists(options.lists, options.seed)

    def keep_sample(self, queries: Sequence[TokenVectors]) -> None:
        """Keeps queries (N, …) without padding, on which searches are planned."""
        Sample(self.directory).write(queries)

    def planned(self, options: SearchOptions, scoring: Scoring, depth: int) -> SearchOptions:
        """The options with a value for each that they leave "auto"; see `plan_search`."""
        if not options.open_keys:
            return options
        self.prepare(options)
        encodings = self.encodings if options.mode == "fde" else None
        return plan_search(self.store, self.neighbours, options, scoring, depth, encodings)

    def search(
        self, queries: Sequence[TokenVectors], scoring: Scoring, options: SearchOptions
    ) -> list[FoundDocuments]:
        """The documents of each query, found in one of the four ways.

        Args:
            queries: token vectors (N, …) without padding, on the device that compares them with
                the stored ones; what is found is on the CPU.
            scoring: the system's form of Eq. 1; "impute" has its own.
            options: without an open key, see `planned`.

        Raises:
            ValueError: an option has no value yet, or does not fit the scoring.
        """
        if options.open_keys:
            key = options.open_keys[0]
            raise ValueError(f"model.search.{key}=auto: must have a value, `planned` chooses it")
        options.check(scoring)
        if options.mode == "exact":
            scores = self.exact(stack(queries), scoring).T
            found = (scores[0] > -torch.inf).nonzero()[:, 0]  # deleted documents have −inf
            return [FoundDocuments(found, row[found]) for row in scores]
        if options.mode == "gather":
            return [self.gather(query, scoring, options) for query in queries]
        if options.mode == "impute":
            return [self.impute(query, options) for query in queries]
        return self.estimate(queries, scoring, options)

    def exact(self, queries: TokenVectors, scoring: Scoring) -> Tensor:
        """Relevance of every document: exhaustive search.

        Args:
            queries: (Q, N, …) padded token vectors.

        Returns:
            (D, Q) fp32, documents by number, −inf for deleted ones.
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

    def gather(
        self, query: TokenVectors, scoring: Scoring, options: SearchOptions
    ) -> FoundDocuments:
        """The documents that own a retrieved token, scored with all their tokens (gr_as_mvdr §6.3).

        Args:
            query: (N, …) token vectors without padding; its most salient ones are searched with.
        """
        self.prepare(options)
        searched, neighbours = keep_salient(query, options.keep_query), self.neighbours
        with self.costs.timed():
            found = neighbours.retrieve(searched, options.neighbours, options.probes, False)
            candidates = group_by_document(found)
            documents, flops = candidates.documents, 0.0
            if options.refine is not None and options.refine < len(documents):
                expected = expected_relevance(found, candidates, searched.to("cpu"), scoring)
                documents = self._best(documents, expected, options.refine)
                flops = imputing_flops(found, candidates)
            scores = score_some(self.store, query, documents, scoring)
        tokens, scoring_flops = all_tokens_cost(self.store, len(query), documents)
        self.costs.add(len(candidates.documents), tokens, flops + scoring_flops)
        return FoundDocuments(documents, scores)

    def _best(self, documents: Tensor, scores: Tensor, count: int) -> Tensor:
        """The `count` best of some documents (C,), in their order; ties as in `Ranking`."""
        ids = self.document_ids
        best = best_places(scores.numpy(), count, lambda place: ids[int(documents[place])])
        return documents[torch.from_numpy(best).sort().values]

    def estimate(
        self, queries: Sequence[TokenVectors], scoring: Scoring, options: SearchOptions
    ) -> list[FoundDocuments]:
        """The documents of the best estimates, scored with all their tokens (MUVERA).

        Estimates are of Σ_j u_j max_i S_ij: the Z of a system takes no part in them.

        Args:
            queries: as of `search`.
        """
        self.prepare(options)
        assert self.encodings is not None
        with self.costs.timed():
            estimates = self.encodings.score(stack(queries)).T
        live, found = self.store.live.nonzero()[:, 0], []
        for query, row in zip(queries, estimates[:, live], strict=True):
            if options.refine == 0:
                self.costs.add(len(live), 0, 2.0 * len(live) * self.encodings.encoding.size)
                found.append(FoundDocuments(live, row))
                continue
            with self.costs.timed():
                count = len(live) if options.refine is None else options.refine
                best = self._best(live, row, count)
            found.append(FoundDocuments(best, self.score(query, best, scoring)))
        return found

    def estimated_terms(self, query: TokenVectors, options: SearchOptions) -> Tensor:
        """(D, N) what each token of a query (N, …) adds to the documents' estimates."""
        self.prepare(options)
        assert self.encodings is not None
        return self.encodings.score(query[:, None])

    def impute(self, query: TokenVectors, options: SearchOptions) -> FoundDocuments:
        """Relevance from the retrieved tokens alone (xtr Eq. 4); no vector of a document is read.

        Made of the similarities that alignments are made from: those of the keys, if there are any.

        Args:
            query: (N, …) token vectors without padding; its saliences weight the query tokens.
        """
        documents, terms, z = self.imputed_terms(query, options)
        return FoundDocuments(documents, divide(terms.sum(1), z))

    def imputed_terms(
        self, query: TokenVectors, options: SearchOptions
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`impute` before its sum: documents (C,), ascending, what each query token that is
        searched with adds (C, N), and Z (C,)."""
        self.prepare(options)
        query, neighbours = keep_salient(query, options.keep_query), self.neighbours
        with self.costs.timed():
            found = neighbours.retrieve(query, options.neighbours, options.probes)
            candidates = group_by_document(found)
            missing = missing_similarity(found, options.imputation)
            lengths = self.store.counts[candidates.documents]
            salience = query.to("cpu").salience
            terms = imputed_terms(found, candidates, missing, lengths, salience)
        self.costs.add(len(candidates.documents), 0, imputing_flops(found, candidates))
        return candidates.documents, *terms
