"""One vector for each document, and docids made of these vectors.

The vectors come from TF-IDF and SVD or from a pretrained encoder.
"""

from typing import Any, ClassVar

import numpy as np
import torch

from gr_mvdr.backbones import encode_texts, load_backbone
from gr_mvdr.evaluation.bm25 import split_words
from gr_mvdr.identifiers.scheme import Scheme, Table
from gr_mvdr.options import Seed, Size, build, part
from gr_mvdr.template import TextTemplate
from gr_mvdr.tokenizers import load_tokenizer

TFIDF = {"_target_": "gr_mvdr.identifiers.document_embeddings.TfidfSvd"}


class DocumentEmbeddings:
    """Makes the vectors of documents; `arrays`, `values`: what it learns, see `Scheme`."""

    arrays: ClassVar[tuple[str, ...]] = ()
    values: ClassVar[tuple[str, ...]] = ()

    def fit(self, documents: Table) -> None:
        """Learns from the known documents; by default nothing."""

    def transform(self, documents: Table) -> np.ndarray:
        """(n, d) float32 of length 1, or of zeros for a document without a known word.

        Args:
            documents: a table with `text`.
        """
        raise NotImplementedError


@part("embeddings")
class TfidfSvd(DocumentEmbeddings):
    """TF-IDF of the documents' words, reduced by a truncated SVD (latent semantic analysis).

    Needs no pretrained model and no network. Words as in BM25, term frequencies as 1 + ln tf.
    """

    arrays, values = ("idf", "components"), ("vocabulary",)
    vocabulary: list[str] | None = None

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

        texts, vectorizer = documents["text"][:], self._vectorizer()
        if not any(split_words(text) for text in texts):
            raise ValueError("model.identifiers.embeddings=TfidfSvd: no document has a word")
        weights = vectorizer.fit_transform(texts)
        self.vocabulary = vectorizer.get_feature_names_out().tolist()
        self.idf = vectorizer.idf_
        # As TruncatedSVD, without its explained variances, which are undefined for one document.
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
            max_features=self.max_features,
            vocabulary=self.vocabulary,
            sublinear_tf=True,
            dtype=np.float32,
        )


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

    def transform(self, documents: Table) -> np.ndarray:
        tokenizer = load_tokenizer(self.name)
        # The tokeniser adds the tokens around a text.
        bare = TextTemplate(suffix=()).settings
        model = load_backbone(self.name, attention="eager", template=bare).float()
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        options = {"truncation": True, "max_length": self.length}
        tokens = tokenizer(documents["text"][:], **options)["input_ids"]
        vectors = encode_texts(model, tokens, self.length, batch_size=self.batch_size)
        return normalise_rows(np.stack([text.mean(0).numpy() for text in vectors]))


class EmbeddedDocids(Scheme):
    """Docids made of the documents' vectors: a subclass clusters or quantises them."""

    def __init__(self, embeddings: dict[str, Any] | None = None):
        """embeddings: `_target_` and options of a part of this module; None = TF-IDF and SVD."""
        super().__init__()
        self.embeddings = dict(embeddings or TFIDF)
        self.embedder: DocumentEmbeddings = build("embeddings", self.embeddings)
        self.owners = [self, self.embedder]

    def embed(self, documents: Table) -> np.ndarray:
        """(n, d) float32 vectors of documents."""
        return self.embedder.transform(documents)


def normalise_rows(vectors: np.ndarray) -> np.ndarray:
    """(n, d) → float32 rows of length 1; rows of zeros stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
