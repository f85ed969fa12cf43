"""A data set of ir_datasets, registered here: no download."""

from typing import NamedTuple

import pytest

from data_modules.builders.public import ir_dataset
from data_modules.sources import IrDatasetsDataModule

ir_datasets = pytest.importorskip("ir_datasets")
DOCUMENTS = [
    ("d1", "u1", "Apple", "A fruit."),
    ("d2", "u2", "", "Untitled."),
    ("d3", "u3", "T", ""),
]


class Page(NamedTuple):
    doc_id: str
    url: str
    title: str
    body: str
    size: int = 1

    def default_text(self):
        return f"{self.title} {self.body}"


class Plain(NamedTuple):
    doc_id: str
    headline: str
    body: str


def handler(what, base, kind, rows, fault=None):
    """What ir_datasets reads "docs", "queries" or "qrels" with."""

    def iterate(self):
        if fault:
            raise RuntimeError(fault)
        return (kind(*row) for row in rows)

    return type(what, (base,), {f"{what}_iter": iterate, f"{what}_cls": lambda self: kind})()


def docs(rows=DOCUMENTS, kind=Page, fault=None):
    return handler("docs", ir_datasets.formats.BaseDocs, kind, rows, fault)


def queries(*rows):
    formats = ir_datasets.formats
    return handler("queries", formats.BaseQueries, formats.GenericQuery, rows)


def qrels(*rows):
    formats = ir_datasets.formats
    rows = [(*row, "0") for row in rows]
    return handler("qrels", formats.BaseQrels, formats.TrecQrel, rows)


@pytest.fixture
def registered(monkeypatch):
    """Registers data sets: id → their parts."""

    def register(**parts):
        for name, handlers in parts.items():
            made = ir_datasets.Dataset(*handlers)
            monkeypatch.setitem(ir_datasets.registry._registered, name.replace("__", "/"), made)

    return register


@pytest.fixture
def tiny(registered):
    """Graded judgements, a query that two splits share, one without a relevant document."""
    asked = ("q1", "which fruit"), ("q2", "no title"), ("q3", "nothing")
    registered(
        tiny=(docs(),),
        tiny__train=(docs(), queries(asked[0]), qrels(("q1", "d1", 2), ("q1", "d2", 1))),
        tiny__dev__small=(docs(), queries(*asked), qrels(("q2", "d2", 1), ("q3", "d1", 0))),
        tiny__unjudged=(docs(), queries(*asked)),
    )
    return "tiny"


def test_an_id_is_read_with_the_splits_that_are_named(tiny, store, collected):
    collection = collected(ir_dataset(tiny, ["train", "dev-small"]), "keep")
    assert [tuple(row.values()) for row in collection.documents] == [
        ("d1", "Apple", "A fruit.", {"url": "u1", "size": 1}),
        ("d2", "", "Untitled.", {"url": "u2", "size": 1}),
        ("d3", "T", "", {"url": "u3", "size": 1}),
    ]
    assert collection.queries["id"][:] == ["q1", "q2", "q3"]  # q1 once
    assert collection.judgements("train") == {"q1": {"d1": 2, "d2": 1}}
    assert collection.unjudged(["dev-small"]) == {"dev-small: none relevant": 1}
    module = IrDatasetsDataModule(
        name=tiny, test_split=["dev-small"], columns={"title": "title", "text": "url"},
        store=str(store),
        tokenizer_options={"backbone": None, "path": None, "unit": "word", "vocab_size": 100,
                           "lowercase": True},
    )  # fmt: skip
    assert module.documents["text"][:] == ["Apple | u1", "u2", "T | u3"]
    test = module.evaluation
    assert test.judgements("dev-small", test.test_queries("dev-small"))["q2"] == {"d2": 1}


def test_an_id_with_judgements_of_its_own_is_a_test_split(registered, collected):
    body = docs([("d1", "head", "text"), ("d2", "", "other")], Plain)
    registered(own=(body, queries(("q", "x")), qrels(("q", "d2", 1))))
    collection = collected(ir_dataset("own", ["test"]))
    assert collection.documents["text"][:] == ["head text", "other"]  # all texts
    assert collection.judgements("test") == {"q": {"d2": 1}}
    assert [*collected(ir_dataset("own", ["train", "test"])).qrels] == ["test"]


def test_what_cannot_be_read_is_named(tiny, registered, collected, built):
    registered(
        lost=(
            docs(fault="All sources failed\nand more"),
            queries(("q", "x")),
            qrels(("q", "d", 1)),
        ),
        bare=(docs(),),
        asked=(queries(("q", "x")), qrels(("q", "d", 1))),
    )
    test = ["test"]
    for name, keys, columns, said in (
        ("no/such", test, None, "data.name=no/such: must be an id of ir_datasets"),
        ("bare", test, None, "data.name=bare: must be an id with judged queries"),
        ("asked", test, None, "data.name=asked: must be an id with documents"),
        (tiny, test, None, "data.name=tiny: the split=test: must be one of train, dev-small"),
        (
            "tiny",
            {},
            {"text": ["url", "size"]},
            "data.columns=.*: size must be one of url, title, body",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            ir_dataset(name, keys, columns)
    with pytest.raises(ValueError, match=r"^data.name=lost: .* cannot read its docs \(All sour"):
        collected(ir_dataset("lost", test))
    assert built() == []
