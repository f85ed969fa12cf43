"""The nearest document tokens of query tokens: all of them looked at, or an inverted file's lists."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gr_mvdr.salience import top_share
from gr_mvdr.token_store import TokenStore

FOLDER = "neighbours"
# k-means: faiss's defaults take ten times as long and find no better lists.
_ITERATIONS, _SAMPLE_PER_LIST = 10, 64
# A list has at least so many tokens on average, faiss's rule for a sample.
_TOKENS_PER_LIST = 39
# Tokens compared at once, or assigned to lists at once.
_BLOCK = 65_536


class TokenNeighbours:
    """Token retrieval over a store, among the live documents' tokens that pruning keeps.

    Attributes:
        keep: β_d, the share of most salient tokens that each document is found by (aligner §3.2).
        rows: (K,) int64 ascending, the store's token rows that can be retrieved.
    """

    def __init__(self, store: TokenStore, keep: float = 1.0):
        """
        Raises:
            ValueError: a share of tokens is asked of a store without saliences.
        """
        self.store, self.keep = store, keep
        self.rows = _kept_rows(store, keep)
        self._lists = None

    @property
    def folder(self) -> Path:
        return self.store.directory / FOLDER

    @property
    def has_lists(self) -> bool:
        """Whether an inverted file is open."""
        return self._lists is not None

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the inverted file; 0 where none was built."""
        if self._lists is None:
            return 0
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def build_lists(self, lists: int | None, seed: int) -> None:
        """Builds, saves and opens the inverted file (faiss IVF), or opens the one that was saved.

        It holds vectors as the store does: whole, halved, or the same codes.

        Args:
            lists: number of clusters; None = 2·√K.
            seed: of the k-means.
        """
        settings = {
            "lists": lists,
            "seed": seed,
            "keep": self.keep,
            "revision": self.store.header["revision"],
        }
        if saved_settings(self.store.directory) != settings:
            count = lists or int(2 * len(self.rows) ** 0.5)
            count = max(1, min(count, len(self.rows) // _TOKENS_PER_LIST))
            _save(self.folder, self._filled(self._trained(count, seed)), settings)
        self._lists = _open(self.folder)

    def search(self, queries: Tensor, neighbours: int, probes: int | None) -> tuple[Tensor, Tensor]:
        """The k' nearest tokens of each query token, best first.

        Args:
            queries: (T, d) fp32, of the side of the store's `searched` column.
            neighbours: k'; probes: lists visited, None = every token is looked at.

        Returns:
            similarities (T, k') fp32, −inf where there is none, and token rows (T, k') int64, −1
            where there is none: the lists visited have fewer tokens. Which of several equally
            similar tokens is the k'-th is not promised.

        Raises:
            ValueError: k' or the probes are out of range, or there is no inverted file.
        """
        if not 1 <= neighbours <= len(self.rows):
            raise ValueError(
                f"model.search.neighbours={neighbours}: must be ≥ 1 and ≤ the {len(self.rows)} "
                "tokens that can be retrieved"
            )
        if probes is None:
            return self._every_token(queries, neighbours)
        if probes < 1:
            raise ValueError(f"model.search.probes={probes}: must be ≥ 1")
        if self._lists is None:
            raise ValueError(f"model.search.probes={probes}: build_neighbours must come first")
        self._lists.nprobe = probes
        similarities, tokens = self._lists.search(queries.contiguous().numpy(), neighbours)
        similarities, tokens = torch.from_numpy(similarities), torch.from_numpy(tokens)
        return similarities.masked_fill_(tokens < 0, -torch.inf), tokens

    def _every_token(self, queries: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
        best = torch.empty(len(queries), 0)
        tokens = torch.empty(len(queries), 0, dtype=torch.int64)
        for rows in self.rows.split(_BLOCK):
            product = queries @ self._vectors(rows).T
            found = product.topk(min(neighbours, len(rows)), dim=1)
            best = torch.cat([best, found.values], 1)
            tokens = torch.cat([tokens, rows[found.indices]], 1)
            kept = best.topk(min(neighbours, best.shape[1]), dim=1)
            best, tokens = kept.values, tokens.gather(1, kept.indices)
        return best, tokens

    def _vectors(self, rows: Tensor) -> Tensor:
        """(t, d) fp32 of ascending rows; neighbours in memory are not copied one by one."""
        first, last = int(rows[0]), int(rows[-1])
        together = last - first + 1 == len(rows)
        return self.store.vectors(self.store.searched, slice(first, last + 1) if together else rows)

    def _trained(self, lists: int, seed: int) -> Any:
        """A flat faiss index of the centroids."""
        import faiss

        size = self.store.sizes[self.store.searched]
        clustering = faiss.Clustering(size, lists)
        clustering.seed, clustering.niter = seed, _ITERATIONS
        clustering.spherical = True  # a list is chosen by inner product
        clustering.max_points_per_centroid = _SAMPLE_PER_LIST
        generator = torch.Generator().manual_seed(seed)
        sample = torch.randperm(len(self.rows), generator=generator)[: _SAMPLE_PER_LIST * lists]
        centroids = faiss.IndexFlatIP(size)
        vectors = self.store.vectors(self.store.searched, self.rows[sample.sort().values])
        clustering.train(vectors.numpy(), centroids)
        return centroids

    def _filled(self, centroids: Any) -> Any:
        index = _empty_lists(self.store, centroids)
        for rows in self.rows.split(_BLOCK):
            index.add_with_ids(self._vectors(rows).contiguous().numpy(), rows.numpy())
        return index


def _kept_rows(store: TokenStore, keep: float) -> Tensor:
    """(K,) int64 ascending: token rows of live documents that are among their most salient."""
    live = store.live.repeat_interleave(store.counts)
    if keep == 1.0:
        return live.nonzero()[:, 0]
    if store.salience(slice(0, 0)) is None:
        raise ValueError(
            f"model.search.keep_document={keep}: must be 1 for a system without salience"
        )
    kept = torch.zeros_like(live)
    for documents in store.blocks(_BLOCK):
        counts = store.counts[documents]
        mask = torch.arange(int(counts.max())) < counts.unsqueeze(1)
        rows = store.rows(documents)
        salience = torch.zeros(mask.shape).masked_scatter(mask, store.salience(rows))
        kept[rows] = top_share(salience, mask, keep)[mask]
    return (kept & live).nonzero()[:, 0]


def _empty_lists(store: TokenStore, centroids: Any) -> Any:
    """An inverted file without tokens that stores vectors as the store does."""
    import faiss

    size, lists, metric = centroids.d, centroids.ntotal, faiss.METRIC_INNER_PRODUCT
    if store.header["dtype"] == "pq":
        quantiser = store.quantisers[store.searched]
        index = faiss.IndexIVFPQ(centroids, size, lists, len(quantiser.codebooks), 8, metric)
        index.by_residual = False
        index.pq = quantiser.faiss()
    elif store.header["dtype"] == "float16":
        kind = faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexIVFScalarQuantizer(centroids, size, lists, kind, metric, False)
    else:
        index = faiss.IndexIVFFlat(centroids, size, lists, metric)
    index.is_trained = True
    return index


def _save(folder: Path, index: Any, settings: dict[str, Any]) -> None:
    """Writes the inverted file whole, in the place of an old one."""
    import faiss

    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        faiss.write_index(index, str(unfinished / "lists.faiss"))
        (unfinished / "settings.json").write_text(json.dumps(settings))
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def saved_settings(directory: Path) -> dict[str, Any] | None:
    """What the inverted file in an index's directory was built with; None where there is none."""
    path = directory / FOLDER / "settings.json"
    return json.loads(path.read_text()) if path.is_file() else None


def _open(folder: Path) -> Any:
    """By memory map where faiss knows how to."""
    import faiss

    flag = getattr(faiss, "IO_FLAG_MMAP_IFC", 0)
    return faiss.read_index(str(folder / "lists.faiss"), flag)
