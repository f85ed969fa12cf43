"""What is particular to a format: ids, orders of columns, splits, and files that may be missing."""

import json
from pathlib import Path

import pytest

from data_modules.collection import collect
from data_modules.formats.catalogue import read_layout
from data_modules.formats.readers import quoted_rows
from tests.data_modules.formats.miniature import (
    MINIATURES,
    TEXTS,
    TITLES,
    copied,
    found_pairs,
    pairs,
    rewritten,
)

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


# GenRet and NCI


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


def test_ncis_column_of_several_documents_and_its_abstracts(tmp_path):
    folder = copied("nci", tmp_path)
    (folder / "nq_dev_doc_newid.tsv").write_text("who?\t9\t3,4\t1-2\n")
    judged = [j[1:] for j in read_layout(folder).judgements["dev"]()]
    assert judged == [("9", "3", 1), ("9", "4", 1)]
    (folder / "NQ_doc_content.tsv").unlink()
    documents = list(read_layout(folder).documents())
    assert len(documents) == len({d.id for d in documents}) == 24, "each once"
    assert {d.id: d.text for d in documents}["3"].startswith(TITLES[3].lower())


# KILT and DPR


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


def test_kilts_pages_are_judged_by_their_id(tmp_path):
    folder = copied("kilt", tmp_path)
    (folder / "kilt.tsv").unlink()
    pages = [
        {"wikipedia_id": 700 + n, "wikipedia_title": TITLES[n], "text": [f"{TITLES[n]}\n", "One."]}
        for n in range(12)
    ]
    lines = "".join(json.dumps(page) + "\n" for page in pages)
    (folder / "kilt_knowledgesource.json").write_text(lines)
    layout = read_layout(folder)
    assert next(layout.documents())[1:] == ("700", TITLES[0], "One.")
    expected = {(text, document // 2) for text, document in pairs("train")}
    assert set(found_pairs(layout, "train")) == expected


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
