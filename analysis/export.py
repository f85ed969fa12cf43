"""Writes a finished run for other libraries: ``python -m analysis.export run=outputs/…``.

Writes a Hugging Face folder or, with ``vectors=true``, the token vectors as arrays; with
``push=USER/NAME``, publishes the folder on the Hugging Face hub.
"""

if __name__ == "__main__":  # before the heavy imports: command-line errors appear at once
    from conf.command import run_command

    run_command("export", "analysis.export:main")
    raise SystemExit

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from omegaconf import DictConfig
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from analysis.runs.run_folder import Run, claim_folder, read_run, require_run
from analysis.tables.metric_names import RANKED, join_intervals
from analysis.tables.rows import Table, escape_markdown, format_markdown, pivot, select, tabulate
from data_modules.module import RetrievalDataModule
from gr_mvdr.alignment import MaxSim
from gr_mvdr.files import (
    CIRCUMSTANCES,
    VERSION,
    describe_hub_error,
    find_hub_failure,
    is_on_hub,
    name_errors,
    new_folder,
    reading,
    temporary_folder,
    write_json,
    write_text,
)
from gr_mvdr.heads.plain import Head
from gr_mvdr.progress import quiet_libraries
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.store import TokenStore
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, stack
from gr_mvdr.tokenizers import load_tokenizer
from models.base import System
from models.docid import Docid
from models.export import find_backbone, generate_searches, write_system
from models.finished_run import FinishedRun, restore_run
from models.generative import GenerativeSystem
from models.multi_vector import EncodedQueries, MultiVector
from models.sentence_transformers import SIMILARITIES, find_obstacles, import_library
from models.t5_seal import T5SEAL

# The check's number of pairs of the first test split, and the largest allowed difference of scores.
PAIRS, TOLERANCE = 64, 1e-4
ARRAYS_FORMAT = 1
CARD = Path(__file__).with_name("model_card.md")  # its code blocks run in the order given
MANIFEST = "manifest.json"
# Texts per file (the fewest that xtr-warp reads at once), and texts in memory at a time.
_FILE, _BLOCK = 25_000, 500


def export_run(
    run: Path | str,
    output: Path | str | None = None,
    check: bool = False,
    trust: bool = False,
    push: str | None = None,
    license: str = "unknown",
) -> Path:
    """Writes the model that a run searched with, and its model card.

    Identifiers of documents that were added after training are included.

    Args:
        run: the folder of a run of `train.py`.
        output: the folder to create; None = `export` in the run's folder, or with `push` a
            temporary folder.
        check: score pairs with sentence-transformers too; a different score stops the export.
        trust: whether the run may name classes from outside this library (docs/design.md).
        push: a name on the Hugging Face hub, "USER/NAME", whose content becomes the folder's.
        license: the weights' licence, as the hub names it.

    Returns: the folder.

    Raises:
        FileExistsError: the folder exists already.
        FileNotFoundError: there is no such run, or it has no checkpoint.
        UnfinishedRun: a part of the run is missing.
        ValueError: its system has no weights, this version cannot restore it, the check fails, or
            the hub cannot be reached or refuses.
    """
    read = read_run(Path(run))
    default = temporary_folder("push") / "export" if push else read.path / "export"
    folder = _check_new(output or default)
    system, data = restore_run(read.path, trust=trust)
    if not system.trainable:
        raise ValueError(f"{type(system).__name__}: has no weights to export")
    # An n-gram index holds the texts, which are not published.
    if isinstance(system, Docid) or (isinstance(system, T5SEAL) and not push):
        with reading(f"run={run}: cannot be exported"):  # its scheme may be broken
            system.index(data.documents)
    tokenizer = load_tokenizer(read.path / "tokenizer")
    if push:  # fails before anything is written
        _ask_hub(push, "create_repo", exist_ok=True)
    with _new_folder(folder, read.path) as partial:
        texts = {"text_fields": data.text_fields, "cleaning": data.cleaning}
        write_system(system, tokenizer, partial, texts)
        card = build_model_card(read, system, tokenizer, push, license)
        write_text(partial / "README.md", card)
        if check:
            difference = check_library(partial, system, data)
            print(f"sentence-transformers gives the run's scores to {difference:.0e}")
    if not push or output:
        print(f"{read.path}: exported, {folder}")
    if push:
        said = f"Export by gr-mvdr {VERSION}"
        # Files of an earlier export, such as identifiers, are removed.
        done = _ask_hub(
            push, "upload_folder", folder_path=folder, delete_patterns="*", commit_message=said
        )
        print(f"{read.path}: published, {done.repo_url}")
    return folder


