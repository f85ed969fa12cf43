"""The index of a multi-vector system: every document token's vector, packed and memory-mapped."""

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.max_sim import equal_length_segments, packed_relevance
from gr_mvdr.relevance import relevance, similarity

# Similarities computed at once: a block's product with the queries stays in the cache.
_BLOCK_SIMILARITIES = 1_000_000


class TokenIndex:
    """Packed token vectors (T, d) of D documents on disk, searched exactly or through neighbours.

    Files: `vectors.bin` (T·d floats, row after row), `lengths.npy` (D,), `index.json` (document
    ids, vector size, type), and `ivf.faiss` once `build_neighbours` was called.
    """

    def __init__(self, directory: str | Path):
        """Opens an index by memory map.

        Raises:
            FileNotFoundError: there is none. ValueError: a file is cut short.
        """
        self.directory = Path(directory)
        if not (self.directory / "index.json").is_file():
            raise FileNotFoundError(f"index={directory}: no token index there (index.json missing)")
        header = json.loads((self.directory / "index.json").read_text())
        self.document_ids: list[str] = header["document_ids"]
        self.lengths = torch.from_numpy(np.load(self.directory / "lengths.npy"))
        shape = (int(self.lengths.sum()), header["dimension"])
        path = self.directory / "vectors.bin"
        expected = shape[0] * shape[1] * np.dtype(header["dtype"]).itemsize
        if path.stat().st_size != expected:
            raise ValueError(
                f"index={path}: {path.stat().st_size} bytes, expected {expected}: it was cut short"
            )
        # "c" keeps the map writable for torch without ever writing to the file.
        self.vectors = torch.from_numpy(np.memmap(path, header["dtype"], "c", shape=shape))
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])
        self._neighbours = None

    @classmethod
    def build(
        cls,
        directory: str | Path,
        document_ids: Sequence[str],
        encoded: Iterable[tuple[Tensor, Tensor]],
        dtype: str = "float32",
    ) -> "TokenIndex":
        """Writes an index from a stream, never holding more than one batch of it.

        Args:
            directory: is created, or replaced once the new index is complete.
            document_ids: D ids in the stream's order.
            encoded: batches of (packed token vectors (t, d), token counts of its documents (b,)).
            dtype: stored type, "float32" or "float16".

        Raises:
            ValueError: the stream's documents are not as many as the ids.
        """
        target = Path(directory)
        unfinished = target.with_name(target.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            _write(unfinished, list(document_ids), encoded, dtype)
        except BaseException:
            shutil.rmtree(unfinished)
            raise
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
        return cls(target)

    def __len__(self) -> int:
        return len(self.document_ids)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all the index's files."""
        return sum(path.stat().st_size for path in self.directory.iterdir())

    def exact(self, queries: Tensor) -> Tensor:
        """MaxSim relevance (q→d) of every document: exhaustive search.

        Args:
            queries: (Q, N, d) token vectors, zero at padding.

        Returns:
            (D, Q) fp32, documents in the order of `document_ids`.
        """
        columns = queries.shape[0] * queries.shape[1]
        return torch.cat(
            [
                packed_relevance(self.vectors[rows], self.lengths[documents], queries)
                for documents, rows in self._blocks(_BLOCK_SIMILARITIES // columns)
            ]
        )

    def score(self, query: Tensor, documents: Tensor, alignment, normalise: bool = False) -> Tensor:
        """Relevance of some documents under any alignment: gather-and-score (Eq. 1).

        Args:
            query: (N, d) token vectors without padding.
            documents: (C,) int64 document numbers.
            alignment: a strategy of `gr_mvdr.alignment`.
            normalise: divide by Z.

        Returns:
            (C,) fp32, in the order given.
        """
        # Sorted by length, so that documents of one length are scored as one dense tensor.
        order = self.lengths[documents].argsort(stable=True)
        lengths = self.lengths[documents[order]]
        vectors = self.vectors[self._rows(documents[order])].to(query.dtype)
        scores = torch.empty(len(documents))
        position = 0
        for rows, length, repeats in equal_length_segments(vectors, lengths):
            matrix = similarity(rows.view(repeats, length, -1), query)
            real = torch.ones(repeats, length, dtype=torch.bool)
            aligned = alignment(matrix, real, torch.ones(repeats, len(query), dtype=torch.bool))
            chosen = order[position : position + repeats]
            scores[chosen] = relevance(matrix, aligned, normalise)
            position += repeats
        return scores

    def build_neighbours(self, lists: int | None = None, seed: int = 0) -> None:
        """Builds and saves the inverted-file index (faiss IVF) that `candidates` asks.

        Args:
            lists: number of clusters; None = 4·√T, faiss's rule of thumb.
            seed: of the k-means.
        """
        import faiss

        tokens, size = self.vectors.shape
        lists = max(1, min(lists or int(4 * tokens**0.5), tokens // 39))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(size), size, lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.seed = seed
        sample = torch.randperm(tokens, generator=torch.Generator().manual_seed(seed))
        sample = sample[: 256 * lists].sort().values
        index.train(self.vectors[sample].float().numpy())
        for documents, rows in self._blocks(1_000_000):
            del documents
            index.add(self.vectors[rows].float().numpy())
        unfinished = self.directory / "ivf.faiss.unfinished"
        faiss.write_index(index, str(unfinished))
        unfinished.rename(self.directory / "ivf.faiss")

    def candidates(self, query: Tensor, neighbours: int, probes: int) -> Tensor:
        """Documents that own one of the nearest tokens of some query token (gr_as_mvdr §6.3).

        Args:
            query: (N, d) token vectors without padding.
            neighbours: k', nearest document tokens of each query token.
            probes: clusters visited.

        Returns:
            (C,) int64 distinct document numbers, ascending.
        """
        import faiss

        if self._neighbours is None:
            self._neighbours = faiss.read_index(str(self.directory / "ivf.faiss"))
        self._neighbours.nprobe = probes
        _, tokens = self._neighbours.search(query.float().numpy(), neighbours)
        # faiss fills short result lists with −1, which is no token.
        tokens = torch.from_numpy(tokens[tokens >= 0])
        return torch.searchsorted(self.offsets, tokens, right=True).sub(1).unique()

    def _rows(self, documents: Tensor) -> Tensor:
        """(t,) token rows of the documents, one document after the other."""
        lengths = self.lengths[documents]
        starts = self.offsets[documents] - torch.cat([lengths.new_zeros(1), lengths.cumsum(0)[:-1]])
        return torch.arange(int(lengths.sum())) + starts.repeat_interleave(lengths)

    def _blocks(self, tokens: int):
        """Yields (documents, rows) slices of about so many tokens, whole documents each."""
        start = 0
        while start < len(self):
            target = self.offsets[start] + tokens
            end = max(start + 1, int(torch.searchsorted(self.offsets, target, right=True)) - 1)
            end = min(end, len(self))
            yield slice(start, end), slice(int(self.offsets[start]), int(self.offsets[end]))
            start = end


def _write(
    directory: Path, document_ids: list[str], encoded: Iterable[tuple[Tensor, Tensor]], dtype: str
) -> None:
    lengths, size = [], 0
    with open(directory / "vectors.bin", "wb") as file:
        for vectors, counts in encoded:
            file.write(vectors.cpu().numpy().astype(dtype).tobytes())
            lengths.append(counts.cpu())
            size = vectors.shape[1]
    lengths = torch.cat(lengths)
    if len(lengths) != len(document_ids):
        raise ValueError(f"token index: {len(document_ids)} ids but {len(lengths)} documents")
    np.save(directory / "lengths.npy", lengths.numpy())
    header = {"document_ids": document_ids, "dimension": size, "dtype": dtype}
    (directory / "index.json").write_text(json.dumps(header))
