"""Public collections by name: beir/…, lotte/…, miracl/…, entity_questions, dpr/…; ir_datasets' ids.

BEIR, LoTTE and MIRACL come through ir_datasets, which downloads them; a local copy of a BEIR
collection, of EntityQuestions and of DPR's files is read from a folder.

- LoTTE: passages of a topic's forums, asked by searches (GooAQ) or by forum titles.
- MIRACL: Wikipedia passages in 18 languages, with topics and judgements by native speakers. The
  Korean files repeat some passages and judgements: each counts once. miracl/judged: the judged
  passages of all languages that have training questions, to train one system on.
- EntityQuestions: questions on the subjects of Wikipedia's articles, over DPR's passages.
- DPR: its questions of a data set (nq, trivia, squad1), see `data_modules.formats.dpr`.
- An id of ir_datasets is the documents; its splits are the ids below it that have queries and
  judgements. What is downloaded goes where ir_datasets keeps its files.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from data_modules.formats import dpr
from data_modules.formats.catalogue import FORMATS
from data_modules.formats.layout import Document, Judgement, Layout, NamedPair, Query, join_layouts
from data_modules.formats.readers import array_items, find_all, given_path, needed, string
from data_modules.formats.rows import DPR, table_documents
from gr_mvdr.options import check_choice

LOTTE_TOPICS = ("writing", "recreation", "science", "technology", "lifestyle", "pooled")
LOTTE_QUESTIONS = ("search", "forum")
LOTTE_SPLITS = ("test", "dev")  # of different passages: each is a collection of its own
MIRACL = "ar bn de en es fa fi fr hi id ja ko ru sw te th yo zh".split()
_SPLITS = ("train", "dev", "test")
_WORD = re.compile(r"[\w\u0300-\u036f]+|[^\w\s]")  # letters with their accents, or one sign
_QUALIFIER = re.compile(r"\s*\([^()]*\)$")  # of a title: "Mercury (planet)"
OWN = "test"  # what the split of an id of ir_datasets is called that has judgements itself
_NOT_TRAINED = ("de", "yo")  # MIRACL's surprise languages have no training topics


def public(name: str, path: str | None = None) -> Layout:
    """The collection of a name.

    Args:
        name: beir/NAME (such as beir/cqadupstack/android), lotte/TOPIC/search|forum[/dev|test],
            miracl/LANGUAGE, miracl/judged, entity_questions, dpr/nq|trivia|squad1.
        path: a folder with the files of beir/NAME, entity_questions or dpr/….

    Raises:
        FileNotFoundError: there is no such folder, or it lacks a file.
        ValueError: another name; (on reading) a download fails.
    """
    family, _, rest = name.partition("/")
    check_choice("data.name", family, ("beir", "lotte", "miracl", "entity_questions", "dpr"))
    folder = given_path("path", path, "folder")
    if family == "entity_questions":
        return entity_questions(rest, folder)
    if family == "dpr":
        if folder is None or not rest:
            raise ValueError(
                f"data.name={name}: must be such as dpr/nq, and data.path=FOLDER one with "
                f"{dpr.PASSAGES} and …nq-dev.json"
            )
        return dpr.read(folder, rest)
    if family == "beir":
        if folder is None:
            return replace(ir_dataset(name), name=rest.replace("/", "-"))
        within = folder / Path(rest).name
        return FORMATS["beir"].read(within if within.is_dir() else folder)
    if folder is not None:
        raise ValueError(f"data.path={path}: must be null, ir_datasets reads {name}")
    return _lotte(rest) if family == "lotte" else _miracl(rest)


def _lotte(name: str) -> Layout:
    topic, _, rest = name.partition("/")
    kind, _, split = rest.partition("/")
    split = split or "test"
    for value, known in ((topic, LOTTE_TOPICS), (kind, LOTTE_QUESTIONS), (split, LOTTE_SPLITS)):
        check_choice("data.name=lotte/TOPIC/QUESTIONS/SPLIT, of which", value, known)
    found = ir_dataset(f"lotte/{topic}/{split}/{kind}", own=split)
    return replace(found, name=f"lotte-{topic}-{kind}-{split}")


def _miracl(language: str) -> Layout:
    check_choice("data.name=miracl/LANGUAGE: LANGUAGE", language, [*MIRACL, "judged"])
    if language != "judged":
        return ir_dataset(f"miracl/{language}")
    trained = [language for language in MIRACL if language not in _NOT_TRAINED]
    joined = join_layouts("miracl-judged", {name: _miracl(name) for name in trained})

    def judged_documents() -> Iterator[Document]:
        judged = {row.document_id for rows in joined.judgements.values() for row in rows()}
        return (row for row in joined.documents() if row.id in judged)

    def irrelevant() -> Iterator[NamedPair]:
        """The passages that are judged irrelevant to a training topic: hard negatives."""
        for where, query, document, grade in joined.judgements["train"]():
            if grade <= 0:
                yield NamedPair(where, query, document, 0.0)

    options = {"reader": "miracl judged/2", **joined.options}
    return replace(
        joined, options=options, documents=judged_documents, negatives={"judged": irrelevant}
    )


# EntityQuestions


class _Asked(NamedTuple):
    where: str
    id: str
    question: str
    answers: list[str]  # in matched form
    subject: str  # in matched form, too


def entity_questions(name: str, path: Path | None) -> Layout:
    """EntityQuestions over the passages of a file in DPR's format.

    The data set has questions and answers, no judgements: its authors count a passage that contains
    an answer, whatever it is about. Here a passage is relevant if it contains an answer and comes
    from the article about the question's subject: judgements that can be written down.

    Args:
        name: must be empty.
        path: a folder with psgs_w100.tsv and the released ``dataset`` (train/P17.train.json, …).

    Raises:
        FileNotFoundError: files are missing.
        ValueError: another name, or no path: the hub does not have the passages.
    """
    if name:
        raise ValueError(f"data.name=entity_questions/{name}: must be entity_questions")
    if path is None:
        raise ValueError(
            f"data.path=null: entity_questions needs a folder with dataset/ and {dpr.PASSAGES}"
        )
    passages_file = needed(path, dpr.PASSAGES)
    folder = path / "dataset" if (path / "dataset").is_dir() else path
    found = {split: find_all(folder / split, f"*.{split}.json") for split in _SPLITS}
    found = {split: files for split, files in found.items() if files}
    if not found:
        raise FileNotFoundError(f"data.path={path}: dataset/test/P….test.json are missing")
    judged: dict[str, list[Judgement]] = {}

    def asked() -> Iterator[tuple[str, _Asked]]:
        for split, files in found.items():
            for file in files:
                yield from ((split, question) for question in _questions(file))

    def documents() -> Iterator[Document]:
        """The passages; one pass over them finds the judgements, too."""
        judged.update({split: [] for split in found})
        about: dict[str, list[tuple[str, _Asked]]] = {}
        for split, question in asked():
            about.setdefault(question.subject, []).append((split, question))
        for passage in table_documents(passages_file, DPR):
            asked_here = about.get(matched_form(_QUALIFIER.sub("", passage.title)), ())
            text = matched_form(passage.text) if asked_here else ""
            for split, question in asked_here:
                if any(answer in text for answer in question.answers):
                    row = Judgement(passage.where, question.id, passage.id, 1)
                    judged[split].append(row)
            yield passage

    return Layout(
        name="entity_questions",
        files=(passages_file, *(file for files in found.values() for file in files)),
        options={"reader": "entity_questions/1", "relevant": "subject's article, with an answer"},
        documents=documents,
        queries=lambda: (Query(q.where, q.id, q.question) for _, q in asked()),
        judgements={split: partial(lambda name: iter(judged[name]), split) for split in found},
    )


def _questions(file: Path) -> Iterator[_Asked]:
    """The questions of a relation; their subject is where they differ ("Where was … born?")."""
    records = list(array_items(file))
    for where, record in records:
        answers = record.get("answers") if isinstance(record, dict) else None
        if not isinstance(answers, list) or not all(isinstance(a, str) and a for a in answers):
            rule = '{"question": …, "answers": […]}'
            raise ValueError(f"{where}: expected {rule}, got {record!r:.60}")
        string(where, "question", record)
    texts = [matched_form(record["question"]) for _, record in records]
    before, after = _shared(texts), _shared([text[::-1] for text in texts])
    relation = file.name.split(".json")[0]
    for number, ((where, record), text) in enumerate(zip(records, texts, strict=True)):
        answers = [matched_form(answer) for answer in record["answers"]]
        subject = f" {text[before : len(text) - after].strip()} "
        yield _Asked(where, f"{relation}-{number}", record["question"], answers, subject)


def _shared(texts: list[str]) -> int:
    """Characters that all texts begin with, up to the last whole word."""
    shared, last = min(texts, default=""), max(texts, default="")
    while not last.startswith(shared):  # the texts between them share what these two share
        shared = shared[:-1]
    return shared.rfind(" ") + 1


def matched_form(text: str) -> str:
    """Words as DPR compares them, lower-cased and in decomposed Unicode, with blanks around."""
    words = _WORD.findall(unicodedata.normalize("NFD", text).lower())
    return f" {' '.join(words)} "


# ir_datasets


def ir_dataset(
    name: str,
    splits: Sequence[str] | None = None,
    fields: Sequence[str] | None = None,
    own: str = OWN,
) -> Layout:
    """The documents of an id, with the queries and judgements of those of its splits that are used.

    Args:
        name: the id.
        splits: that are read: "train" is the id NAME/train, "dev-small" is
            NAME/dev/small; "test" is the id itself where there is no NAME/test. None =
            those of train, dev and test that there are.
        fields: of a document, that make its text, in this order; "title" is its title. None = the
            title, and the default text of ir_datasets without it; all texts where it has none.
        own: the name of the split that is the id itself.

    Raises:
        ValueError: an unknown id, split or field; an id without documents or judgements; (on
            reading) files that cannot be fetched.
    """
    data = _load(name)
    if not data.has_docs():
        raise ValueError(f"data.name={name}: must be an id with documents, it has none")
    wanted = _find_splits(name, splits, own)
    titled, texts = _choose_fields(name, data.docs_cls(), fields)

    def documents() -> Iterator[Document]:
        for where, row in _rows(name, "docs", data.docs_iter):
            title = (row.title or "") if titled else ""
            if texts is None:
                text = row.default_text().removeprefix(title).strip()
            else:
                text = " ".join(filter(None, (getattr(row, field) for field in texts)))
            yield Document(where, row.doc_id, title, text)

    def queries() -> Iterator[Query]:
        for id in wanted.values():
            for where, row in _rows(id, "queries", _load(id).queries_iter):
                text = row.default_text() if hasattr(row, "default_text") else row[1]
                yield Query(where, row.query_id, text)

    def judgements(id: str) -> Iterator[Judgement]:
        for where, row in _rows(id, "qrels", _load(id).qrels_iter):
            yield Judgement(where, row.query_id, row.doc_id, int(row.relevance))

    return Layout(
        name=name.replace("/", "-"),
        files=(),
        options={"reader": "ir_datasets/1", "id": name, "splits": wanted, "fields": fields},
        documents=documents,
        queries=queries,
        judgements={split: partial(judgements, id) for split, id in wanted.items()},
    )


def _load(name: str) -> Any:
    try:
        import ir_datasets
    except ImportError:
        raise ValueError(
            f"data.name={name}: needs ir_datasets: pip install 'gr-mvdr[ir_datasets]'"
        ) from None
    try:
        return ir_datasets.load(name)
    except KeyError:
        raise ValueError(
            f"data.name={name}: must be an id of ir_datasets, see ir-datasets.com"
        ) from None


def _find_splits(name: str, asked: Sequence[str] | None, own: str) -> dict[str, str]:
    """Split → id, of the splits that are asked for."""
    import ir_datasets

    below = [id for id in ir_datasets.registry if id.startswith(f"{name}/")]
    known = {id[len(name) + 1 :].replace("/", "-"): id for id in below}
    known = {s: id for s, id in ({own: name} | known).items() if _is_judged(_load(id))}
    if not known:
        raise ValueError(f"data.name={name}: must be an id with judged queries, it has none")
    if asked is None:
        return {split: known[split] for split in ("train", "dev", "test") if split in known}
    for split in asked:
        check_choice(f"data.name={name}: the split", split, known)
    return {split: known[split] for split in asked}


def _is_judged(data: Any) -> bool:
    return data.has_queries() and data.has_qrels()


def _choose_fields(
    name: str, kind: Any, fields: Sequence[str] | None
) -> tuple[bool, list[str] | None]:
    """Whether documents have a title, and their other fields; None = the default text."""
    texts = [n for n in kind._fields if n != "doc_id" and kind.__annotations__.get(n) is str]
    if fields is None and hasattr(kind, "default_text"):
        return "title" in texts, None
    chosen = texts if fields is None else fields
    if unknown := [field for field in chosen if field not in texts]:
        raise ValueError(
            f"data.fields={list(chosen)}: {unknown[0]} must be one of {', '.join(texts)}, the "
            f"texts of {name}"
        )
    return "title" in chosen, [field for field in chosen if field != "title"]


def _rows(id: str, kind: str, rows: Callable[[], Iterable[Any]]) -> Iterator[tuple[str, Any]]:
    """(``id/kind:number``, row) of what ir_datasets iterates over."""
    try:
        for number, row in enumerate(rows(), start=1):
            yield f"{id}/{kind}:{number}", row
    except Exception as error:  # of ir_datasets, of the network, or of a file's format
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        # No OSError: it would be taken for one of the collection that is being written.
        raise ValueError(
            f"data.name={id}: ir_datasets cannot read its {kind} ({reason})"
        ) from error
