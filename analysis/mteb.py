"""A retriever as a model of mteb: `mteb.evaluate(MtebModel(Retriever.load(run)), tasks)`."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gr_mvdr.backbones import hash_weights
from gr_mvdr.files import reading
from models.retriever import Retriever

_TYPES = {"multi_vector": "late-interaction", "cross_encoder": "cross-encoder", "lexical": "sparse"}


class MtebModel:
    """Wraps a `Retriever` in mteb 2's `SearchProtocol`, for `mteb.evaluate(model, …)`.

    A task's documents replace the retriever's indexed documents. A generative system assigns them
    identifiers as it does for documents that are added after training. For a reranking task,
    exactly the listed candidates are scored.
    """

    def __init__(self, retriever: Retriever):
        self.retriever, self._empty = retriever, frozenset()

    @property
    def mteb_model_meta(self) -> Any:
        """The key of mteb's result files: the system's label, and a hash of weights and options."""
        from mteb.models.model_meta import ModelMeta

        system, reader = self.retriever.system, self.retriever.reader
        made_by = hash_weights(system), dict(system.hparams), reader.text_fields, reader.cleaning
        about = {
            "name": "gr-mvdr/" + re.sub(r"[^\w.-]+", "-", self.retriever.label),
            "revision": hashlib.sha256(repr(made_by).encode()).hexdigest()[:16],
            "n_parameters": sum(parameter.numel() for parameter in system.parameters()),
            "max_tokens": system.hparams.get("document_length"),
            "model_type": [_TYPES.get(system.paradigm, "hybrid")],
        }
        return ModelMeta.create_empty(about)

    def index(
        self,
        corpus: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        encode_kwargs: Mapping[str, Any],
        **_: Any,
    ) -> None:
        """Indexes a task's documents, except documents without text.

        Args:
            corpus: a `datasets.Dataset` with `id`, `text` and perhaps `title`.

        Raises:
            ValueError: no document has a text, or two have the same id.
        """
        columns = [_column(corpus, name) for name in ("id", "title", "text")]
        rows = [
            {"id": name, "title": title or "", "text": text or ""}
            for name, title, text in zip(*columns, strict=True)
        ]
        filled = [row for row in rows if (row["title"] + row["text"]).strip()]
        self._empty = {row["id"] for row in rows}.difference(row["id"] for row in filled)
        with reading(f"tasks={task_metadata.name}, split {hf_split}"):
            if not filled:
                raise ValueError(f"none of its {len(rows):,} documents has a text")
            self.retriever.index(filled)

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        top_k: int,
        encode_kwargs: Mapping[str, Any],
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Returns each query's best documents or, for a reranking task, its candidates in order.

        Args:
            queries: a `datasets.Dataset` with `id`, `text` and perhaps `instruction`.
            top_k: documents per query.
            top_ranked: query id → candidates, for a reranking task.

        Returns:
            Query id → {document id: score}, best first; {} if nothing is found.

        Raises:
            ValueError: there is no query, or a candidate is not a document.
        """
        asked = _read_queries(queries)
        with reading(f"tasks={task_metadata.name}, split {hf_split}"):
            if not asked:
                raise ValueError("no query has a relevant document")
            if top_ranked is None:
                # One more, since mteb drops a document that is its own query.
                ranking = self.retriever.retrieve(asked, top_k + 1)
            else:
                given = {query: top_ranked.get(query, ()) for query in asked}
                given = {q: [d for d in ids if d not in self._empty] for q, ids in given.items()}
                ranking = self.retriever.rerank(asked, given)
        return {query: ranking.scores(query) for query in asked}


def _read_queries(queries: Any) -> dict[str, str]:
    """Returns query id → text as mteb's models read it: with its instruction."""
    columns = [_column(queries, name) for name in ("id", "text", "instruction")]
    rows = zip(*columns, strict=True)
    return {name: " ".join(part for part in parts if part) for name, *parts in rows}


def _column(table: Any, name: str) -> list[Any]:
    """Returns a column as a list; iterating over a `datasets` column is twenty times slower."""
    return table[name][:] if name in table.column_names else [None] * len(table)
