"""What is particular to a format: ids, orders of columns, splits, and files that may be missing."""

import json

import pytest

from data_modules.collection import collect
from data_modules.formats.catalogue import read_layout
from tests.data_modules.formats.miniature import (
    MINIATURES,
    TEXTS,
    TITLES,
    copied,
    found_pairs,
    pairs,
    rewritten,
)

RUN = "msmarco-docdev-top100.gz"
TRIPLES = "triples.train.2.squeeze.tsv"


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


# GenRet, NCI and GLEN


def test_genrets_documents_as_lines(tmp_path):
    folder = copied("genret", tmp_path)
    records = [
        {"title": title, "abstract": text, **({"doc_id": number} if number % 2 else {})}
        for number, (title, text) in enumerate(zip(TITLES, TEXTS, strict=True))
    ]
    (folder / "corpus_lite.json").write_text("\n".join(map(json.dumps, records)))
    layout = read_layout(folder)
    assert [d[1:] for d in layout.documents()][1] == ("1", TITLES[1], TEXTS[1])
    assert found_pairs(layout, "train") == pairs("train")


def test_ncis_column_of_several_documents_and_its_abstracts(tmp_path):
    folder = copied("nci", tmp_path)
    (folder / "nq_dev_doc_newid.tsv").write_text("who?\t9\t3,4\t1-2\n")
    judged = [j[1:] for j in read_layout(folder).judgements["dev"]()]
    assert judged == [("9", "3", 1), ("9", "4", 1)]
    (folder / "NQ_doc_content.tsv").unlink()
    documents = list(read_layout(folder).documents())
    assert len(documents) == len({d.id for d in documents}) == 24, "each once"
    assert {d.id: d.text for d in documents}["3"].startswith(TITLES[3].lower())


# KILT


def test_kilts_passages_are_judged_by_the_title_of_their_page(tmp_path):
    folder = copied("kilt", tmp_path)
    rows = [
        f'{2 * n + part}\t"{half}"\t{TITLES[n]}\n'
        for n in range(24)
        for part, half in enumerate(("first half", TEXTS[n].replace('"', '""')))
    ]
    (folder / "kilt.tsv").unlink()
    (folder / "kilt_w100_title.tsv").write_text("".join(["id\ttext\ttitle\n", *rows]))
    layout = read_layout(folder)
    assert list(layout.documents())[7][1:] == ("7", TITLES[3], TEXTS[3])
    halves = {(text, 2 * n + part) for text, n in pairs("dev") for part in range(2)}
    assert set(found_pairs(layout, "dev")) == halves