def _ask_hub(name: str, method: str, **options: Any) -> Any:
    """Calls a method of `HfApi` for a model's name; any failure is an error of one line."""
    if cause := find_hub_failure():
        raise ValueError(f"push={name}: the hub cannot be reached ({cause})")
    try:
        return getattr(HfApi(), method)(repo_id=name, **options)
    except Exception as error:  # of the hub's client, or of the network below it
        raise ValueError(f"push={name}: the hub refuses: {describe_hub_error(error)}") from None


def build_model_card(
    run: Run,
    system: System,
    tokenizer: PreTrainedTokenizerBase,
    name: str | None = None,
    license: str = "unknown",
) -> str:
    """Returns the README.md of an exported model: Markdown with a YAML header.

    Args:
        run: the finished run.
        system: its model.
        tokenizer: its tokeniser.
        name: the model's name on the hub.
        license: the weights' licence, as the hub names it.
    """
    is_multi_vector, generates = (isinstance(system, c) for c in (MultiVector, GenerativeSystem))
    lacking = find_obstacles(system, tokenizer) if is_multi_vector else []
    similarity = None
    if is_multi_vector and not lacking:
        similarity = SIMILARITIES.get(system.scoring.normaliser)
    _, model = find_backbone(system)
    library = "sentence-transformers" if similarity else "transformers"
    values = {
        "title": escape_markdown(f"{run.system} on {run.provenance['collection']}"),
        "paradigm": system.paradigm.replace("_", "-"),
        "kind": type(system).__name__,
        "tables": "\n\n".join("\n".join(format_markdown(table)) for table in _describe(run)),
        "backbone": type(model).__name__,
        "sets_epsilon": generates and hasattr(model.config, "layer_norm_eps"),
        "similarity": similarity,
        "lacking": ", ".join(lacking),
        "head": type(system.head).__name__ if generates and type(system.head) is not Head else "",
        "is_encoder": not generates,
        "beam": system.hparams.beam_size if generate_searches(system) else 0,
        "has_identifiers": isinstance(system, Docid),
        "query_length": system.hparams.get("query_length"),
        "license": license,
        "name": name,
        "command": _describe_command(run),
    }
    backbone = (run.config.get("backbone") or {}).get("name")
    header = ModelCardData(
        model_name=run.system,
        eval_results=_list_results(run),
        license=license,
        base_model=backbone if backbone and is_on_hub(backbone) else None,
        library_name=library,
        tags=["retrieval", "gr-mvdr"],
    )
    return str(ModelCard.from_template(header, template_path=str(CARD), **values))


def _list_results(run: Run) -> list[EvalResult]:
    """Lists the ranking metrics for the card's `model-index`, by task and test split."""
    tasks = {"retrieve": "text-retrieval", "rerank": "text-ranking"}
    table = tabulate({run.system: join_intervals(run.metrics)})
    results = []
    for row in table[table["headline"] & table["group"].isin(RANKED)].itertuples():
        group, *place, metric = row.key.split("/")
        splits = [split for split in run.splits if split in place] or run.splits
        results.append(
            EvalResult(
                task_type=tasks[group],
                dataset_type=re.sub(r"[^\w.-]+", "-", run.provenance["collection"]),
                dataset_name=run.provenance["collection"],
                dataset_split=splits[0],
                metric_type=metric,
                metric_name=row.name,
                metric_value=row.mean,
            )
        )
    return results


def _describe_command(run: Run) -> str:
    """Returns the command line of a run, with names in the place of paths: it may be published."""
    typed = run.provenance.get("overrides") or []
    kept = [line for line in typed if line.partition("=")[0] not in CIRCUMSTANCES]
    return shlex.join(re.sub(r"(?<![\w.-])[~.]*/([^,\]]*/)?", "", line) for line in kept)


