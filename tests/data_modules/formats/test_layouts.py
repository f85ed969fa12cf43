"""What is particular to a format: ids, orders of columns, splits, and files that may be missing."""

import json
from pathlib import Path

import pytest

from data_modules.collection import collect
from data_modules.formats.catalogue import read_layout, read_layouts
from data_modules.formats.readers import quoted_rows
from tests.data_modules.formats.miniature import (
    MINIATURES,
    TEXTS,
    copied,
    found_pairs,
    pairs,
    rewritten,
)
from tests.runs import write_beir

DPR = "biencoder-mini-train.json"


def test_candidates_and_negatives():
    wu, dpr, trec = (read_layout(MINIATURES / format) for format in ("wu", "dpr", "trec"))
    (triples,) = wu.negatives.values()
    assert [row[1:4] for row in triples()][:3] == [
        ("1000", "5", 0.0),
        ("1000", "9", -1.0),
        ("1001", "6", 0.0),
    ]
    candidates = [row[1:4] for row in wu.candidates["dev"]()]
    assert candidates[:2] == [("5000", "9", 0.0), ("5000", "6", -1.0)] and len(candidates) == 52
    assert next(dpr.negatives["negative_ctxs"]())[1:4] == ("train-0", "6", 0.0)
    assert next(dpr.negatives["hard_negative_ctxs"]())[1:4] == ("train-0", "10", 0.0)
    assert list(trec.candidates) == ["dev"]
    candidates = [row[1:4] for row in trec.candidates["dev"]()]
    assert candidates[:2] == [("5000", "D109", -1.5), ("5000", "D106", -2.5)]


# Wu


def test_each_split_may_have_its_own_queries(tmp_path):
    folder = copied("wu", tmp_path)
    (folder / "queries.all.tsv").rename(folder / "queries.train.tsv")
    rewritten(folder / "queries.train.tsv", lambda text: "".join(text.splitlines(True)[:20]))
    assert found_pairs(read_layout(folder), "dev") == pairs("dev")
    rewritten(folder / "queries.train.tsv", lambda text: text + "5000\tonce more?\n")
    with pytest.raises(ValueError, match=r"another query has the id '5000'"):
        collect(read_layout(folder), tmp_path / "store")


def test_judgements_may_have_beirs_header_in_any_format(tmp_path):
    for format, name in (("wu", "qrel.dev.tsv"), ("trec", "qrels.dev.tsv")):
        folder = copied(format, tmp_path)
        before = found_pairs(read_layout(folder), "dev")
        rows = [(j.query_id, j.document_id) for j in read_layout(folder).judgements["dev"]()]
        for old in folder.glob("*dev*qrels*" if format == "trec" else name):
            old.unlink()
        lines = ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t1" for q, d in rows)]
        (folder / name).write_text("\n".join(lines))
        assert found_pairs(read_layout(folder), "dev") == before


# NCI


@pytest.mark.parametrize(
    "columns",
    [
        lambda text, query, old, new: [text, query, old, new, new, new],
        lambda text, query, old, new: [text, query, "a title", new, old],
        lambda text, query, old, new: [text, query, new, old],
        lambda text, query, old, new: [text, query, old, "7"],
    ],
)
def test_ncis_orders_of_columns(columns, tmp_path):
    folder = copied("nci", tmp_path)
    for split in ("train", "dev"):
        file = folder / f"nq_{split}_doc_newid.tsv"
        rows = ["\t".join(columns(*row)) for _, row in quoted_rows(file)]
        file.write_text("\n".join(rows))
    layout = read_layout(folder)
    assert found_pairs(layout, "train") == pairs("train")
    assert found_pairs(layout, "dev") == pairs("dev")


def test_ncis_column_of_several_documents(tmp_path):
    folder = copied("nci", tmp_path)
    (folder / "nq_dev_doc_newid.tsv").write_text("who?\t9\t3,4\t1-2\n")
    judged = [j[1:] for j in read_layout(folder).judgements["dev"]()]
    assert judged == [("9", "3", 1), ("9", "4", 1)]


def dpr_without_table(tmp_path) -> tuple[Path, list[dict]]:
    folder = copied("dpr", tmp_path)
    (folder / "psgs_w100.tsv.zip").unlink()
    return folder, json.loads((folder / DPR).read_text())


def test_without_a_table_dprs_contexts_are_the_documents(tmp_path):
    folder, records = dpr_without_table(tmp_path)
    documents = collect(read_layout(folder), tmp_path / "store").documents
    assert sorted(map(int, documents["id"][:])) == list(range(1, 25)), "each once"
    (folder / "biencoder-mini-dev.json.gz").unlink()
    for record in records:
        for kind in ("positive_ctxs", "negative_ctxs", "hard_negative_ctxs"):
            for context in record[kind]:
                del context["passage_id"]
    (folder / DPR).write_text(json.dumps(records))
    layout = read_layout(folder / DPR)
    assert layout.name == "biencoder-mini-train" and list(layout.judgements) == ["train"]
    texts = {document.id: document.text for document in layout.documents()}
    assert len(texts) == 24 and all(name.startswith("ctx-") for name in texts)
    judged = sorted(texts[j.document_id] for j in layout.judgements["train"]())
    assert judged == sorted(TEXTS[number] for _, number in pairs("train"))


def made(folder, texts, splits):
    """A folder in BEIR layout: document n and query n belong together in every split."""
    rows = [{"_id": str(n), "text": text} for n, text in enumerate(texts)]
    pairs = [(row["_id"], row["_id"]) for row in rows]
    return str(write_beir(folder, rows, rows, dict.fromkeys(splits, pairs)))


def test_several_folders_are_one_collection(tmp_path):
    one = made(tmp_path / "one", ["pear", "plum"], ["train", "test"])
    two = made(tmp_path / "two", ["oak"], ["train"])
    found = collect(read_layouts([one, two]), tmp_path / "store")
    assert found.name == "one+two"
    assert found.documents["id"][:] == found.queries["id"][:] == ["one/0", "one/1", "two/0"]
    assert found.documents["text"][:] == ["pear", "plum", "oak"]
    assert found.judgements("train")["two/0"] == {"two/0": 1} and len(found.qrels["test"]) == 2
    with pytest.raises(ValueError, match="must be folders of different names, got one, one"):
        read_layouts([one, one])
