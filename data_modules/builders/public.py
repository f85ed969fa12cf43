"""Public collections by name: beir/…, lotte/…, miracl/…, entity_questions, dpr/…; ir_datasets' ids.

ir_datasets downloads BEIR, LoTTE and MIRACL into its own folder. EntityQuestions, DPR's files and
local copies of BEIR collections are read from a folder.

- LoTTE: passages from the forums of a topic; the queries are searches (GooAQ) or forum titles.
- MIRACL: Wikipedia passages in 18 languages, with topics and judgements by native speakers. The
  Korean files repeat some passages and judgements: each counts once. miracl/judged joins the judged
  passages of all languages that have training questions, to train one system on them.
- EntityQuestions: questions about the subjects of Wikipedia articles, over DPR's passages.
- DPR: the questions of one data set (nq, trivia, squad1), see `data_modules.formats.dpr`.
- ir_datasets: an id names the documents; its splits are the ids below it that have queries and
  judgements.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

from data_modules.formats import dpr
from data_modules.formats.catalogue import FORMATS
from data_modules.formats.layout import Document, Judgement, Layout, NamedPair, Query, join_layouts
from data_modules.formats.readers import array_items, find_all, needed, string
from data_modules.formats.rows import DPR, table_documents
from gr_mvdr.options import check_choice, show
from gr_mvdr.texts import FIELDS

# Those with training topics: all but de and yo.
MIRACL = "ar bn en es fa fi fr hi id ja ko ru sw te th zh".split()
_SPLITS = ("train", "dev", "test")
_WORD = re.compile(r"[\w\u0300-\u036f]+|[^\w\s]")  # letters with their accents, or one sign
_QUALIFIER = re.compile(r"\s*\([^()]*\)$")  # the end of a title such as "Mercury (planet)"
OWN = "test"  # the split's name if the id of ir_datasets itself has the judgements


def public(name: str, path: str | None = None) -> Layout:
    """Returns the collection with this name.

    Args:
        name: beir/NAME (such as beir/cqadupstack/android), lotte/TOPIC/search|forum[/dev|test],
            miracl/LANGUAGE, miracl/judged, entity_questions, dpr/nq|trivia|squad1.
        path: a folder with the files of beir/NAME, entity_questions or dpr/….

    Raises:
        FileNotFoundError: there is no such folder, or it lacks a file.
        ValueError: the name is unknown, or the path is missing or must be null; (on reading) a
            download fails.
    """
    family, _, rest = name.partition("/")
    folder = Path(path).expanduser() if path else None
    if family in ("entity_questions", "dpr"):
        if folder is None:
            rule = f"{family} needs a folder with {dpr.PASSAGES} and the questions"
            raise ValueError(f"data.path=null: {rule}")
        return dpr.read(folder, rest) if family == "dpr" else entity_questions(folder)
    if family == "beir" and folder is not None:
        within = folder / Path(rest).name
        return FORMATS["beir"].read(within if within.is_dir() else folder)
    if folder is not None:
        raise ValueError(f"data.path={path}: must be null, ir_datasets reads {name}")
    if family == "lotte":
        topic, kind, split = [*rest.split("/"), "test", "test"][:3]
        layout = ir_dataset(f"lotte/{topic}/{split}/{kind}", own=split)
        return replace(layout, name=f"lotte-{topic}-{kind}-{split}")
    if name == "miracl/judged":
        return _judged_miracl()
    layout = ir_dataset(name)
    return replace(layout, name=layout.name.removeprefix("beir-"))


def _judged_miracl() -> Layout:
    languages = {language: ir_dataset(f"miracl/{language}") for language in MIRACL}
    joined = join_layouts("miracl-judged", languages)

    def judged_documents() -> Iterator[Document]:
        judged = {row.document_id for rows in joined.judgements.values() for row in rows()}
        return (row for row in joined.documents() if row.id in judged)

    def irrelevant() -> Iterator[NamedPair]:
        """Hard negatives: the passages that are judged irrelevant to a training topic."""
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
    answers: list[str]  # each in `matched_form`
    subject: str  # in `matched_form`


def entity_questions(path: Path) -> Layout:
    """EntityQuestions over the passages of a file in DPR's format.

    The data set has questions and answers but no judgements. Its authors count every passage that
    contains an answer, whatever the passage is about. Here a passage is relevant if it contains an
    answer and comes from the article about the question's subject: such judgements can be stored.

    Args:
        path: a folder with psgs_w100.tsv and the released ``dataset`` (train/P17.train.json, …).

    Raises:
        FileNotFoundError: files are missing.
    """
    passages_file = needed(path, dpr.PASSAGES)
    questions = {split: find_all(path / "dataset" / split, f"*.{split}.json") for split in _SPLITS}
    questions = {split: files for split, files in questions.items() if files}
    if not questions:
        raise FileNotFoundError(f"data.path={path}: dataset/test/P….test.json are missing")
    judged: dict[str, list[Judgement]] = {}

    def asked() -> Iterator[tuple[str, _Asked]]:
        for split, files in questions.items():
            for file in files:
                yield from ((split, question) for question in _questions(file))

    def documents() -> Iterator[Document]:
        """Yields the passages, and collects the judgements in the same pass."""
        judged.update({split: [] for split in questions})
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
        files=(passages_file, *(file for files in questions.values() for file in files)),
        options={"reader": "entity_questions/1", "relevant": "subject's article, with an answer"},
        documents=documents,
        queries=lambda: (Query(q.where, q.id, q.question) for _, q in asked()),
        judgements={split: partial(lambda name: iter(judged[name]), split) for split in questions},
    )


def _questions(file: Path) -> Iterator[_Asked]:
    """The questions of one relation; the part in which they differ is the subject.

    The questions of a relation share one wording, such as "Where was … born?".
    """
    records = list(array_items(file))
    for where, record in records:
        answers = record.get("answers") if isinstance(record, dict) else None
        if not isinstance(answers, list) or not all(isinstance(a, str) and a for a in answers):
            rule = '{"question": …, "answers": […]}'
            raise ValueError(f"{where}: expected {rule}, got {record!r:.60}")
        string(where, "question", record)
    texts = [matched_form(record["question"]) for _, record in records]
    before, after = _common_start(texts), _common_start([text[::-1] for text in texts])
    relation = file.name.split(".json")[0]
    for number, ((where, record), text) in enumerate(zip(records, texts, strict=True)):
        answers = [matched_form(answer) for answer in record["answers"]]
        subject = f" {text[before : len(text) - after].strip()} "
        yield _Asked(where, f"{relation}-{number}", record["question"], answers, subject)


def _common_start(texts: list[str]) -> int:
    """The length of the beginning that all texts share, up to the last whole word."""
    return commonprefix(texts).rfind(" ") + 1  # noqa: RUF071, texts are not paths


def matched_form(text: str) -> str:
    """The words of a text as DPR compares them: lower case, decomposed Unicode, blanks around."""
    words = _WORD.findall(unicodedata.normalize("NFD", text).lower())
    return f" {' '.join(words)} "


# ir_datasets


def ir_dataset(
    name: str,
    splits: Sequence[str] | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    own: str = OWN,
) -> Layout:
    """The documents of an id of ir_datasets, with the queries and judgements of some splits.

    Args:
        name: the id.
        splits: the splits to read: "train" is the id NAME/train, "dev-small" is NAME/dev/small,
            "test" is the id itself if there is no NAME/test; a missing "train" is left out. None =
            train, dev and test, as far as they exist.
        columns: title → a field of the documents, text → one field or several, which are joined.
            None = the title, and the default text of ir_datasets without the title; if there is no
            default text, all text fields.
        own: the name of the split that is the id itself.

    Raises:
        ValueError: an id, a split or a field is unknown; the id has no documents or no judgements;
            (on reading) files cannot be fetched.
    """
    data = _load(name)
    if not data.has_docs():
        raise ValueError(f"data.name={name}: must be an id with documents, it has none")
    wanted = _find_splits(name, splits, own)
    kind = data.docs_cls()
    known = [n for n in kind._fields if n != "doc_id" and kind.__annotations__.get(n) is str]
    default = {"title": "title"} if "title" in known else {}
    if not hasattr(kind, "default_text"):
        default |= {"text": [field for field in known if field != "title"]}
    chosen = default if columns is None else columns
    heading, texts = chosen.get("title"), chosen.get("text")
    texts = [texts] if isinstance(texts, str) else texts
    if unknown := [field for field in (heading, *(texts or ())) if field not in (None, *known)]:
        rule = f"{unknown[0]} must be one of {', '.join(known)}, the texts of {name}"
        raise ValueError(f"data.columns={show(dict(chosen))}: {rule}")

    read = {"doc_id", heading, *(FIELDS["text"] if texts is None else texts)}

    def documents() -> Iterator[Document]:
        for where, row in _rows(name, "docs", data.docs_iter):
            title = (getattr(row, heading) or "") if heading else ""
            if texts is None:
                text = row.default_text().removeprefix(title).strip()
            else:
                text = " ".join(filter(None, (getattr(row, field) for field in texts)))
            fields = {name: getattr(row, name) for name in row._fields if name not in read}
            yield Document(where, row.doc_id, title, text, fields)

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
        options={"reader": "ir_datasets/1", "id": name, "splits": wanted, "columns": columns},
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
    """Split → id of ir_datasets, for the requested splits."""
    import ir_datasets

    below = [id for id in ir_datasets.registry if id.startswith(f"{name}/")]
    known = {id[len(name) + 1 :].replace("/", "-"): id for id in below}
    data = {split: (id, _load(id)) for split, id in ({own: name} | known).items()}
    known = {s: id for s, (id, one) in data.items() if one.has_queries() and one.has_qrels()}
    if not known:
        raise ValueError(f"data.name={name}: must be an id with judged queries, it has none")
    if asked is None:
        return {split: known[split] for split in ("train", "dev", "test") if split in known}
    asked = [split for split in asked if split in known or split != "train"]
    for split in asked:
        check_choice(f"data.name={name}: the split", split, known)
    return {split: known[split] for split in asked}


def _rows(id: str, kind: str, rows: Callable[[], Iterable[Any]]) -> Iterator[tuple[str, Any]]:
    """Yields (``id/kind:number``, row) for each row of ir_datasets; numbers start at 1."""
    try:
        for number, row in enumerate(rows(), start=1):
            yield f"{id}/{kind}:{number}", row
    except Exception as error:  # raised by ir_datasets, the network or a file's format
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        # Not an OSError: that would read as a failure to write the collection.
        raise ValueError(
            f"data.name={id}: ir_datasets cannot read its {kind} ({reason})"
        ) from error
