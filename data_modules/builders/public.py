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
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import datasets
from datasets import Features, Value

from data_modules.builders import entity_questions
from data_modules.formats import beir, dpr, trec
from data_modules.formats.files import find, find_all, given_path, needed, page_hint, unpacking
from data_modules.formats.layout import Document, Judgement, Layout, Query, Ranked, join_layouts
from data_modules.formats.lines import integer, json_lines, string, word
from data_modules.formats.tables import rows, table_documents
from data_modules.store import check_room
from data_modules.tables import hide_bars, write_once

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
_Row = TypeVar("_Row", Document, Judgement)
Rows = Callable[[], Iterable[tuple[str, dict[str, Any]]]]  # (where, columns) of each row


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
    with hide_bars():
        try:
            table = datasets.load_dataset(path, name, split=split, **options)
        except Exception as error:  # of datasets, of the hub's client, or of the network below it
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise OSError(
                f"{place}: cannot be fetched from the Hugging Face hub ({reason}); "
                "data.path=FOLDER reads a local copy"
            ) from error
    for number, row in enumerate(table, start=1):
        yield f"{place}:{number}", row


def hub_json(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of files of JSON lines on the hub: data set and path, perhaps with wild cards."""
    return hub_rows("json", data_files=f"hf://datasets/{file}")


def hub_columns(file: str, names: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of a file of tab-separated columns on the hub, every column as text."""
    return hub_rows(
        "csv",
        data_files=f"hf://datasets/{file}",
        sep="\t",
        column_names=list(names),
        features=Features({name: Value("string") for name in names}),
        quoting=3,  # a quote is a quote
        keep_default_na=False,  # and "null" a word
    )


def _beir(name: str, path: Path | None) -> Layout:
    if path is not None:
        folder = _unpacked(path) if path.suffix == ".zip" else path
        places = [folder / name, folder / Path(name).name, folder]
        return beir.read(next((place for place in places if beir.recognises(place)), folder))
    if name not in BEIR:
        raise ValueError(
            f"data.name=beir/{name}: must be one of {', '.join(sorted(BEIR))}, "
            "or a local copy: data.path=FOLDER"
        )

    def documents() -> Iterator[Document]:
        for where, row in hub_rows(f"BeIR/{name}", "corpus", "corpus"):
            yield Document(where, str(row["_id"]), row["title"] or "", row["text"] or "")

    def queries() -> Iterator[Query]:
        for where, row in hub_rows(f"BeIR/{name}", "queries", "queries"):
            yield Query(where, str(row["_id"]), row["text"] or "")

    def judgements(split: str) -> Iterator[Judgement]:
        for where, row in hub_rows(f"BeIR/{name}-qrels", split=split.replace("dev", "validation")):
            query, document = str(row["query-id"]), str(row["corpus-id"])
            yield Judgement(where, query, document, int(row["score"]))

    return Layout(
        name=name,
        files=(),
        options={"reader": "beir hub/1", "hub": [f"BeIR/{name}", f"BeIR/{name}-qrels"]},
        documents=documents,
        queries=queries,
        judgements={split: partial(judgements, split) for split in BEIR[name]},
    )


def _unpacked(archive: Path) -> Path:
    """The folder next to an archive that holds its files, made the first time."""
    folder = archive.with_suffix("")
    with write_once(folder) as partial_folder:
        if partial_folder is not None:
            try:
                with zipfile.ZipFile(archive) as content, unpacking(archive):
                    size = sum(member.file_size for member in content.infolist())
                    check_room(f"data.path={archive}: unpacked, it", archive.parent, size)
                    content.extractall(partial_folder)
            except (zipfile.BadZipFile, zlib.error) as error:
                raise ValueError(
                    f"{archive}: a damaged archive ({error}){page_hint(archive)}: fetch it again"
                ) from None
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
        options["hub"], files, records = [passages, asked], (), partial(hub_json, asked)
        documents = partial(_hub_passages, passages)
        queries = partial(_hub_queries, asked)
    else:
        places = (path, path / topic / split, path / "lotte" / topic / split)
        folder = next((place for place in places if find(place, "collection.tsv")), places[1])
        names = ("collection.tsv", f"questions.{kind}.tsv", f"qas.{kind}.jsonl")
        files = tuple(needed(folder, name) for name in names)
        documents = partial(table_documents, files[0], ("id", "text"))
        queries, records = partial(trec.queries, files[1:2]), partial(json_lines, files[2])
    return Layout(
        name=f"lotte-{topic}-{kind}-{split}",
        files=files,
        options=options,
        documents=documents,
        queries=queries,
        judgements={split: partial(_lotte_judgements, records)},
    )


def _hub_passages(file: str) -> Iterator[Document]:
    for where, row in hub_json(file):
        yield Document(where, str(row["doc_id"]), "", row["text"])


def _hub_queries(file: str) -> Iterator[Query]:
    for where, row in hub_json(file):
        yield Query(where, str(row["qid"]), row["query"])


def _lotte_judgements(records: Rows) -> Iterator[Judgement]:
    for where, record in records():
        passages, deeper = record.get("answer_pids"), record.get("answers")
        if passages is None and isinstance(deeper, dict):  # as the hub's loader keeps them
            passages = deeper.get("answer_pids")
        if not isinstance(passages, list):
            raise ValueError(f'{where}: expected a list "answer_pids", got {passages!r:.60}')
        query = word(where, "qid", record)
        for passage in dict.fromkeys(map(str, passages)):  # some are there twice
            yield Judgement(where, query, passage, 1)


def _miracl(language: str, path: Path | None) -> Layout:
    if language == "judged":
        return _miracl_judged(path)
    if language not in MIRACL:
        raise ValueError(f"data.name=miracl/{language}: must be one of {', '.join(MIRACL)}, judged")
    options: dict[str, Any] = {"reader": "miracl/1", "language": language}
    if path is None:
        corpus = f"miracl/miracl-corpus/miracl-corpus-v1.0-{language}/docs-*.jsonl.gz"
        options["hub"] = [f"miracl/miracl/miracl-v1.0-{language}", corpus]
        passages, files = partial(hub_json, corpus), []
        tables = {
            split: [
                partial(hub_columns, f"miracl/miracl/{name}", columns)
                for name, columns in _miracl_names(language, split).items()
            ]
            for split in (("dev",) if language in _NOT_TRAINED else ("train", "dev"))
        }
    else:
        shards, found = _miracl_shards(language, path), _miracl_tables(language, path)
        files = [*shards, *(file for pair in found.values() for file in pair)]
        passages = partial(json_lines, *shards)
        tables = {
            split: [partial(rows, *table) for table in pair.items()]
            for split, pair in found.items()
        }
    return Layout(
        name=f"miracl-{language}",
        files=tuple(files),
        options=options,
        documents=partial(_miracl_documents, passages),
        queries=partial(_miracl_queries, [topics for topics, _ in tables.values()]),
        judgements={s: partial(_miracl_judgements, qrels) for s, (_, qrels) in tables.items()},
    )


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

    def documents() -> Iterator[Document]:
        judged = {row.document_id for rows in joined.judgements.values() for row in rows()}
        return (row for row in joined.documents() if row.id in judged)

    def irrelevant() -> Iterator[Ranked]:
        for where, query, document, grade in joined.judgements["train"]():
            if grade <= 0:
                yield Ranked(where, query, document, 0.0)

    options = {"reader": "miracl judged/2", **joined.options}
    return replace(joined, options=options, documents=documents, negatives={"judged": irrelevant})


def _miracl_names(language: str, split: str) -> dict[str, tuple[str, ...]]:
    """A split's topics and judgements, and their columns."""
    columns = {"topics": ("query_id", "query"), "qrels": ("query_id", "Q0", "docid", "relevance")}
    folder = f"miracl-v1.0-{language}"
    return {
        f"{folder}/{kind}/{kind}.{folder}-{split}.tsv": names for kind, names in columns.items()
    }


def _miracl_shards(language: str, path: Path) -> list[Path]:
    """The passages, in a folder of the language or of the hub's repository."""
    corpus = f"miracl-corpus-v1.0-{language}"
    places = (path / corpus, path / "miracl-corpus" / corpus)
    shards = [file for place in places for file in find_all(place, "docs-*.jsonl")]
    if not shards:
        raise FileNotFoundError(f"data.path={path}: {corpus}/docs-*.jsonl.gz are missing")
    return shards


def _miracl_tables(language: str, path: Path) -> dict[str, dict[Path, tuple[str, ...]]]:
    """The tables of each split and their columns; those of training may both be missing."""
    found = {}
    for split in ("train", "dev"):
        names = _miracl_names(language, split)
        files = {name: find(path, name, f"miracl/{name}") for name in names}
        missing = [name for name, file in files.items() if file is None]
        if missing and (split == "dev" or len(missing) == 1):
            raise FileNotFoundError(f"data.path={path}: the file {missing[0]} is missing")
        if not missing:
            found[split] = {file: names[name] for name, file in files.items()}
    return found


def _miracl_documents(passages: Rows) -> Iterator[Document]:
    found = (
        Document(where, *(string(where, key, record) for key in ("docid", "title", "text")))
        for where, record in passages()
    )
    return without_repeats(found, "documents")


def _miracl_queries(tables: Iterable[Rows]) -> Iterator[Query]:
    for table in tables:
        for where, row in table():
            yield Query(where, row["query_id"], row["query"])


def _miracl_judgements(qrels: Rows) -> Iterator[Judgement]:
    found = (
        Judgement(w, r["query_id"], r["docid"], integer(w, "relevance", r["relevance"]))
        for w, r in qrels()
    )
    return without_repeats(found, "judgements")


def _dpr(name: str, path: Path | None) -> Layout:
    if path is None or not name:
        raise ValueError(
            f"data.name=dpr/{name}: must be such as dpr/nq, and data.path=FOLDER one with "
            f"{entity_questions.PASSAGES} and …nq-dev.json"
        )
    return dpr.read(path, name)


def without_repeats(found: Iterable[_Row], what: str) -> Iterator[_Row]:
    """Each row once, of a download that holds some twice, word for word; says how many.

    A hash of each is remembered. Rows of one id that differ are left to the store, which refuses
    them.

    Args:
        what: they are, for the message.
    """
    seen: set[int] = set()
    repeated, first = 0, ""
    for row in found:
        key = hash(row[1:])
        if key in seen:
            repeated, first = repeated + 1, first or row.where
        else:
            seen.add(key)
            yield row
    if repeated:
        print(
            f"{first}: {repeated:,} {what}, from this line on, are there already, word for word, "
            "and are left out"
        )


FAMILIES = {
    "beir": _beir,
    "lotte": _lotte,
    "miracl": _miracl,
    "entity_questions": entity_questions.read,
    "dpr": _dpr,
}
