"""The nearest document tokens of query tokens: among all, or in the lists of an inverted file."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.batch import length_mask
from gr_mvdr.evaluation.ranking import tie_order
from gr_mvdr.files import checksum, new_folder, read_sealed, verify, write_sealed
from gr_mvdr.salience import top_share
from gr_mvdr.token_index.clusters import PER_CLUSTER, TOKENS_PER_CLUSTER, k_means
from gr_mvdr.token_index.imputation import Retrieved
from gr_mvdr.token_index.quantiser import ResidualQuantiser
from gr_mvdr.token_index.store import TokenStore
from gr_mvdr.token_vectors import TokenVectors

FOLDER, LISTS, SETTINGS = "neighbours", "lists.faiss", "settings.json"
# The codes of the inverted file: bits of a sub-vector, and tokens they are learned from.
_BITS, _QUANTISER_SAMPLE = 4, 65_536
# Tokens compared at once, or assigned to lists at once.
_BLOCK = 65_536


class TokenNeighbours:
    """Token retrieval over a store, among the live documents' tokens that pruning keeps.

    Attributes:
        keep: β_d, the share of most salient tokens that each document is found by (aligner §3.2).
        count: token rows of the store that can be retrieved.
    """

    def __init__(self, store: TokenStore, keep: float = 1.0):
        """
        Raises:
            ValueError: a share of tokens is asked of a store without saliences.
        """
        self.store, self.keep, self.folder = store, keep, store.directory / FOLDER
        self._kept = _kept_rows(store, keep)
        self.count = store.n_tokens if self._kept is None else int(self._kept.sum())
        self._lists: Any = None  # a faiss index
        self._settings: dict[str, Any] | None = None

    @cached_property
    def rows(self) -> Tensor:
        """(K,) int64 ascending, the token rows that can be retrieved."""
        if self._kept is None:
            return torch.arange(self.store.n_tokens)
        return self._kept.nonzero()[:, 0]

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the inverted file; 0 where none is open."""
        if self._lists is None:
            return 0
        if self._quantiser is not None:  # the store's own codes, and 8 bytes a row
            return self.count * (self._lists.code_size + 8)
        return sum(path.stat().st_size for path in self.folder.iterdir())

    @property
    def n_lists(self) -> int:
        """Clusters of the inverted file; 1 where none is open."""
        return 1 if self._lists is None else self._lists.nlist

    def build_lists(self, lists: int | None, seed: int) -> None:
        """Builds, saves and opens the inverted file, or opens the one that was saved.

        That of residual codes is what they name, their centroids. For other vectors it is a
        product-quantised one with 4 bits for every two dimensions (faiss's "fast scan"): it holds
        a sixteenth of their bytes, and a visit of a list costs a tenth of reading them.

        Args:
            lists: number of clusters; None = √K.
            seed: of the k-means.
        """
        revision = self.store.header["revision"]
        settings = {"lists": lists, "seed": seed, "keep": self.keep, "revision": revision}
        if settings == self._settings:
            return
        if self._quantiser is not None:
            self._lists = _lists_of_codes(self.store, self._quantiser, self._kept)
            self._settings = settings
            return
        path = self.folder / SETTINGS
        saved = read_sealed(path) if path.is_file() else {}
        if settings != {key: saved.get(key) for key in settings}:
            count = lists or int(self.count**0.5)
            count = max(1, min(count, self.count // TOKENS_PER_CLUSTER))
            _save(self.folder, self._train_lists(count, seed), settings)
        self._lists, self._settings = _open(self.folder), settings

    def search(
        self, queries: Tensor, neighbours: int, probes: int | None, rescore: bool = True
    ) -> tuple[Tensor, Tensor]:
        """The k' nearest tokens of each query token, best first.

        Args:
            queries: (T, d) fp32, of the side of the store's `searched` column.
            neighbours: k'; probes: lists visited, None = every token is looked at.
            rescore: compute the similarities from the store's vectors; without it they are those
                of the inverted file's codes.

        Returns:
            similarities (T, k') fp32, −inf where there is none, and token rows (T, k') int64, −1
            where there is none: the lists visited have fewer tokens. Of several tokens as similar
            as the k'-th those are taken whose documents `Ranking` puts first; with `probes` that is
            the inverted file's choice.

        Raises:
            ValueError: k' or the probes are out of range, or there is no inverted file.
        """
        if not 1 <= neighbours <= self.count:
            rule = f"must be ≥ 1 and ≤ the {self.count} tokens that can be retrieved"
            raise ValueError(f"model.search.neighbours={neighbours}: {rule}")
        if not queries.isfinite().all():
            raise ValueError("a query's vectors are not finite: the model's weights are broken")
        if probes is None:
            return self._every_token(queries, neighbours)
        if probes < 1:
            raise ValueError(f"model.search.probes={probes}: must be ≥ 1")
        if self._lists is None:
            raise ValueError(f"model.search.probes={probes}: build_lists must come first")
        queries = queries.cpu()  # where faiss and the store are
        similarities, tokens = self._visit_lists(queries, neighbours, probes)
        if not rescore:
            return similarities.masked_fill(tokens < 0, -torch.inf), tokens
        similarities = self._similarities(queries, tokens).masked_fill(tokens < 0, -torch.inf)
        similarities, order = similarities.sort(dim=1, descending=True, stable=True)
        return similarities, tokens.gather(1, order)

    def retrieve(
        self, query: TokenVectors, neighbours: int, probes: int | None, rescore: bool = True
    ) -> Retrieved:
        """`search` for the tokens of one query (N, …), with the owners of what is found."""
        vectors = query.vectors if query.keys is None else query.keys
        similarities, tokens = self.search(vectors, neighbours, probes, rescore)
        salience = self.store.salience(tokens.flatten().clamp(min=0))
        if salience is not None:
            salience = salience.view_as(similarities)
        return Retrieved(similarities, self.store.owners(tokens), salience)

    @property
    def _quantiser(self) -> ResidualQuantiser | None:
        found = self.store.quantisers.get(self.store.searched)
        return found if isinstance(found, ResidualQuantiser) else None

    def _visit_lists(self, queries: Tensor, neighbours: int, probes: int) -> tuple[Tensor, Tensor]:
        """`search` by the similarities of the inverted file."""
        if self._quantiser is not None:
            queries = queries @ self._quantiser.basis
        self._lists.nprobe = probes
        found = self._lists.search(queries.contiguous().numpy(), neighbours)
        return torch.from_numpy(found[0]), torch.from_numpy(found[1])

    def _similarities(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """(T, k') fp32 of each query token (T, d) and its own tokens (T, k')."""
        name, turned = self.store.searched, queries
        if self._quantiser is not None:
            turned = queries @ self._quantiser.basis
        found = [
            self.store.vectors(name, rows.clamp(min=0), turned=True) @ query
            for query, rows in zip(turned, tokens, strict=True)
        ]
        return torch.stack(found) if found else queries.new_empty(tokens.shape)

    def _every_token(self, queries: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
        device = queries.device
        best = torch.empty(len(queries), 0, device=device)
        tokens = torch.empty(len(queries), 0, dtype=torch.int64, device=device)
        for rows in self.rows.split(_BLOCK):
            product = queries @ self._vectors(rows).to(device).T
            found = self._nearest(product, rows.to(device).expand(len(queries), -1), neighbours)
            best, tokens = (torch.cat(pair, 1) for pair in zip((best, tokens), found, strict=True))
            best, tokens = self._nearest(best, tokens, neighbours)
        return best.cpu(), tokens.cpu()

    def _nearest(self, similarities: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The `count` nearest of some tokens (T, n), best first; see `search` for equal ones."""
        found = similarities.topk(min(count + 1, similarities.shape[1]), dim=1)
        best, places = found.values[:, :count], found.indices[:, :count]
        if found.values.shape[1] > count:
            # topk takes any of several equal ones.
            cut = found.values[:, count]
            for row in (best[:, -1] == cut).nonzero()[:, 0].tolist():
                equal = (similarities[row] == cut[row]).nonzero()[:, 0]
                room = int((best[row] == cut[row]).sum())
                chosen = self._tie_order(tokens[row, equal].cpu())[:room]
                places[row, count - room :] = equal[chosen]
        return best, tokens.gather(1, places)

    def _tie_order(self, tokens: Tensor) -> Tensor:
        """The places of token rows (t,) by document as in `Ranking`, then as in the document."""
        owners, place = self.store.owners(tokens).unique(return_inverse=True)
        order = torch.from_numpy(tie_order([self.store.document_ids[n] for n in owners.tolist()]))
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order))
        by_token = tokens.argsort()
        return by_token[rank[place[by_token]].argsort(stable=True)]

    def _vectors(self, rows: Tensor) -> Tensor:
        """(t, d) fp32 of ascending rows; neighbours in memory are not copied one by one."""
        first, last = int(rows[0]), int(rows[-1])
        together = last - first + 1 == len(rows)
        return self.store.vectors(self.store.searched, slice(first, last + 1) if together else rows)

    def _train_lists(self, lists: int, seed: int) -> Any:
        """A faiss inverted file of the rows, trained on samples of them."""
        import faiss

        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.rows), generator=generator)
        sample = self._sample(order[: PER_CLUSTER * lists])
        metric, size = faiss.METRIC_INNER_PRODUCT, sample.shape[1]
        centroids = faiss.IndexFlatIP(size)
        centroids.add(k_means(sample, lists, seed, spherical=True))  # a list's product chooses it
        parts = size // 2 if size % 2 == 0 else size  # of two dimensions where that is possible
        index = faiss.IndexIVFPQFastScan(centroids, size, lists, parts, _BITS, metric)
        index.pq.cp.seed, index.pq.cp.min_points_per_centroid = seed, 1
        sample = order[:_QUANTISER_SAMPLE]
        repeats = -(-(2**_BITS) // len(sample))  # fewer tokens than centroids
        index.train(self._sample(sample.repeat(repeats)))
        for rows in self.rows.split(_BLOCK):
            index.add_with_ids(self._vectors(rows).contiguous().numpy(), rows.numpy())
        return index

    def _sample(self, places: Tensor) -> np.ndarray:
        rows = self.rows[places.sort().values]
        return self.store.vectors(self.store.searched, rows).contiguous().numpy()


def _kept_rows(store: TokenStore, keep: float) -> Tensor | None:
    """(T,) bool: token rows of live documents that are among their most salient; None = all."""
    if keep == 1.0 and store.live.all():
        return None
    live = store.live.repeat_interleave(store.counts)
    if keep == 1.0:
        return live
    if store.salience(slice(0, 0)) is None:
        rule = "must be 1 without salience"
        raise ValueError(f"model.search.keep_document={keep}: {rule}")
    kept = torch.zeros_like(live)
    for documents in store.blocks(_BLOCK):
        counts = store.counts[documents]
        mask = length_mask(counts)  # (D, M)
        rows = store.rows(documents)
        salience = torch.zeros(mask.shape).masked_scatter(mask, store.salience(rows))
        kept[rows] = top_share(salience, mask, keep)[mask]
    return kept & live


def _lists_of_codes(store: TokenStore, quantiser: ResidualQuantiser, kept: Tensor | None) -> Any:
    """The faiss inverted file that a store's residual codes are, sorted by their centroids.

    It is made in memory whenever it is opened: nothing of it is computed, or lies on disk.
    """
    import faiss

    books, (count, size) = quantiser.product.codebooks, quantiser.centroids.shape
    centroids = faiss.IndexFlatIP(size)
    centroids.add(quantiser.centroids.numpy())
    metric = faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexIVFPQ(centroids, size, count, len(books), 8, metric)
    faiss.copy_array_to_vector(books.flatten().numpy(), index.pq.centroids)
    index.is_trained = True
    numbers = store.centroids(store.searched)
    order = np.argsort(numbers, kind="stable")  # a radix sort for 2 bytes
    if kept is not None:
        order = order[kept.numpy()[order]]
    ends = np.searchsorted(numbers[order], np.arange(count), "right")
    for number, rows in enumerate(np.split(order, ends[:-1])):
        codes = store.codes(store.searched, torch.from_numpy(rows)).numpy()
        pointers = faiss.swig_ptr(rows), faiss.swig_ptr(codes)
        index.invlists.add_entries(number, len(rows), *pointers)
    index.ntotal = len(order)
    return index


def _save(folder: Path, index: Any, settings: dict[str, Any]) -> None:
    """Writes the inverted file whole, in the place of an old one."""
    import faiss

    with new_folder(folder, replace=True) as partial:
        lists = partial / LISTS
        faiss.write_index(index, str(lists))
        write_sealed(partial / SETTINGS, {**settings, "file": checksum(lists)})


def _open(folder: Path) -> Any:
    import faiss

    if expected := read_sealed(folder / SETTINGS).get("file"):
        verify(folder / LISTS, expected)
    return faiss.read_index(str(folder / LISTS))
