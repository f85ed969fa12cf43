"""Docids made from a quantiser's codes: residual (RIPOR, GRID) or product (Ultron, DDRO).

RIPOR is Zeng et al. (2024), GRID Ju et al. (2025), Ultron Zhou et al. (2022), DDRO Mekonnen et al.
(2025). faiss quantises; the vectors may come from a finished multi-vector run (RIPOR).
"""

from collections import Counter
from typing import Annotated, Any, Literal

import numpy as np
import torch

from gr_mvdr.backbones import hash_weights
from gr_mvdr.batch import batch_by_length
from gr_mvdr.files import reading
from gr_mvdr.identifiers.document_embeddings import (
    DocumentEmbeddings,
    EmbeddedDocids,
    normalise_rows,
)
from gr_mvdr.identifiers.scheme import Table
from gr_mvdr.measures import IDENTIFIERS, Measured
from gr_mvdr.options import TARGET, Rule, Seed, Size, Text, find_part, part
from gr_mvdr.progress import track
from gr_mvdr.texts import TextReader
from gr_mvdr.tokenizers import load_tokenizer
from models.multi_vector import MultiVector
from models.saved_model import FinishedRun

_RESTARTS = 8  # rounds in which unused codes are moved
PowerOfTwo = Annotated[
    int, Rule("a power of two, ≥ 2", lambda value: value >= 2 and not value & (value - 1))
]


