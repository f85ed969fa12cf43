"""One vector for each document, and docids made of these vectors.

The vectors come from TF-IDF and SVD, from the model's own encoder or from a pretrained encoder.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.backbones import load_encoder
from gr_mvdr.batch import batch_by_length, pad
from gr_mvdr.evaluation.bm25 import split_words
from gr_mvdr.files import new_folder, read_arrays, write_arrays
from gr_mvdr.identifiers.scheme import Encode, Scheme, Table
from gr_mvdr.options import Seed, Size, build, part
from gr_mvdr.progress import track
from gr_mvdr.tokenizers import load_text_tokenizer

TFIDF = {"_target_": "gr_mvdr.identifiers.document_embeddings.TfidfSvd"}


class DocumentEmbeddings:
    """Makes the vectors of documents; by default it learns and saves nothing."""

    def fit(self, documents: Table) -> None:
        """Learns from the known documents."""

    def transform(self, documents: Table, encode: Encode | None = None) -> np.ndarray:
        """(n, d) float32 of length 1, or of zeros for a document without a known word.

        Args:
            documents: a table with `text` and `tokens`; encode: the model's own encoder.
        """
        raise NotImplementedError

    def save(self, folder: str | Path) -> None:
        """Writes what `fit` learned as the new folder `folder`."""

    def load(self, folder: str | Path) -> None:
        """Reads what `save` wrote; raises as `read_arrays` does."""


@part("embeddings")
class TfidfSvd(DocumentEmbeddings):
    """TF-IDF of the documents' words, reduced by a truncated SVD (latent semantic analysis).

    Needs no pretrained model and no network. Words as in BM25, term frequencies as 1 + ln tf.
    """

    def __init__(self, dimension: Size = 64, max_features: Size = 100_000, seed: Seed = 0):
        """
        Args:
            dimension: d, at most the number of documents and of words.
            max_features: the size of the vocabulary, the most frequent words.
            seed: random seed of the SVD's projection.
        """
        self.dimension, self.max_features, self.seed = dimension, max_features, seed

    def fit(self, documents: Table) -> None:
        """Counts words and computes the first d right singular vectors.

        Raises:
            ValueError: no document has a word.
        """
        from sklearn.utils.extmath import randomized_svd

        self.vectorizer = self._new_vectorizer()
        texts = documents["text"][:]
        if not any(split_words(text) for text in texts):
            raise ValueError("model.identifiers.embeddings=TfidfSvd: no document has a word")
        weights = self.vectorizer.fit_transform(texts)
        # As TruncatedSVD, without its explained variances, which are undefined for one document.
        dimension = min(self.dimension, *weights.shape)
        _, _, self.components = randomized_svd(weights, dimension, random_state=self.seed)

    def transform(self, documents: Table, encode: Encode | None = None) -> np.ndarray:
        return normalise_rows(self.vectorizer.transform(documents["text"][:]) @ self.components.T)

    def save(self, folder: str | Path) -> None:
        arrays = {"idf": self.vectorizer.idf_, "components": self.components}
        vocabulary = self.vectorizer.get_feature_names_out().tolist()
        write_arrays(Path(folder), arrays, {"vocabulary": vocabulary})

    def load(self, folder: str | Path) -> None:
        arrays, settings = read_arrays(Path(folder), ("idf", "components"))
        self.vectorizer = self._new_vectorizer(settings["vocabulary"])
        self.vectorizer.idf_ = arrays["idf"]
        self.components = arrays["components"]

    def _new_vectorizer(self, vocabulary: list[str] | None = None) -> Any:
        from sklearn.feature_extraction.text import TfidfVectorizer

        return TfidfVectorizer(
            analyzer=split_words,
            max_features=self.max_features,
            vocabulary=vocabulary,
            sublinear_tf=True,
            dtype=np.float32,
        )


@part("embeddings")
class OwnEncoder(DocumentEmbeddings):
    """The encoder of the model itself, with its weights of the moment.

    The tree is made with the encoder before training, documents that arrive later are embedded by
    the trained one: they fit the tree less well than with embeddings that do not change.
    """

    def __init__(self, length: Size = 256):
        """length: tokens read of a document, the end token included."""
        self.length = length

    def transform(self, documents: Table, encode: Encode | None = None) -> np.ndarray:
        """Raises ValueError if no encoder is given."""
        if encode is None:
            raise ValueError(
                "model.identifiers.embeddings=OwnEncoder: needs the model's encoder to embed "
                f"{len(documents)} documents"
            )
        return normalise_rows(np.asarray(encode(documents["tokens"][:], self.length)))


@part("embeddings")
class HuggingFaceEncoder(DocumentEmbeddings):
    """A pretrained encoder with its own tokeniser; the mean of its token vectors.

    The T5 family (its encoder alone) or an encoder-only model such as BERT.
    """

    def __init__(self, name: str, length: Size = 256, batch_size: Size = 32):
        """
        Args:
            name: on the Hugging Face hub, or a folder.
            length: tokens read of a document.
            batch_size: documents at once.
        """
        self.name, self.length, self.batch_size = name, length, batch_size

    @torch.inference_mode()
    def transform(self, documents: Table, encode: Encode | None = None) -> np.ndarray:
        tokenizer = load_text_tokenizer(self.name)
        model = load_encoder(self.name, attention="eager").float().eval()
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        options = {"truncation": True, "max_length": self.length}
        tokens = tokenizer(documents["text"][:], **options)["input_ids"]
        vectors = np.empty((len(tokens), model.config.hidden_size), dtype=np.float32)
        batches = batch_by_length([*map(len, tokens)], self.batch_size)
        for rows in track(batches, "embedding batches of documents"):
            ids, mask = (x.to(model.device) for x in pad([tokens[row] for row in rows]))
            states: Tensor = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
            total = states.masked_fill(~mask.unsqueeze(2), 0).sum(1)
            vectors[rows] = (total / mask.sum(1, keepdim=True).clamp(min=1)).cpu().numpy()
        return normalise_rows(vectors)


class EmbeddedDocids(Scheme):
    """Docids made of the documents' vectors: a subclass clusters or quantises them."""

    def __init__(self, embeddings: dict[str, Any] | None = None):
        """embeddings: `_target_` and options of a part of this module; None = TF-IDF and SVD."""
        super().__init__()
        self.embedding_settings = dict(embeddings or TFIDF)
        self.embeddings = build("embeddings", self.embedding_settings)
        self.encode: Encode | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"embeddings": self.embedding_settings}

    def fit(self, documents: Table, first_token: int, encode: Encode | None = None) -> None:
        super().fit(documents, first_token, encode)
        self.encode = encode
        self.embeddings.fit(documents)

    def save(self, folder: str | Path) -> None:
        with new_folder(Path(folder)) as unfinished:
            super().save(unfinished / "scheme")
            self.embeddings.save(unfinished / "embeddings")
            self.save_structure(unfinished)

    def load(self, folder: str | Path, encode: Encode | None = None) -> None:
        super().load(Path(folder) / "scheme")
        self.encode = encode
        self.embeddings.load(Path(folder) / "embeddings")
        self.load_structure(Path(folder))

    def save_structure(self, folder: Path) -> None:
        """Writes the tree, or the codes, as a new folder within `folder`."""
        raise NotImplementedError

    def load_structure(self, folder: Path) -> None:
        """Reads what `save_structure` wrote; raises ValueError if a file is damaged."""
        raise NotImplementedError


def normalise_rows(vectors: np.ndarray) -> np.ndarray:
    """(n, d) → float32 rows of length 1; rows of zeros stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
