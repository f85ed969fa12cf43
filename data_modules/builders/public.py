"""Public collections by name: beir/…, lotte/…, miracl/…, entity_questions, dpr/….

BEIR, LoTTE and MIRACL come through ir_datasets, which downloads them; a local copy of a BEIR
collection, of EntityQuestions and of DPR's files is read from a folder.

- LoTTE: passages of a topic's forums, asked by searches (GooAQ) or by forum titles.
- MIRACL: Wikipedia passages in 18 languages, with topics and judgements by native speakers. The
  Korean files repeat some passages and judgements: each counts once. miracl/judged: the judged
  passages of all languages that have training questions, to train one system on.
- EntityQuestions: see `entity_questions`.
- DPR: its questions of a data set (nq, trivia, squad1), see `data_modules.formats.dpr`.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from data_modules.builders import entity_questions
from data_modules.builders.ir_datasets import ir_dataset
from data_modules.formats import dpr
from data_modules.formats.catalogue import FORMATS
from data_modules.formats.files import given_path
from data_modules.formats.layout import Document, Layout, NamedPair, join_layouts
from gr_mvdr.options import check_choice

LOTTE_TOPICS = ("writing", "recreation", "science", "technology", "lifestyle", "pooled")
LOTTE_QUESTIONS = ("search", "forum")
LOTTE_SPLITS = ("test", "dev")  # of different passages: each is a collection of its own
MIRACL = "ar bn de en es fa fi fr hi id ja ko ru sw te th yo zh".split()
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
        return entity_questions.read(rest, folder)
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