@part("identifiers")
class QuantisedDocids(EmbeddedDocids):
    """The L codes (of K each) of a document's vector, then a number if several share their codes.

    Residual: each level quantises the residual of the levels before it, so documents with a common
    prefix are similar. Product: each level quantises a different part of the vector. Residuals are
    not normalised (GRID's are), so that the codes are those of faiss. Each position has its own
    tokens.

    Attributes:
        codebooks: (L, K, w) float32, w = d (residual) or d / L (product).
        known_codes: (D, L) int64, the codes of the known documents.
        reconstruction_error: Σ ‖x − x̂‖² / Σ ‖x − mean‖² over the known documents' vectors x, where
            x̂ is decoded from the codes.
    """

    options = ("quantiser", "levels", "codes", "collisions", "seed", "embeddings")
    arrays, values = ("codebooks", "known_codes"), ("reconstruction_error",)
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
        embeddings: dict[str, Any] | str | None = None,
        seed: Seed = 0,
    ):
        """
        Args:
            levels: L, the number of codes of a document (RIPOR 32, PAG 8, GRID 3, DDRO 24).
            codes: K (256; PAG 2048).
            quantiser: see the class.
            collisions: "number" = a last position numbers documents with the same codes from 0, so
                all identifiers have L + 1 tokens and none is a prefix of another; "share" =
                documents with the same codes share one identifier.
            embeddings: see `EmbeddedDocids`.
            seed: random seed of the quantiser's k-means.
        """
        super().__init__(embeddings)
        self.levels, self.codes, self.seed = levels, codes, seed
        self.quantiser, self.collisions = quantiser, collisions
        self.is_product, self.bits = quantiser == "product", codes.bit_length() - 1

    @property
    def width(self) -> int:
        """K, or the size of the largest group of known documents with the same codes if larger."""
        return max(self.codes, int(self._groups().max()) if self.collisions == "number" else 0)

    @property
    def n_tokens(self) -> int:
        return (self.levels + (self.collisions == "number")) * self.width

    def learn(self, documents: Table) -> list[list[int]]:
        """Embeds the documents and learns the codebooks from them."""
        self.embedder.fit(documents)
        points = self._widen(self.embed(documents))
        self.codebooks = self.learn_codebooks(points)
        self._restart_dead_codes(points)
        self.known_codes = self.encode(points)
        lost = ((points - self.decode(self.known_codes)) ** 2).sum()
        self.reconstruction_error = float(lost / max(((points - points.mean(0)) ** 2).sum(), 1e-12))
        return self._tokens(self.known_codes)

    def name(self, documents: Table) -> list[list[int]]:
        """Gives documents the next number of their codes, or the last one that has a token."""
        codes = np.concatenate([self.known_codes, self.encode(self._widen(self.embed(documents)))])
        return self._tokens(codes)[len(self.known_codes) :]

    def _widen(self, points: np.ndarray) -> np.ndarray:
        """Pads vectors with zeros, which changes no distance, to divide into L equal parts."""
        missing = -points.shape[1] % self.levels if self.is_product else 0
        return np.pad(points, ((0, 0), (0, missing)))

    def learn_codebooks(self, points: np.ndarray) -> np.ndarray:
        """Learns codebooks by k-means (faiss); fewer points than codes are repeated."""
        import faiss
        from threadpoolctl import threadpool_limits

        quantiser = self._faiss(points.shape[1])
        quantiser.cp.seed, quantiser.cp.min_points_per_centroid = self.seed % 2**31, 1
        # One thread: the order of a sum over several threads varies.
        with threadpool_limits(limits=1):
            quantiser.train(np.resize(points, (max(len(points), self.codes), points.shape[1])))
        rows = quantiser.centroids if self.is_product else quantiser.codebooks
        return faiss.vector_to_array(rows).reshape(self.levels, self.codes, -1).copy()

    def _restart_dead_codes(self, points: np.ndarray) -> None:
        """Moves residual codes that no point takes to what the worst coded points still lack.

        Codes are learned level by level but chosen by a beam over all levels, which may never
        choose some. A product's parts are coded each by itself and need no restart.
        """
        for _ in range(0 if self.is_product else _RESTARTS):
            codes, left = self.encode(points), points.copy()
            worst = iter(((points - self.decode(codes)) ** 2).sum(1).argsort()[::-1])
            dead = [np.setdiff1d(np.arange(self.codes), level) for level in codes.T]
            if not any(map(len, dead)) or len(points) < self.codes:
                return
            for book, level, unused in zip(self.codebooks, codes.T, dead, strict=True):
                chosen = [row for _, row in zip(unused, worst, strict=False)]
                book[unused[: len(chosen)]] = left[chosen]
                left -= book[level]

    def _faiss(self, size: int) -> Any:
        """Returns a faiss quantiser of vectors (size,), without codebooks."""
        import faiss

        if self.is_product:
            return faiss.ProductQuantizer(size, self.levels, self.bits)
        quantiser = faiss.ResidualQuantizer(size, self.levels, self.bits)
        # faiss's progressive training starts with fewer dimensions and needs ≥ d documents.
        quantiser.train_type = faiss.ResidualQuantizer.Train_default
        # A beam with more entries than codes gives wrong codes (faiss 1.15).
        quantiser.max_beam_size = min(quantiser.max_beam_size, self.codes)
        return quantiser

    def encode(self, points: np.ndarray) -> np.ndarray:
        """Encodes vectors (n, d) float32 as codes (n, L) int64.

        Raises:
            ValueError: the codebooks are for vectors of another size.
        """
        import faiss

        size, books = points.shape[1], np.ascontiguousarray(self.codebooks)
        width = size // self.levels if self.is_product else size
        # faiss reads the codebooks as raw memory, and would read past their end.
        if (books.dtype, *books.shape) != (np.float32, self.levels, self.codes, width):
            raise ValueError(
                f"codebooks: is damaged, must hold {self.levels} × {self.codes} float32 "
                f"vectors of {width} dimensions, as model.identifiers.embeddings makes them"
            )
        quantiser = self._faiss(size)
        rows = quantiser.centroids if self.is_product else quantiser.codebooks
        faiss.copy_array_to_vector(books.ravel(), rows)
        quantiser.is_trained = True
        packed = quantiser.compute_codes(np.ascontiguousarray(points))
        return faiss.unpack_bitstrings(packed, self.levels, self.bits).astype(np.int64)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Decodes codes (n, L) as vectors (n, d) float32, the sum or concatenation of centroids."""
        parts = self.codebooks[np.arange(self.levels), codes]  # (n, L, w)
        return parts.reshape(len(codes), -1) if self.is_product else parts.sum(1)

    def _tokens(self, codes: np.ndarray) -> list[list[int]]:
        """Returns the tokens of documents, in order, from their codes (n, L)."""
        if self.collisions == "number":
            taken: Counter[tuple[int, ...]] = Counter()
            numbers, last = [], self.width - 1
            for row in map(tuple, codes.tolist()):
                numbers.append(min(taken[row], last))
                taken[row] += 1
            codes = np.column_stack([codes, numbers])
        return (self.first_token + self.width * np.arange(codes.shape[1]) + codes).tolist()

    def _groups(self) -> np.ndarray:
        """Returns the number of known documents for each distinct code sequence."""
        return np.unique(self.known_codes, axis=0, return_counts=True)[1]

    def statistics(self) -> list[Measured]:
        """Returns numbers about the codes, without the last position, which numbers equal codes."""
        rows = []
        for level, codes in enumerate(self.known_codes.T, start=1):
            counts = np.unique(codes, return_counts=True)[1]
            shares = counts / counts.sum()
            entropy = -(shares * np.log2(shares)).sum()
            values = {"code_usage": len(counts) / self.codes, "code_entropy": entropy}
            rows += [IDENTIFIERS[k].row(v, f"level_{level}") for k, v in values.items()]
        groups = self._groups()
        whole = {
            "code_collision_rate": groups[groups > 1].sum() / groups.sum(),
            "largest_code_group": groups.max(),
            "reconstruction_error": self.reconstruction_error,
        }
        return rows + [IDENTIFIERS[name].row(value) for name, value in whole.items()]


class RunEmbeddings(DocumentEmbeddings):
    """The mean of a document's token vectors from a finished multi-vector run.

    As in RIPOR, the vectors were trained for relevance: T5-ColBERT's token vectors (weighted by
    salience if the run has one) or DPR's single vector. Texts are read with the run's tokeniser and
    document length.
    """

    values = ("weights",)

    def __init__(self, run: str):
        """
        Args:
            run: the run's folder, opened whenever documents are embedded.
        """
        self.run = run
        self.weights: str | None = None  # the model's hash, once it is known

    def transform(self, documents: Table) -> np.ndarray:
        """See `DocumentEmbeddings`.

        Raises:
            FileNotFoundError: the folder does not exist.
            ValueError: the run is unfinished, encodes no documents, or is not the run that embedded
                the known documents.
        """
        model, tokenizer = self._open()
        reader = TextReader(tokenizer, joined=model.template.joined)
        tokens = reader.tokenise(documents["text"][:], "document")
        texts = [model.cut_document(document) for document in tokens]
        vectors = np.empty((len(texts), model.encoder.dimension), dtype=np.float32)
        batches = batch_by_length([*map(len, texts)])
        for places in track(batches, "embedding batches of documents"):
            means = model.encode_texts([texts[place] for place in places]).mean()
            vectors[places] = means.cpu().numpy()
        return normalise_rows(vectors)

    def _open(self) -> tuple[MultiVector, Any]:
        """Opens the run's model and its tokeniser; they are not kept, the model may be large."""
        run = FinishedRun.read("model.identifiers.embeddings.run", self.run)
        kind = find_part("model", run.config.get("model", {}).get(TARGET))
        if not issubclass(kind, MultiVector):
            system = run.provenance["system"]
            raise ValueError(f"{run.key}: must be a multi-vector run, it is one of {system}")
        # Building the model draws random weights, which must not change the run's random state:
        # a resumed run does not build it.
        with reading(run.key), torch.random.fork_rng():
            model = run.load_model()
        weights = hash_weights(model)
        if self.weights not in (None, weights):
            rule = f"must hold the weights {self.weights} that the docids were made with"
            raise ValueError(f"{run.key}: {rule}, it holds {weights}")
        self.weights = weights
        return model.to(self.device), load_tokenizer(run.path / "tokenizer")


@part("embeddings", otherwise="embeddings")
def embed_by_run(run: Text | None, otherwise: DocumentEmbeddings) -> DocumentEmbeddings:
    """Returns the embeddings of a finished run, or `otherwise` if `run` is None."""
    return otherwise if run is None else RunEmbeddings(run)