def _describe(run: Run) -> list[Table]:
    """Tabulates the data, their sources, the metrics, and how the model was made."""
    record, config, data = run.provenance, run.config, run.config.get("data", {})
    table = tabulate({run.system: join_intervals(run.metrics)})
    ranked = table[table["group"].isin(RANKED)]
    weights = (config.get("backbone") or {}).get("name")
    weights = Path(weights).name if weights and Path(weights).is_dir() else weights
    sources = record.get("sources", {}) | record.get("training_sources", {})
    return [
        _list(
            "Data",
            **{
                "collection": record["collection"],
                "documents": record.get("documents"),
                'text fields, joined by " | "': ", ".join(record.get("text_fields", [])),
                "train split": record.get("train_split"),
                "test splits": ", ".join(record.get("splits", [])),
                "tokens read of a query": config.get("query_length"),
                "tokens read of a document": config.get("document_length"),
                "texts that are longer": record.get("cut_texts"),
                "cleaning": data.get("cleaning"),
                "test queries at most": data.get("max_test_queries"),
                "reranked queries at most": data.get("max_rerank_queries"),
                "BM25 candidates of a query": data.get("candidates"),
            },
        ),
        # Only file names, since the exported folder may be published.
        _list("Sources", **{Path(name).name: str(value) for name, value in sources.items()}),
        select(ranked, "section", "label", heading="Metrics", corner="task"),
        _list(
            "How it was made",
            system=run.system,
            backbone=weights or "none: trained from random weights",
            parameters=record.get("parameters"),
            seed=run.seed,
            commit=record.get("git"),
            **{"gr-mvdr": record.get("version"), **record.get("versions", {})},
        ),
    ]


def _list(heading: str, **values: Any) -> Table:
    """Tabulates names and their values; names without a value are left out."""
    texts = {
        (name, "value"): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
        if value not in (None, "", [], {})
    }
    return pivot(texts, heading, corner="")


def export_vectors(run: Path | str, output: Path | str | None = None, trust: bool = False) -> Path:
    """Writes the token vectors of a run's documents and test queries as arrays (docs/using.md).

    Documents are read from the run's index; if the run has none, they are encoded.

    Args: as in `export_run`; output: None = `vectors` in the run's folder.

    Returns: the folder.

    Raises: as in `export_run`; ValueError for a system without token vectors, or with keys.
    """
    read = read_run(Path(run))
    folder = _check_new(output or read.path / "vectors")
    finished = FinishedRun.read("run", read.path, trust)
    system, data = finished.restore()
    if not isinstance(system, MultiVector):
        raise ValueError(f"vectors=true: {read.provenance['system']} has no token vectors")
    system.to("cuda" if torch.cuda.is_available() else "cpu")
    # Nothing is searched, so no inverted file is needed; systems that only rerank have vectors too.
    own = {"mode": "exact", "keep_query": 1.0, "keep_document": 1.0, "engine": None}
    system.search = replace(system.search, **own)
    place = temporary_folder("vectors")
    finished.open_index(system, data.documents, place)
    queries = {}
    for split in data.test_splits:  # empty if there are no judgements
        name = f"queries-{split}" if queries else "queries"
        queries[name] = system.encoded_queries(data.test_queries(split))
    with _new_folder(folder, read.path) as partial:
        manifest = write_token_arrays(system, queries, partial)
    if not manifest["maxsim"]:
        print(
            f"vectors=true: the system scores by {manifest['alignment']}, other engines by MaxSim"
        )
    print(f"{read.path}: {manifest['documents']['count']:,} documents exported, {folder}")
    return folder


def write_token_arrays(
    system: MultiVector, queries: dict[str, EncodedQueries], folder: Path
) -> dict[str, Any]:
    """Writes a system's indexed documents and encoded queries, one block at a time.

    Args:
        system: it has a `TokenIndex`; deleted documents are left out.
        queries: the name of their folder, such as "queries" → encoded queries.
        folder: exists and is empty.

    Returns: the content of the manifest.

    Raises:
        ValueError: the system aligns by separate keys, which no other engine supports.
    """
    store = system.searcher.store
    if "keys" in store.sizes:
        raise ValueError(
            "vectors=true: the system aligns by separate keys, must align by its vectors"
        )
    manifest = {
        "format": ARRAYS_FORMAT,
        "dimension": store.sizes["vectors"],
        "dtype": _dtype(store).name,
        "alignment": str(system.scoring.alignment),
        "normaliser": system.scoring.normaliser,
        "maxsim": system.scoring.alignment == MaxSim() and not store.has_salience,
        **store.fingerprint,
        "documents": _write_texts(store, folder / "documents", _dtype(store)),
    }
    for name, encoded in queries.items():
        vectors = dict(encoded)
        encode = partial(_pack, vectors)
        held = TokenIndex.build(temporary_folder("queries"), list(vectors), encode)
        manifest[name] = _write_texts(held.store, folder / name, _dtype(store))
    write_json(folder / MANIFEST, manifest)
    return manifest


def _pack(vectors: dict[str, TokenVectors], names: Sequence[str]) -> Iterator[PackedTokens]:
    yield stack([vectors[name] for name in names]).pack()


