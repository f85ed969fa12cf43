"""Evaluates a system on tasks of mteb: ``python -m analysis.mteb run=outputs/… tasks=[…]``."""

if __name__ == "__main__":  # before the heavy imports: command-line errors appear at once
    from conf.command import run_command

    run_command("mteb", "analysis.mteb:main")
    raise SystemExit

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

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
            "framework": ["PyTorch"],
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
            ValueError: there is no query, two have the same id, or a candidate is not a document.
        """
        asked = read_queries(queries)
        with reading(f"tasks={task_metadata.name}, split {hf_split}"):
            if not asked:
                raise ValueError("no query has a relevant document")
            if len(asked) < len(queries):
                raise ValueError(f"two of its {len(queries):,} queries have one id")
            if top_ranked is None:
                # One more, since mteb drops a document that is its own query.
                found = self.retriever.retrieve(asked, top_k + 1)
            else:
                given = {query: top_ranked.get(query, ()) for query in asked}
                given = {q: [d for d in ids if d not in self._empty] for q, ids in given.items()}
                found = self.retriever.rerank(asked, given)
        return {query: found.scores(query) for query in asked}


def read_queries(queries: Any) -> dict[str, str]:
    """Returns query id → text as mteb's models read it: with instruction, turns joined."""
    columns, found = [_column(queries, name) for name in ("id", "text", "instruction")], {}
    for name, text, instruction in zip(*columns, strict=True):
        if isinstance(text, str):
            parts = (text, instruction)
        else:  # a conversation
            turns = [t if isinstance(t, str) else f"{t['role']}: {t['content']}" for t in text]
            parts = (instruction, "; ".join(turns))
        found[name] = " ".join(part for part in parts if part)
    return found


def _column(table: Any, name: str) -> list[Any]:
    """Returns a column as a list; iterating over a `datasets` column is twenty times slower."""
    return table[name][:] if name in table.column_names else [None] * len(table)


def evaluate_run(
    run: Path | str,
    tasks: Sequence[str],
    output: Path | str = "outputs/mteb",
    languages: Sequence[str] | None = None,
    resume: bool = False,
    trust: bool = False,
) -> list[Any]:
    """Evaluates a run on tasks of mteb, writes mteb's results and prints the main ones.

    Args:
        run: what `Retriever.load` opens.
        tasks: names of retrieval or reranking tasks, or of benchmarks.
        output: the folder of a `mteb.ResultCache`.
        languages: of multilingual tasks, such as "eng"; None = all.
        resume: whether existing results are kept.
        trust: whether the run may name classes from outside this library (docs/design.md).

    Returns: mteb's `TaskResult` of each task.

    Raises:
        FileNotFoundError, ValueError: see `Retriever.load`; ValueError also if mteb is not
            installed or has no such task, or if the task is not retrieval or reranking of texts.
        OSError: the data cannot be fetched.
    """
    try:
        import mteb
    except ImportError:
        raise ValueError("analysis.mteb: needs mteb ≥ 2: pip install 'gr-mvdr[mteb]'") from None
    chosen = [task for name in tasks for task in find_tasks(name, languages)]
    model, cache = MtebModel(Retriever.load(run, trust=trust)), mteb.ResultCache(Path(output))
    how = {"overwrite_strategy": "only-missing" if resume else "always", "co2_tracker": False}
    results: list[Any] = []
    for task in chosen:
        with reading(f"tasks={task.metadata.name}"):
            results.append(mteb.evaluate(model, task, cache=cache, **how))
    table = pd.concat([one.to_dataframe("subset", format="long") for one in results])
    print(table.to_string(index=False, float_format="{:.4f}".format))
    place = cache.get_task_result_path(chosen[0].metadata.name, model.mteb_model_meta).parent
    print(f"{run}: evaluated, {place}")
    return [task for one in results for task in one.task_results]


def find_tasks(name: str, languages: Sequence[str] | None = None) -> list[Any]:
    """Finds the task with a name, or a benchmark's tasks, restricted to some languages.

    Raises:
        ValueError: there is no such task, none is in these languages, or it is not retrieval or
            reranking of texts.
    """
    import mteb
    from mteb.abstasks import AbsTaskRetrieval

    try:
        tasks = [mteb.get_task(name)]
    except KeyError as unknown:
        try:
            tasks = mteb.get_benchmark(name).tasks
        except KeyError:
            said = f"no task or benchmark of mteb. {unknown.args[0]}"
            raise ValueError(f"tasks=[{name}]: {said}") from None
    found = []
    for task in tasks:
        with suppress(ValueError):  # the task has none of the languages
            found.append(task.filter_languages(languages, hf_subsets=task.hf_subsets))
    if not found:
        raise ValueError(f"languages={languages}: must be languages of tasks=[{name}], such as eng")
    for task in found:
        for part in getattr(task.metadata, "tasks", None) or [task]:  # CQADupstack averages tasks
            own = part.metadata
            if not isinstance(part, AbsTaskRetrieval) or own.modalities != ["text"]:
                rule = f"{own.name} must be retrieval or reranking of texts"
                raise ValueError(f"tasks=[{name}]: {rule}")
    return found


def main(config: DictConfig) -> None:
    tasks, languages = (
        [given] if isinstance(given, str) else given and list(given)
        for given in (config.tasks, config.languages)
    )
    evaluate_run(config.run, tasks, config.output, languages, config.resume, config.trust)
