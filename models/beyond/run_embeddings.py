"""Document embeddings of a finished run, for docids made of vectors (RIPOR, Zeng et al. 2024)."""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from gr_mvdr.backbones import hash_weights
from gr_mvdr.batch import batch_by_length
from gr_mvdr.files import reading
from gr_mvdr.identifiers.document_embeddings import DocumentEmbeddings, normalise_rows
from gr_mvdr.options import TARGET, Text, find_part, part
from gr_mvdr.progress import track
from gr_mvdr.tokenizers import load_tokenizer
from models.base import Table
from models.finished_run import FinishedRun
from models.multi_vector import MultiVector


class RunEmbeddings(DocumentEmbeddings):
    """The mean of a document's token vectors by a finished multi-vector run.

    As in RIPOR, the vectors were trained for relevance: T5-ColBERT's (weighted by salience where
    the run has one) or DPR's one vector. The run's tokeniser and document length read the texts.
    """

    values = ("weights",)

    def __init__(self, run: str):
        """run: its folder, opened when the first documents are embedded."""
        self.run = run
        self.weights: str | None = None  # the model's hash, once it is known

    def transform(self, documents: Table, backbone: PreTrainedModel | None = None) -> np.ndarray:
        """See `DocumentEmbeddings`.

        Raises:
            FileNotFoundError: no such folder. ValueError: the run is unfinished, encodes no
                documents, or is not the one that the known documents were embedded by.
        """
        model, tokenizer = self._opened
        tokens = tokenizer(documents["text"][:], add_special_tokens=False)["input_ids"]
        texts = [model.cut_document(document) for document in tokens]
        vectors = np.empty((len(texts), model.hparams.dimension), dtype=np.float32)
        batches = batch_by_length([*map(len, texts)])
        for places in track(batches, "embedding batches of documents"):
            means = model.encode_texts([texts[place] for place in places]).mean()
            vectors[places] = means.cpu().numpy()
        return normalise_rows(vectors)

    @cached_property
    def _opened(self) -> tuple[MultiVector, Any]:
        """The run's model and tokeniser."""
        run = FinishedRun.read("model.identifiers.embeddings.run", self.run)
        kind = find_part("model", run.config.get("model", {}).get(TARGET))
        if not issubclass(kind, MultiVector):
            system = run.provenance["system"]
            raise ValueError(f"{run.key}: must be a multi-vector run, it is one of {system}")
        # The model draws weights before it reads them; a resumed run does not come here.
        with reading(run.key), torch.random.fork_rng():
            model = run.load_model(None)
        weights = hash_weights(model)
        if self.weights not in (None, weights):
            rule = f"must hold the weights {self.weights} that the docids were made with"
            raise ValueError(f"{run.key}: {rule}, it holds {weights}")
        self.weights = weights
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return model.to(device), load_tokenizer(run.path / "tokenizer")


@part("embeddings", otherwise="embeddings")
def embed_by_run(run: Text | None, otherwise: DocumentEmbeddings) -> DocumentEmbeddings:
    """The embeddings of a finished run; of `otherwise` without a run."""
    return otherwise if run is None else RunEmbeddings(run)
