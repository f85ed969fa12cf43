"""Public collections by name: beir/…, lotte/…, miracl/…, entity_questions, dpr/….

Each is read from a local copy of the released files, or from the Hugging Face hub.

- BEIR: a collection's folder, one that holds it, or the official zip archive.
- LoTTE: passages of a topic's forums, asked by searches (GooAQ) or by forum titles.
- MIRACL: Wikipedia passages in 18 languages, with topics and judgements by native speakers. The
  Korean files hold some passages and judgements twice: each counts once. miracl/judged: the judged
  passages of all languages that have training questions, to train one system on.
- EntityQuestions: see `entity_questions`; the hub does not have its passages.
- DPR: its questions of a data set (nq, trivia, squad1), see `data_modules.formats.dpr`.
"""

import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
from datasets import Features, Value

from data_modules.builders import entity_questions
from data_modules.formats import dpr
from data_modules.formats.catalogue import FORMATS
from data_modules.formats.files import (
    check_open,
    find,
    find_all,
    given_path,
    missing,
    needed,
    unpacking,
)
from data_modules.formats.layout import Document, Judgement, Layout, NamedPair, join_layouts
from data_modules.formats.readers import json_lines, table, word
from data_modules.formats.rows import (
    Reader,
    documents,
    judgements,
    queries,
    query_table,
    table_documents,
)
from data_modules.store import check_room
from data_modules.tables import write_once

# BEIR's judgements on the hub by split; its "validation" is BEIR's dev.
_BEIR_SPLITS = {
    "train dev test": "msmarco nfcorpus hotpotqa fiqa fever",
    "train test": "scifact",
    "dev test": "quora dbpedia-entity",
    "test": "trec-covid nq arguana webis-touche2020 scidocs climate-fever",
}
BEIR = {name: of.split() for of, names in _BEIR_SPLITS.items() for name in names.split()}
LOTTE_TOPICS = ("writing", "recreation", "science", "technology", "lifestyle", "pooled")
LOTTE_QUESTIONS = ("search", "forum")
LOTTE_SPLITS = ("test", "dev")  # of different passages: each is a collection of its own
MIRACL = "ar bn de en es fa fi fr hi id ja ko ru sw te th yo zh".split()
_NOT_TRAINED = ("de", "yo")  # MIRACL's surprise languages have no training topics
_TOPICS = ("query_id", "query")  # columns of MIRACL's tables
_QRELS = ("query_id", "Q0", "docid", "relevance")


def public(name: str, path: str | None = None) -> Layout:
    """The collection of a name, in a local copy or on the Hugging Face hub.

    Args:
        name: beir/NAME (in a local copy also such as beir/cqadupstack/android),
            lotte/TOPIC/search|forum[/dev|test], miracl/LANGUAGE, miracl/judged, entity_questions,
            dpr/nq|trivia|squad1.
        path: of the local copy: a folder, or BEIR's archive; None = the hub.

    Raises:
        FileNotFoundError: there is no such copy, or it lacks a file.
        ValueError: another name, or an archive that cannot be unpacked.
        OSError: there is no room to unpack it; (on reading) the hub cannot be reached.
    """
    family, _, rest = name.partition("/")
    if family not in FAMILIES:
        raise ValueError(f"data.name={name}: must begin with {', '.join(FAMILIES)}")
    return FAMILIES[family](rest, given_path("path", path, "folder or file"))


