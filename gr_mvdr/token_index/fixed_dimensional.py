"""One vector a text whose inner products estimate MaxSim: fixed-dimensional encodings
(MUVERA, Dhulipala et al. 2024).

R times, k random planes cut the space into 2ᵏ blocks, and in each block a text has one vector of p
dimensions: the sum of a query's tokens there, the mean of a document's. Two tokens that are similar
mostly share a block, so that the inner product of all blocks is near Σ_j max_i S_ij.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.files import (
    Checksum,
    check,
    continued,
    read_sealed,
    reading,
    resumable_folder,
    verify,
    with_samples,
    write_sealed,
)
from gr_mvdr.progress import track
from gr_mvdr.token_index.store import DTYPES, Column, TokenStore, open_column
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, stack

if TYPE_CHECKING:
    from gr_mvdr.token_index.plan import SearchOptions

FOLDER, ROWS, SETTINGS = "fde", "rows.bin", "settings.json"
MOST_PLANES = 10
_TOKENS = 4096  # encoded at once
_NUMBERS = 1 << 22  # of stored rows that are compared at once
_SECONDS = 30.0  # of work that a killed build loses


@dataclass(frozen=True)
class Encoding:
    """How a text's tokens become one vector, the same for documents and queries.

    Attributes:
        planes: (R, k, d) normals of the planes; the signs of a token's products name its block.
        projections: (R, d, p) that keep inner products in expectation; None = p is d.
        sketch: of each number of the R · 2ᵏ · p its place (E,) int64 in a shorter vector, its sign
            (E,) and that vector's size (count-sketch); None = all numbers are kept.
    """

    planes: Tensor
    projections: Tensor | None = None
    sketch: tuple[Tensor, Tensor, int] | None = None

    @classmethod
    def draw(cls, dimension: int, options: "SearchOptions") -> "Encoding":
        """Gaussian planes and ±1/√p, of `options.seed`; d = `dimension`."""
        # Numpy's frozen generator: other versions must draw what a stored index was made with.
        random = np.random.RandomState(options.seed)
        r, p = options.fde_repetitions, options.fde_projection
        planes = torch.from_numpy(random.standard_normal((r, options.fde_planes, dimension)))
        projections = sketch = None
        if p is not None:
            projections = torch.from_numpy(random.choice([-1.0, 1.0], (r, dimension, p)) / p**0.5)
        if (size := options.fde_size) is not None:
            count = r * 2**options.fde_planes * (p or dimension)
            places, signs = random.randint(size, size=count), random.choice([-1.0, 1.0], count)
            sketch = torch.from_numpy(places.astype(np.int64)), torch.from_numpy(signs), size
        return cls(planes, projections, sketch)

    @property
    def size(self) -> int:
        """Numbers of an encoded text."""
        if self.sketch is not None:
            return self.sketch[2]
        r, k, d = self.planes.shape
        return r * 2**k * (d if self.projections is None else self.projections.shape[2])

    def queries(self, tokens: PackedTokens) -> Tensor:
        """Queries (b) → (b, E), divided by R: an inner product estimates MaxSim itself.

        A query token's salience scales it, which moves it to no other block.
        """
        cells, values, shape = self._projected(tokens)
        sums = values.new_zeros(shape.numel(), values.shape[-1])
        sums.index_add_(0, cells.flatten(), values.flatten(0, 1))
        return self._joined(sums, shape) / shape[1]

    def documents(self, tokens: PackedTokens) -> Tensor:
        """Documents (b) of at least one token → (b, E).

        A block without a token takes the one whose signs differ least, of several the first. A
        token's salience scales it.
        """
        cells, values, shape = self._projected(tokens)
        flat = cells.flatten()
        means = values.new_zeros(shape.numel(), values.shape[-1])
        means.index_add_(0, flat, values.flatten(0, 1))
        counts = torch.bincount(flat, minlength=len(means))
        means /= counts.clamp(min=1).unsqueeze(1)
        empty = (counts == 0).nonzero()[:, 0]
        repetition = empty // shape[2] % shape[1]
        means[empty] = values[_nearest_tokens(cells, shape)[empty], repetition]
        return self._joined(means, shape)

    def _projected(self, tokens: PackedTokens) -> tuple[Tensor, Tensor, torch.Size]:
        """Of each token and repetition its cell (t, R) and its projection (t, R, p); cells are
        numbered as (texts, R, blocks), the shape."""
        vectors = tokens.vectors if tokens.keys is None else tokens.keys
        r, k = self.planes.shape[:2]
        signs = (vectors @ self.planes.to(vectors).flatten(0, 1).T).view(len(vectors), r, k) > 0
        blocks = (signs << torch.arange(k, device=vectors.device)).sum(-1)  # (t, R)
        shape = torch.Size((len(tokens.counts), r, 2**k))
        texts = torch.arange(shape[0], device=vectors.device).repeat_interleave(tokens.counts)
        cells = (texts.unsqueeze(1) * r + torch.arange(r, device=vectors.device)) * 2**k + blocks
        if tokens.salience is not None:
            vectors = vectors * tokens.salience.unsqueeze(1)
        if self.projections is None:
            return cells, vectors.unsqueeze(1).expand(-1, r, -1), shape
        matrix = self.projections.to(vectors).transpose(0, 1).flatten(1)  # (d, R · p)
        return cells, (vectors @ matrix).view(len(vectors), r, matrix.shape[1] // r), shape

    def _joined(self, cells: Tensor, shape: torch.Size) -> Tensor:
        """(b · R · 2ᵏ, p) → (b, E)."""
        joined = cells.view(shape[0], -1)
        if self.sketch is None:
            return joined
        places, signs, size = self.sketch
        short = joined.new_zeros(len(joined), size)
        return short.index_add_(1, places.to(joined.device), joined * signs.to(joined))


def _nearest_tokens(cells: Tensor, shape: torch.Size) -> Tensor:
    """Of every cell (b · R · 2ᵏ,) the text's token whose signs differ least from the block's.

    Distance and token are one number, distance · t + token. A block's best is its own, or that of a
    block with one other sign, one step farther: after a pass a sign, the best of all blocks.
    """
    t, blocks = len(cells), shape[2]
    steps = blocks.bit_length() - 1
    rows = torch.arange(t, device=cells.device).unsqueeze(1).expand_as(cells).flatten()
    keys = cells.new_full((shape.numel(),), t * (steps + 1))
    keys = keys.scatter_reduce_(0, cells.flatten(), rows, "amin").view(-1, blocks)
    places = torch.arange(blocks, device=cells.device)
    for step in range(steps):
        keys = keys.minimum(keys[:, places ^ (1 << step)] + t)
    return keys.flatten() % max(1, t)


class DocumentEncodings:
    """The encoding of every document of a store, a row a document number, by memory map.

    Kept in a folder of the index. It is made where there is none of these settings; after `add` the
    new documents' rows are added; a build that was killed goes on where it stopped.

    Attributes:
        settings: what the rows were made with.
        rows: (D, E) in `fde_dtype`, those of deleted documents included.
    """

    def __init__(self, store: TokenStore, options: "SearchOptions"):
        """
        Raises:
            ValueError: what is stored is damaged; names the file.
        """
        self.store, self.settings = store, encoding_settings(store, options)
        self.encoding = Encoding.draw(store.sizes[store.searched], options)
        self.folder = store.directory / FOLDER
        held = _held(self.folder, self.settings)
        rule = f"must count at most {len(store)} documents"
        check(0 <= held <= len(store), self.folder / SETTINGS, rule)
        if held < len(store):
            with resumable_folder(self.folder, SETTINGS) as folder:
                self._write(folder)
        self.rows = open_column(self.folder / ROWS, self._column(len(store)))

    @property
    def numbers(self) -> int:
        """D · E, that a search reads."""
        return self.rows.numel()

    @property
    def size_in_bytes(self) -> int:
        return self.rows.nbytes

    def _column(self, rows: int) -> Column:
        return Column(DTYPES[self.settings["dtype"]], self.encoding.size, rows)

    def score(self, queries: TokenVectors) -> Tensor:
        """(D, Q) fp32 estimates for queries (Q, N, …), −inf for deleted documents; on the CPU."""
        asked = self.encoding.queries(queries.pack())
        blocks = self.rows.split(max(1, _NUMBERS // self.encoding.size))
        found = [(rows.to(asked.device).float() @ asked.T).cpu() for rows in blocks]
        scores = torch.cat(found)
        scores[~self.store.live] = -torch.inf
        return scores

    def places(self, queries: Sequence[TokenVectors], documents: np.ndarray) -> np.ndarray:
        """(Q, C) how many of the best estimates include that of each query's documents (Q, C)."""
        estimates = self.score(stack(queries)).T.numpy()
        return np.stack([places_of(*pair) for pair in zip(estimates, documents, strict=True)])

    def _write(self, folder: Path) -> None:
        """Writes what a folder lacks, which was begun or is new; the last rows are not yet all."""
        store, held = self.store, _held(folder, self.settings)
        if not held and (held := _held(self.folder, self.settings)):
            for name in (ROWS, SETTINGS):
                shutil.copyfile(self.folder / name, folder / name)
        known: Checksum = read_sealed(folder / SETTINGS)["file"] if held else {}
        due = time.monotonic() + _SECONDS
        with (folder / ROWS).open("ab") as file:
            file.truncate(self._column(held).size)
            for documents in self._blocks(held):
                tokens = store.read(documents)
                with np.errstate(over="ignore"):  # what is infinite is refused
                    rows = self.encoding.documents(tokens).numpy().astype(self._column(0).dtype)
                if not np.isfinite(rows).all():
                    rule = "must be float32, some numbers are too large"
                    raise ValueError(f"model.search.fde_dtype={self.settings['dtype']}: {rule}")
                file.write(rows.data)
                known, held = continued(known, rows), documents.stop
                if held == len(store) or time.monotonic() > due:
                    file.flush()
                    seal = {"rows": held, "file": with_samples(folder / ROWS, known)}
                    write_sealed(folder / SETTINGS, self.settings | seal)
                    due = time.monotonic() + _SECONDS

    def _blocks(self, first: int) -> Iterator[slice]:
        """The documents from the first on, in blocks of about so many tokens."""
        for block in track(list(self.store.blocks(_TOKENS)), "encoding documents as one vector"):
            if block.stop > first:
                yield slice(max(first, block.start), block.stop)


def places_of(scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """How many of the best scores (D,) must be kept to have those of the rows (C,) among them."""
    return len(scores) - np.searchsorted(np.sort(scores), scores[rows])


def encoding_settings(store: TokenStore, options: "SearchOptions") -> dict[str, Any]:
    """What the rows of a store under these options depend on."""
    names = ("repetitions", "planes", "projection", "size", "dtype")
    settings = {name: getattr(options, f"fde_{name}") for name in names}
    return settings | {"seed": options.seed, "fingerprint": store.header["fingerprint"]}


def _held(folder: Path, settings: dict[str, Any]) -> int:
    """Rows that a folder holds of these very settings; ValueError where they are damaged."""
    path = folder / SETTINGS
    with reading(f"{path}"):
        found = read_sealed(path) if path.is_file() else {}
        if {key: found.get(key) for key in settings} != settings:
            return 0
        verify(folder / ROWS, found["file"])
        return int(found["rows"])
