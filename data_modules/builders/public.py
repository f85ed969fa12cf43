"""Public collections by name: beir/…, lotte/…, miracl/…, entity_questions, dpr/….

Without a path the files come through ir_datasets; with one they are read from a local copy of the
release.

- BEIR: a collection's folder, or one that holds it.
- LoTTE: passages of a topic's forums, asked by searches (GooAQ) or by forum titles.
- MIRACL: Wikipedia passages in 18 languages, with topics and judgements by native speakers. The
  Korean files repeat some passages and judgements: each counts once. miracl/judged: the judged
  passages of all languages that have training questions, to train one system on.
- EntityQuestions: see `entity_questions`; needs a local copy.
- DPR: its questions of a data set (nq, trivia, squad1), see `data_modules.formats.dpr`; likewise.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from data_modules.builders import entity_questions
from data_modules.builders.ir_datasets import ir_dataset
from data_modules.formats import dpr
from data_modules.formats.catalogue import FORMATS
from data_modules.formats.files import find, find_all, given_path, missing, needed
from data_modules.formats.layout import Document, Judgement, Layout, NamedPair, join_layouts
from data_modules.formats.readers import json_lines, table, word
from data_modules.formats.rows import documents, judgements, queries, query_table, table_documents
from gr_mvdr.options import check_choice

LOTTE_TOPICS = ("writing", "recreation", "science", "technology", "lifestyle", "pooled")
LOTTE_QUESTIONS = ("search", "forum")
LOTTE_SPLITS = ("test", "dev")  # of different passages: each is a collection of its own
MIRACL = "ar bn de en es fa fi fr hi id ja ko ru sw te th yo zh".split()
_NOT_TRAINED = ("de", "yo")  # MIRACL's surprise languages have no training topics


def public(name: str, path: str | None = None) -> Layout:
    """The collection of a name, in a local copy or through ir_datasets.

    Args:
        name: beir/NAME (such as beir/cqadupstack/android), lotte/TOPIC/search|forum[/dev|test],
            miracl/LANGUAGE, miracl/judged, entity_questions, dpr/nq|trivia|squad1.
        path: of the local copy, a folder; None = ir_datasets.

    Raises:
        FileNotFoundError: there is no such copy, or it lacks a file.
        ValueError: another name; (on reading) a download fails.
    """
    family, _, rest = name.partition("/")
    check_choice("data.name", family, FAMILIES)
    return FAMILIES[family](rest, given_path("path", path, "folder"))


def _beir(name: str, path: Path | None) -> Layout:
    if path is None:
        return replace(ir_dataset(f"beir/{name}"), name=name.replace("/", "-"))
    places = [path / name, path / Path(name).name, path]
    beir = FORMATS["beir"]
    return beir.read(next((place for place in places if beir.recognises(place)), path))


def _lotte(name: str, path: Path | None) -> Layout:
    topic, _, rest = name.partition("/")
    kind, _, split = rest.partition("/")
    split = split or "test"
    for value, known in ((topic, LOTTE_TOPICS), (kind, LOTTE_QUESTIONS), (split, LOTTE_SPLITS)):
        check_choice("data.name=lotte/TOPIC/QUESTIONS/SPLIT, of which", value, known)
    title = f"lotte-{topic}-{kind}-{split}"
    if path is None:
        return replace(ir_dataset(f"lotte/{topic}/{split}/{kind}", own=split), name=title)
    places = (path, path / topic / split, path / "lotte" / topic / split)
    folder = next((place for place in places if find(place, "collection.tsv")), places[1])
    names = ("collection.tsv", f"questions.{kind}.tsv", f"qas.{kind}.jsonl")
    files = tuple(needed(folder, name) for name in names)
    return Layout(
        name=title,
        files=files,
        options={"reader": "lotte/1", "topic": topic, "questions": kind, "split": split},
        documents=partial(table_documents, files[0], ("id", "text")),
        queries=partial(queries, query_table, files[1]),
        judgements={split: partial(_lotte_judgements, files[2])},
    )


def _lotte_judgements(file: Path) -> Iterator[Judgement]:
    for where, record in json_lines(file):
        passages = record.get("answer_pids")
        if not isinstance(passages, list):
            raise ValueError(f'{where}: expected a list "answer_pids", got {passages!r:.60}')
        for passage in passages:
            yield Judgement(where, word(where, "qid", record), str(passage), 1)


def _miracl(language: str, path: Path | None) -> Layout:
    if language == "judged":
        return _miracl_judged(path)
    check_choice("data.name=miracl/LANGUAGE: LANGUAGE", language, [*MIRACL, "judged"])
    if path is None:
        return ir_dataset(f"miracl/{language}")
    folder, corpus = f"miracl-v1.0-{language}", f"miracl-corpus-v1.0-{language}/docs-*.jsonl"
    shards = find_all(path, corpus, f"miracl-corpus/{corpus}")
    if not shards:
        raise FileNotFoundError(f"data.path={path}: {corpus}.gz are missing")
    files: dict[str, list[Path]] = {}
    for split in ("train", "dev"):
        names = [f"{folder}/{kind}/{kind}.{folder}-{split}.tsv" for kind in ("topics", "qrels")]
        found = {name: find(path, name, f"miracl/{name}") for name in names}
        if split == "train" and not any(found.values()):
            continue
        if lacking := [name for name, file in found.items() if file is None]:
            raise missing(path, *lacking)
        files[split] = [file for file in found.values() if file]
    topics = partial(table, columns=("query_id", "query"))
    qrels = partial(table, columns=("query_id", "Q0", "docid", "relevance"))
    judged = partial(judgements, qrels, query="query_id", document="docid", grade="relevance")
    return Layout(
        name=f"miracl-{language}",
        files=(*shards, *(file for both in files.values() for file in both)),
        options={"reader": "miracl/1", "language": language},
        documents=partial(documents, json_lines, *shards, id="docid", text="text", title="title"),
        queries=partial(queries, topics, *(asked for asked, _ in files.values()), id="query_id"),
        judgements={split: partial(judged, file) for split, (_, file) in files.items()},
    )


def _miracl_judged(path: Path | None) -> Layout:
    """The judged passages of all languages (of a local copy: those that it has) with their topics.

    Ids begin with the language; passages judged irrelevant to training topics are the negatives
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
