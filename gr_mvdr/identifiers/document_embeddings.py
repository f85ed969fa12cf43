"""One vector for each document, and docids made from these vectors.

The vectors come from TF-IDF and SVD, or from a file.
"""

from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from gr_mvdr.analyzer import split_words
from gr_mvdr.files import read_text, reading
from gr_mvdr.identifiers.scheme import Scheme, Table
from gr_mvdr.options import Seed, Size, Text, build, part

_WORDS = 100_000  # of TF-IDF's vocabulary, the most frequent ones
TFIDF = {"_target_": "gr_mvdr.identifiers.document_embeddings.TfidfSvd"}
FILE = "gr_mvdr.identifiers.document_embeddings.FileEmbeddings"


class DocumentEmbeddings:
    """Computes the vectors of documents; `arrays`, `values` and `device` are those of `Scheme`."""

    arrays: ClassVar[tuple[str, ...]] = ()
    values: ClassVar[tuple[str, ...]] = ()
    device = torch.device("cpu")

    def fit(self, documents: Table) -> None:
        """Learns from the known documents; does nothing by default."""

    def transform(self, documents: Table) -> np.ndarray:
        """Returns (n, d) float32 unit vectors, or zeros for a document without a known word.

        Args:
            documents: a table with `text`.
        """
        raise NotImplementedError


@part("embeddings")
class TfidfSvd(DocumentEmbeddings):
    """TF-IDF of the documents' words, reduced by a truncated SVD (latent semantic analysis).

    Needs no pretrained model and no network. Words are split as for BM25; a term frequency tf
    counts as 1 + ln tf.
    """

    arrays, values = ("idf", "components"), ("vocabulary",)
    vocabulary: list[str] | None = None

    def __init__(self, dimension: Size = 64, seed: Seed = 0):
        """
        Args:
            dimension: d; reduced to the number of documents or words if one of them is smaller.
            seed: random seed of the SVD's projection.
        """
        self.dimension, self.seed = dimension, seed

    def fit(self, documents: Table) -> None:
        """Counts words and computes the first d right singular vectors.

        Raises:
            ValueError: no document has a word.
        """
        from sklearn.utils.extmath import randomized_svd

        vectorizer = self._vectorizer()
        weights = vectorizer.fit_transform(documents["text"][:])
        self.vocabulary = vectorizer.get_feature_names_out().tolist()
        self.idf = vectorizer.idf_
        # As TruncatedSVD, but without explained variances, which are undefined for one document.
        dimension = min(self.dimension, *weights.shape)
        _, _, self.components = randomized_svd(weights, dimension, random_state=self.seed)

    def transform(self, documents: Table) -> np.ndarray:
        vectorizer = self._vectorizer()
        vectorizer.idf_ = self.idf
        return normalise_rows(vectorizer.transform(documents["text"][:]) @ self.components.T)

    def _vectorizer(self) -> Any:
        from sklearn.feature_extraction.text import TfidfVectorizer

        return TfidfVectorizer(
            analyzer=split_words,
            max_features=_WORDS,
            vocabulary=self.vocabulary,
            sublinear_tf=True,
            dtype=np.float32,
        )


@part("embeddings")
class FileEmbeddings(DocumentEmbeddings):
    """Vectors of your own, from a file that names the document of each.

    `.parquet`: a column `id` and a column of vectors. `.npy`: a matrix (n, d), beside a `.txt` of
    the same name with the id of each row on a line. The file may hold further documents.
    """

    def __init__(self, file: Text):
        self.file = file

    def transform(self, documents: Table) -> np.ndarray:
        """See `DocumentEmbeddings`.

        Raises:
            ValueError: the file has another form, names a document twice, or lacks a document.
        """
        with reading(f"model.identifiers.embeddings={self.file}"):
            ids, vectors = self._content
            if len(ids) != len(vectors):
                counts = f"{len(ids):,} ids and {len(vectors):,} vectors"
                raise ValueError(f"must hold one vector an id, holds {counts}")
            rows = {identifier: row for row, identifier in enumerate(ids)}
            if len(rows) < len(ids):
                raise ValueError("must name each document once")
            wanted = documents["id"][:]
            if missing := [identifier for identifier in wanted if identifier not in rows]:
                rule = "must hold a vector of every document"
                raise ValueError(f"{rule}, {len(missing):,} have none, such as {missing[0]!r}")
            chosen = np.asarray(vectors[[rows[identifier] for identifier in wanted]], np.float32)
            if not np.isfinite(chosen).all():
                raise ValueError("must hold finite numbers")
            return normalise_rows(chosen)

    @cached_property
    def _content(self) -> tuple[list[str], np.ndarray]:
        """The ids (n,) and the vectors (n, d) of the file."""
        file = Path(self.file).expanduser()
        if file.suffix == ".npy":
            ids = read_text(file.with_suffix(".txt")).splitlines()
            return ids, np.load(file, mmap_mode="r", allow_pickle=False)
        if file.suffix != ".parquet":
            raise ValueError("must be a .parquet or a .npy file")
        import pyarrow as pa
        from pyarrow.parquet import read_table

        table = read_table(file)
        lists = [field.name for field in table.schema if pa.types.is_nested(field.type)]
        if len(lists) != 1:
            raise ValueError(f"must have one column of vectors, has {table.column_names}")
        return list(map(str, table["id"].to_pylist())), np.stack(table[lists[0]].to_numpy())


class EmbeddedDocids(Scheme):
    """Docids made from the documents' vectors; a subclass clusters or quantises them."""

    def __init__(self, embeddings: dict[str, Any] | str | None = None):
        """
        Args:
            embeddings: the document embedder, `_target_` and options; a file of vectors, see
                `FileEmbeddings`; None = TF-IDF and SVD.
        """
        super().__init__()
        if isinstance(embeddings, str):
            embeddings = {"_target_": FILE, "file": embeddings}
        self.embeddings = dict(embeddings or TFIDF)
        self.embedder: DocumentEmbeddings = build("embeddings", self.embeddings)
        self.owners = [self, self.embedder]

    def embed(self, documents: Table) -> np.ndarray:
        """Returns (n, d) float32 vectors of documents."""
        self.embedder.device = self.device
        return self.embedder.transform(documents)


def normalise_rows(vectors: np.ndarray) -> np.ndarray:
    """Scales rows (n, d) to length 1, float32; rows of zeros stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
