"""Writes a finished run for other libraries: ``python -m analysis.export run=outputs/…``.

Writes a Hugging Face folder; with ``push=USER/NAME``, publishes it on the Hugging Face hub.
"""

if __name__ == "__main__":  # before the heavy imports: command-line errors appear at once
    from conf.command import run_command

    run_command("export", "analysis.export:main")
    raise SystemExit

import json
import re
from contextlib import nullcontext
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase

from analysis.runs.numbers import over_seeds
from analysis.runs.run_folder import Run, claim_folder, look_up, print_command, read_run
from analysis.runs.tables import Table, escape_markdown, format_markdown, pivot, select, tabulate
from gr_mvdr.files import is_on_hub, new_folder, reading, temporary_folder, write_text
from gr_mvdr.heads.plain import Head
from gr_mvdr.measures import RANKED
from models.base import System, find_backbone
from models.docid import Docid
from models.export import ask_hub, export_model, generate_searches, upload
from models.generative import GenerativeSystem, continues_prompts
from models.multi_vector import MultiVector
from models.saved_model import restore_run, text_options
from models.sentence_transformers import SIMILARITIES, find_obstacles, find_pooling
from models.t5_seal import T5SEAL

# What the card shows of a run's provenance and of its configuration.
RECORDED = (
    *("collection", "documents", "text_fields", "cleaning", "train_split", "splits", "cut_texts"),
    *("parameters", "seed", "git", "version"),
)
CARD = Path(__file__).with_name("model_card.md")  # its code blocks run in the order given


def export_run(
    run: Path | str,
    output: Path | str | None = None,
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
        trust: whether the run may name classes from outside this library (docs/design.md).
        push: a name on the Hugging Face hub, "USER/NAME", whose content becomes the folder's.
        license: the weights' licence, as the hub names it.

    Returns: the folder.

    Raises:
        FileExistsError: the folder exists already.
        FileNotFoundError: there is no such run.
        UnfinishedRun: a part of the run is missing.
        ValueError: it is a pipeline of other runs, this version cannot restore it, or the hub
            cannot be reached or refuses.
    """
    read = read_run(Path(run))
    default = temporary_folder("push") / "export" if push else read.path / "export"
    folder = Path(output or default)
    if folder.exists():
        raise FileExistsError(f"output={folder}: exists, must be a new folder")
    system, data = restore_run(read.path, trust=trust)
    if system.paradigm == "pipeline":
        raise ValueError(f"{type(system).__name__}: consists of other runs, export these")
    if isinstance(system, Docid) or (isinstance(system, T5SEAL) and not push):
        with reading(f"run={run}: cannot be exported"):  # its scheme may be broken
            system.index(data.documents)  # what a constraint needs
    tokenizer = data.tokenizer
    if push:  # fails before anything is written
        ask_hub(push, "create_repo", exist_ok=True)
    # In a run, no other command may remove what is half written.
    in_run = folder.resolve().is_relative_to(read.path.resolve())
    with claim_folder(read.path) if in_run else nullcontext(), new_folder(folder) as partial:
        export_model(system, partial, tokenizer, text_options(data), publish=push is not None)
        card = build_model_card(read, system, tokenizer, push, license)
        write_text(partial / "README.md", card)
    if not push or output:
        print(f"{read.path}: exported, {folder}")
    if push:
        print(f"{read.path}: published, {upload(folder, push)}")
    return folder


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
    model = find_backbone(system)[1] if system.trainable else None  # BM25 has none
    typed = run.provenance.get("overrides") or []
    # Names in the place of paths: the card may be published.
    named = [re.sub(r"(?<![\w.-])[~.]*/([^,\]]*/)?", "", word) for word in typed]
    library = "sentence-transformers" if similarity else "transformers" if model else None
    values = {
        "title": escape_markdown(f"{run.system} on {run.provenance['collection']}"),
        "paradigm": system.paradigm.replace("_", "-"),
        "kind": type(system).__name__,
        "tables": "\n\n".join("\n".join(format_markdown(table)) for table in _describe(run)),
        "backbone": type(model).__name__ if model else "",
        "sets_epsilon": generates and hasattr(model.config, "layer_norm_eps"),
        "similarity": similarity,
        "single": is_multi_vector and find_pooling(system),
        "lacking": ", ".join(lacking),
        "head": type(system.head).__name__ if generates and type(system.head) is not Head else "",
        "is_encoder": bool(model) and not generates,
        "continues": continues_prompts(system),
        "beam": system.hparams.beam_size if generate_searches(system) else 0,
        "has_identifiers": isinstance(system, Docid),
        "query_length": system.hparams.get("query_length"),
        "license": license,
        "name": name,
        "command": typed and print_command(named),
    }
    backbone = look_up(run.config, "backbone.name")
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
    table = tabulate({run.system: over_seeds([run.numbers])})
    results = []
    for row in table[table["headline"] & table["group"].isin(RANKED)].itertuples():
        results.append(
            EvalResult(
                task_type=tasks[row.group],
                dataset_type=re.sub(r"[^\w.-]+", "-", run.provenance["collection"]),
                dataset_name=run.provenance["collection"],
                dataset_split=row.split or run.splits[0],
                metric_type=row.metric,
                metric_name=row.name,
                metric_value=row.value,
            )
        )
    return results


def _describe(run: Run) -> list[Table]:
    """Tabulates the metrics, and the data and choices that the model was made with."""
    table, record = tabulate({run.system: over_seeds([run.numbers])}), run.provenance
    weights = look_up(run.config, "backbone.name")
    weights = Path(weights).name if weights and Path(weights).is_dir() else weights
    sources = record.get("sources", {}) | record.get("training_sources", {})
    facts = {"backbone": weights or "none: trained from random weights"}
    facts |= {name: record.get(name) for name in RECORDED}
    facts |= record.get("versions", {})
    # Only file names, since the exported folder may be published.
    facts |= {Path(name).name: str(value) for name, value in sources.items()}
    cells = {
        (name, "value"): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in facts.items()
        if value not in (None, "", [], {})
    }
    ranked = table[table["group"].isin(RANKED)]
    metrics = select(ranked, "section", "label", heading="Metrics", corner="task")
    return [metrics, pivot(cells, "How it was made", corner="")]


def main(config: DictConfig) -> None:
    chosen = (config[key] for key in ("output", "trust", "push", "license"))
    export_run(config.run, *chosen)
