"""Docids made of a quantiser's codes: residual (RIPOR, GRID) or product (Ultron, DDRO).

RIPOR is Zeng et al. (2024), GRID Ju et al. (2025), Ultron Zhou et al. (2022), DDRO Mekonnen et al.
(2025). faiss quantises.
"""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from gr_mvdr.files import check, read_arrays, write_arrays
from gr_mvdr.identifiers.document_embeddings import EmbeddedDocids
from gr_mvdr.identifiers.scheme import Encode, Table
from gr_mvdr.options import Rule, Seed, Size, part

PowerOfTwo = Annotated[
    int, Rule("a power of two, ≥ 2", lambda value: value >= 2 and not value & (value - 1))
]


@part("identifiers")
class QuantisedDocids(EmbeddedDocids):
    """A document's vector as L codes out of K each; then a number, as vectors share their codes.

    Residual: each level quantises what those before it leave, so that documents of a common prefix
    are alike. Product: each level quantises a part of the vector of its own. Residuals keep their
    lengths (GRID's are normalised), so that the codes are faiss' own. Every position has tokens of
    its own.

    Attributes:
        codebooks: (L, K, w) float32, w = d (residual) or d / L (product).
        known_codes: (D, L) int64, of the known documents.
        reconstruction_error: Σ ‖x − x̂‖² / Σ ‖x − mean‖² over their vectors, x̂ made of the codes.
    """

    options = ("quantiser", "levels", "codes", "collisions", "seed")
    advice = "model.identifiers.collisions=number gives each an identifier of its own"
    codebooks: np.ndarray
    known_codes: np.ndarray
    reconstruction_error: float

    def __init__(
        self,
        levels: Size,
        codes: PowerOfTwo,
        quantiser: Literal["residual", "product"] = "residual",
        collisions: Literal["number", "share"] = "number",
        embeddings: dict[str, Any] | None = None,
        seed: Seed = 0,
    ):
        """
        Args:
            levels: L, codes a document (RIPOR 32, PAG 8, GRID 3, DDRO 24).
            codes: K (256; PAG 2048).
            collisions: "number", a last position numbers the documents with the same codes from 0,
                so that all identifiers have L + 1 tokens and none is a prefix of another; or
                "share", documents with the same codes share one identifier.
            embeddings: see `EmbeddedDocids`.
            seed: random seed of the quantiser's k-means.
        """
        super().__init__(embeddings)
        self.levels, self.codes, self.seed = levels, codes, seed
        self.quantiser, self.collisions = quantiser, collisions

    @property
    def width(self) -> int:
        """K, or more where more known documents have the same codes: a number each."""
        return max(self.codes, int(self._groups().max()) if self.collisions == "number" else 0)

    @property
    def n_tokens(self) -> int:
        return (self.levels + (self.collisions == "number")) * self.width

    def fit(self, documents: Table, first_token: int, encode: Encode | None = None) -> None:
        """Embeds the documents and learns the codebooks from them.

        Raises:
            ValueError: no documents.
        """
        super().fit(documents, first_token, encode)
        points = self._embed(documents)
        self.codebooks = self._learn_codebooks(points)
        self.known_codes = self.encode_vectors(points)
        lost = ((points - self.decode(self.known_codes)) ** 2).sum()
        self.reconstruction_error = float(lost / max(((points - points.mean(0)) ** 2).sum(), 1e-12))

    def _embed(self, documents: Table) -> np.ndarray:
        """(n, d) float32; zeros, which add no distance, make a product's parts equally wide."""
        points = self.embeddings.transform(documents, self.encode)
        missing = -points.shape[1] % self.levels if self.quantiser == "product" else 0
        return np.pad(points, ((0, 0), (0, missing)))

    def _learn_codebooks(self, points: np.ndarray) -> np.ndarray:
        """k-means, level by level (faiss); of fewer points than codes, each becomes one."""
        import faiss
        from threadpoolctl import threadpool_limits

        quantiser = self._faiss(points.shape[1])
        quantiser.cp.seed, quantiser.cp.min_points_per_centroid = self.seed % 2**31, 1
        # One thread: the order of a sum over several threads varies.
        with threadpool_limits(limits=1):
            quantiser.train(np.resize(points, (max(len(points), self.codes), points.shape[1])))
        rows = quantiser.centroids if self.quantiser == "product" else quantiser.codebooks
        return faiss.vector_to_array(rows).reshape(self.levels, self.codes, -1).copy()

    def _faiss(self, size: int) -> Any:
        """faiss' quantiser of vectors (size,), without codebooks."""
        import faiss

        bits = self.codes.bit_length() - 1
        if self.quantiser == "product":
            return faiss.ProductQuantizer(size, self.levels, bits)
        quantiser = faiss.ResidualQuantizer(size, self.levels, bits)
        # faiss' other way begins in fewer dimensions, and needs as many documents as dimensions.
        quantiser.train_type = faiss.ResidualQuantizer.Train_default
        # A beam of more entries than there are codes gives wrong codes (faiss 1.15).
        quantiser.max_beam_size = min(quantiser.max_beam_size, self.codes)
        return quantiser

    def encode_vectors(self, points: np.ndarray) -> np.ndarray:
        """(n, d) float32 → (n, L) int64 codes, by the kept codebooks.

        Raises:
            ValueError: these are of vectors of another size.
        """
        import faiss

        size = self.codebooks.shape[2] * (self.levels if self.quantiser == "product" else 1)
        if size != points.shape[1]:  # faiss would read beyond them
            raise ValueError(
                f"quantiser/codebooks.npy: is of vectors of {size} dimensions, must be of "
                f"{points.shape[1]}, as model.identifiers.embeddings makes them"
            )
        quantiser = self._faiss(points.shape[1])
        flat = np.ascontiguousarray(self.codebooks).ravel()
        if self.quantiser == "product":
            faiss.copy_array_to_vector(flat, quantiser.centroids)
        else:
            faiss.copy_array_to_vector(flat, quantiser.codebooks)
            quantiser.is_trained = True
        packed = quantiser.compute_codes(np.ascontiguousarray(points))
        bits = self.codes.bit_length() - 1
        return faiss.unpack_bitstrings(packed, self.levels, bits).astype(np.int64)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """(n, L) int64 codes → (n, d) float32: the sum of their centroids, or these in a row."""
        parts = self.codebooks[np.arange(self.levels), codes]  # (n, L, w)
        return parts.sum(1) if self.quantiser == "residual" else parts.reshape(len(codes), -1)

    def assign(self, documents: Table) -> list[list[int]]:
        """Known documents keep theirs, whatever their text is now; new ones are quantised.

        A new document has the next number of its codes, or the last one that there is a token for.
        """
        numbers, codes = self.numbers(documents), self.known_codes
        new = [row for row, number in enumerate(numbers) if number is None]
        if new:
            points = self._embed(documents.select(new))
            codes = np.concatenate([codes, self.encode_vectors(points)])
        named = self._identifiers(codes)
        coming = iter(named[len(self.known_codes) :])
        return [next(coming) if number is None else named[number] for number in numbers]

    def _identifiers(self, codes: np.ndarray) -> list[list[int]]:
        """The tokens of documents in their order, from their codes (n, L)."""
        if self.collisions == "number":
            taken: Counter[tuple[int, ...]] = Counter()
            numbers, last = [], self.width - 1
            for row in map(tuple, codes.tolist()):
                numbers.append(min(taken[row], last))
                taken[row] += 1
            codes = np.column_stack([codes, numbers])
        return (self.first_token + self.width * np.arange(codes.shape[1]) + codes).tolist()

    def _groups(self) -> np.ndarray:
        """How many known documents have each of the code sequences that occur."""
        return np.unique(self.known_codes, axis=0, return_counts=True)[1]

    def statistics(self) -> dict[str, float]:
        """Usage of the codes, without the last position that numbers equal codes.

        Returns:
            level_i/code_usage, the share of the K codes that occur; level_i/code_entropy in bits,
            log₂ K at most; code_collision_rate, the share of documents whose codes another has,
            too; largest_code_group; reconstruction_error, see the class.
        """
        metrics = {}
        for level, codes in enumerate(self.known_codes.T, start=1):
            counts = np.unique(codes, return_counts=True)[1]
            shares = counts / counts.sum()
            metrics[f"level_{level}/code_usage"] = len(counts) / self.codes
            metrics[f"level_{level}/code_entropy"] = float(-(shares * np.log2(shares)).sum())
        groups = self._groups()
        return metrics | {
            "code_collision_rate": float(groups[groups > 1].sum() / groups.sum()),
            "largest_code_group": float(groups.max()),
            "reconstruction_error": self.reconstruction_error,
        }

    def save_structure(self, folder: Path) -> None:
        arrays = {"codebooks": self.codebooks, "known_codes": self.known_codes}
        settings = {"reconstruction_error": self.reconstruction_error}
        write_arrays(folder / "quantiser", arrays, settings)

    def load_structure(self, folder: Path) -> None:
        path = folder / "quantiser"
        arrays, saved = read_arrays(path, ("codebooks", "known_codes"))
        self.codebooks, self.known_codes = arrays["codebooks"], arrays["known_codes"]
        books = self.codebooks
        # faiss reads the codebooks as raw memory.
        fits = books.dtype == np.float32 and books.shape[:2] == (self.levels, self.codes)
        check(fits, path / "codebooks.npy", "must hold a vector of each code")
        self.reconstruction_error = saved["reconstruction_error"]