def _dtype(store: TokenStore) -> np.dtype:
    """fp32 if the store holds fp32; otherwise fp16, since codes are no more precise than fp16."""
    return np.dtype(np.float32 if store.dtype == "float32" else np.float16)


def _write_texts(store: TokenStore, folder: Path, dtype: np.dtype) -> dict[str, int]:
    """Writes the vectors into `folder`, and the ids and any saliences next to it."""
    folder.mkdir()
    live = store.live.nonzero()[:, 0]
    counts = store.counts[live]
    for number, texts in enumerate(live.split(_FILE)):
        shape = (int(store.counts[texts].sum()), store.sizes["vectors"])
        blocks = (store.read(block).vectors for block in texts.split(_BLOCK))
        _write_blocks(folder / f"vectors_{number:05}.npy", dtype, shape, blocks)
        counted = folder / f"vectors_{number:05}.doclens.npy"
        _write_blocks(counted, np.dtype(np.int64), (len(texts),), [store.counts[texts]])
    if store.has_salience:
        blocks = (store.read(block).salience for block in live.split(_BLOCK))
        path = folder.with_name(f"{folder.name}_salience.npy")
        _write_blocks(path, np.dtype(np.float32), (int(counts.sum()),), blocks)
    ids = [store.document_ids[number] for number in live.tolist()]
    write_json(folder.with_name(f"{folder.name}.json"), ids, indent=None)
    return {"count": len(ids), "tokens": int(counts.sum())}


def _write_blocks(
    file: Path, dtype: np.dtype, shape: tuple[int, ...], blocks: Iterable[Tensor]
) -> None:
    """Writes a `.npy` file of a known shape, block by block."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with name_errors(file), file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for block in blocks:
            stream.write(np.ascontiguousarray(block.numpy(), dtype).data)


def _check_new(folder: Path | str) -> Path:
    if Path(folder).exists():
        raise FileExistsError(f"output={folder}: exists, must be a new folder")
    return Path(folder)


@contextmanager
def _new_folder(folder: Path, run: Path) -> Iterator[Path]:
    """Opens `new_folder`; in a run, claims the run, so that no other command removes the files."""
    in_run = folder.resolve().is_relative_to(run.resolve())
    with claim_folder(run) if in_run else nullcontext(), new_folder(folder) as partial:
        yield partial


@torch.inference_mode()
@quiet_libraries()
def check_library(folder: Path, system: System, data: RetrievalDataModule) -> float:
    """Scores test queries and relevant documents with sentence-transformers and with the system.

    Args:
        folder: the exported folder.
        system: the exported system.
        data: the run's data.

    Returns: the largest difference of two scores.

    Raises:
        ValueError: there is no test query, the library cannot read the system, or a score differs
            by more than `TOLERANCE`.
    """
    if not (folder / "modules.json").is_file():
        raise ValueError("check=true: sentence-transformers cannot read this system, use false")
    if not data.test_splits:
        raise ValueError("check=true: must be false, the run has no test queries")
    split = data.test_splits[0]
    names, batches = data.test_pairs(split, PAIRS)
    table = data.test_queries(split)
    texts = dict(zip(table["id"][:], table["text"][:], strict=True))
    queries = [texts[query] for query, _ in names]
    rows = torch.cat([batch.document_index for batch in batches]).tolist()
    documents = data.documents[rows]["text"]
    ours = torch.cat([system.score(batch) for batch in batches])
    model = import_library().MultiVectorEncoder(str(folder), device="cpu")
    theirs = model.similarity_pairwise(
        model.encode_query(queries, show_progress_bar=False),
        model.encode_document(documents, show_progress_bar=False),
    )
    difference = float((theirs - ours).abs().max())
    if not difference <= TOLERANCE:  # also true for NaN
        raise ValueError(
            f"check=true: sentence-transformers differs by {difference:.1e} from the run's scores, "
            f"must be ≤ {TOLERANCE:.0e}"
        )
    return difference


def main(config: DictConfig) -> None:
    run = require_run(config.run)
    if not config.vectors:
        chosen = (config[key] for key in ("output", "check", "trust", "push", "license"))
        export_run(run, *chosen)
    elif config.push:
        raise ValueError(f"push={config.push}: must be null with vectors=true, it is of the model")
    elif config.check:
        raise ValueError("check=true: must be false with vectors=true, it is of the exported model")
    else:
        export_vectors(run, config.output, config.trust)