def hub_rows(
    path: str, name: str | None = None, split: str = "train", **options: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(``place:row``, columns) of one split of a data set on the hub.

    Args:
        path, name, split, options: as `datasets.load_dataset` takes them.

    Raises:
        OSError: the hub cannot be reached, or has no such data.
    """
    place = options.get("data_files") or f"{path}/{split}"
    try:
        rows = datasets.load_dataset(path, name, split=split, **options)
    except Exception as error:  # of datasets, of the hub's client, or of the network below it
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise OSError(
            f"{place}: cannot be fetched from the Hugging Face hub ({reason}); data.path=FOLDER "
            "reads a local copy"
        ) from error
    for number, row in enumerate(rows, start=1):
        yield f"{place}:{number}", {k: "" if v is None else v for k, v in row.items()}


def hub_json(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of files of JSON lines on the hub: data set and path, perhaps with wild cards."""
    return hub_rows("json", data_files=f"hf://datasets/{file}")


def hub_table(file: str, columns: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of a file of tab-separated columns on the hub, every column as text."""
    return hub_rows(
        "csv",
        data_files=f"hf://datasets/{file}",
        sep="\t",
        column_names=list(columns),
        features=Features({name: Value("string") for name in columns}),
        quoting=3,  # a quote is a quote
        keep_default_na=False,  # and "null" a word
    )


def _beir(name: str, path: Path | None) -> Layout:
    if path is not None:
        folder = _unpacked(path) if path.suffix == ".zip" else path
        places = [folder / name, folder / Path(name).name, folder]
        beir = FORMATS["beir"]
        return beir.read(next((place for place in places if beir.recognises(place)), folder))
    if name not in BEIR:
        raise ValueError(
            f"data.name=beir/{name}: must be one of {', '.join(sorted(BEIR))}, "
            "or a local copy: data.path=FOLDER"
        )
    place, part = f"BeIR/{name}", lambda kind: partial(hub_rows, name=kind, split=kind)
    judged = partial(judgements, query="query-id", document="corpus-id", grade="score")
    splits = {split: split.replace("dev", "validation") for split in BEIR[name]}
    return Layout(
        name=name,
        files=(),
        options={"reader": "beir hub/1", "hub": [place, f"{place}-qrels"]},
        documents=partial(documents, part("corpus"), place, id="_id", text="text", title="title"),
        queries=partial(queries, part("queries"), place, id="_id", text="text"),
        judgements={
            split: partial(judged, partial(hub_rows, split=theirs), f"{place}-qrels")
            for split, theirs in splits.items()
        },
    )


def _unpacked(archive: Path) -> Path:
    """The folder next to an archive that holds its files, made the first time."""
    folder = archive.with_suffix("")
    with write_once(folder) as partial_folder:
        if partial_folder is not None:
            with unpacking(archive), zipfile.ZipFile(archive) as content:
                check_open(archive, content)
                size = sum(member.file_size for member in content.infolist())
                check_room(f"data.path={archive}: unpacked, it", archive.parent, size)
                content.extractall(partial_folder)
            print(f"{archive}: unpacked into {folder}")
    return folder


def _lotte(name: str, path: Path | None) -> Layout:
    topic, _, rest = name.partition("/")
    kind, _, split = rest.partition("/")
    split = split or "test"
    if topic not in LOTTE_TOPICS or kind not in LOTTE_QUESTIONS or split not in LOTTE_SPLITS:
        raise ValueError(
            f"data.name=lotte/{name}: must be lotte/TOPIC/QUESTIONS or lotte/TOPIC/QUESTIONS/SPLIT "
            f"with a topic of {', '.join(LOTTE_TOPICS)}; {' or '.join(LOTTE_QUESTIONS)}; "
            f"{' or '.join(LOTTE_SPLITS)}"
        )
    options = {"reader": "lotte/1", "topic": topic, "questions": kind, "split": split}
    if path is None:
        passages = f"colbertv2/lotte_passages/{topic}/{split}_collection.jsonl"
        asked = f"colbertv2/lotte/{topic}/{split}_qas.{kind}.jsonl"
        options["hub"], files = [passages, asked], ()
        found = partial(documents, hub_json, passages, id="doc_id", text="text")
        questions = partial(queries, hub_json, asked, id="qid")
        judged = partial(_lotte_judgements, hub_json, asked)
    else:
        places = (path, path / topic / split, path / "lotte" / topic / split)
        folder = next((place for place in places if find(place, "collection.tsv")), places[1])
        names = ("collection.tsv", f"questions.{kind}.tsv", f"qas.{kind}.jsonl")
        files = tuple(needed(folder, name) for name in names)
        found = partial(table_documents, files[0], ("id", "text"))
        questions = partial(queries, query_table, files[1])
        judged = partial(_lotte_judgements, json_lines, files[2])
    return Layout(
        name=f"lotte-{topic}-{kind}-{split}",
        files=files,
        options=options,
        documents=found,
        queries=questions,
        judgements={split: judged},
    )


def _lotte_judgements(read: Reader, file: Any) -> Iterator[Judgement]:
    for where, record in read(file):
        deeper = record.get("answers") or {}  # as the hub's loader keeps them
        passages = record.get("answer_pids") or deeper.get("answer_pids")
        if not isinstance(passages, list):
            raise ValueError(f'{where}: expected a list "answer_pids", got {passages!r:.60}')
        for passage in passages:
            yield Judgement(where, word(where, "qid", record), str(passage), 1)


def _miracl(language: str, path: Path | None) -> Layout:
    if language == "judged":
        return _miracl_judged(path)
    if language not in MIRACL:
        raise ValueError(f"data.name=miracl/{language}: must be one of {', '.join(MIRACL)}, judged")
    options: dict[str, Any] = {"reader": "miracl/1", "language": language}
    folder, corpus = f"miracl-v1.0-{language}", f"miracl-corpus-v1.0-{language}/docs-*.jsonl"
    tables = {
        split: [f"{folder}/{kind}/{kind}.{folder}-{split}.tsv" for kind in ("topics", "qrels")]
        for split in ("train", "dev")
    }
    if path is None:
        shards = [f"miracl/miracl-corpus/{corpus}.gz"]
        options["hub"] = [f"miracl/miracl/{folder}", *shards]
        found = {s: [f"miracl/miracl/{name}" for name in names] for s, names in tables.items()}
        if language in _NOT_TRAINED:
            del found["train"]
        files, read, read_table = (), hub_json, hub_table
    else:
        shards = find_all(path, corpus, f"miracl-corpus/{corpus}")
        if not shards:
            raise FileNotFoundError(f"data.path={path}: {corpus}.gz are missing")
        found = _miracl_tables(tables, path)
        files, read, read_table = [*shards, *chain(*found.values())], json_lines, table
    topics, qrels = (partial(read_table, columns=columns) for columns in (_TOPICS, _QRELS))
    judged = partial(judgements, qrels, query="query_id", document="docid", grade="relevance")
    return Layout(
        name=f"miracl-{language}",
        files=tuple(files),
        options=options,
        documents=partial(documents, read, *shards, id="docid", text="text", title="title"),
        queries=partial(queries, topics, *(asked for asked, _ in found.values()), id="query_id"),
        judgements={split: partial(judged, file) for split, (_, file) in found.items()},
    )


def _miracl_tables(tables: dict[str, list[str]], path: Path) -> dict[str, list[Path]]:
    """A copy's topics and judgements of each split; those of training may both be missing."""
    found = {s: [find(path, n, f"miracl/{n}") for n in names] for s, names in tables.items()}
    if found["train"] == [None, None]:
        del found["train"]
    for split, files in found.items():
        for name, file in zip(tables[split], files, strict=True):
            if file is None:
                raise missing(path, name)
    return found


def _miracl_judged(path: Path | None) -> Layout:
    """The judged passages of all languages (of a local copy: those that it has) with their topics.

    Ids begin with the language; what is judged irrelevant to training topics are the negatives
    "judged".
    """
    trained = [language for language in MIRACL if language not in _NOT_TRAINED]
    if path is not None:
        names = {file.name for folder in (path, path / "miracl") for file in folder.glob("*")}
        trained = [language for language in trained if f"miracl-v1.0-{language}" in names]
    if not trained:
        raise FileNotFoundError(f"data.path={path}: miracl-v1.0-…/topics and qrels are missing")
    joined = join_layouts("miracl-judged", {name: _miracl(name, path) for name in trained})

    def judged_documents() -> Iterator[Document]:
        judged = {row.document_id for rows in joined.judgements.values() for row in rows()}
        return (row for row in joined.documents() if row.id in judged)

    def irrelevant() -> Iterator[NamedPair]:
        for where, query, document, grade in joined.judgements["train"]():
            if grade <= 0:
                yield NamedPair(where, query, document, 0.0)

    options = {"reader": "miracl judged/2", **joined.options}
    return replace(
        joined, options=options, documents=judged_documents, negatives={"judged": irrelevant}
    )


def _dpr(name: str, path: Path | None) -> Layout:
    if path is None or not name:
        raise ValueError(
            f"data.name=dpr/{name}: must be such as dpr/nq, and data.path=FOLDER one with "
            f"{entity_questions.PASSAGES} and …nq-dev.json"
        )
    return dpr.read(path, name)


FAMILIES = {
    "beir": _beir,
    "lotte": _lotte,
    "miracl": _miracl,
    "entity_questions": entity_questions.read,
    "dpr": _dpr,
}
