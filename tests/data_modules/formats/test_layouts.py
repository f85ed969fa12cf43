"""What is particular to a format: ids, orders of columns, splits, and files that may be missing."""

import json
import shutil
from pathlib import Path

import pytest

from data_modules.formats.catalogue import read_layout
from data_modules.formats.readers import quoted_rows
from data_modules.store import collect
from tests.data_modules.formats.miniature import (
    MINIATURES,
    TEXTS,
    TITLES,
    assert_refused,
    copied,
    found_pairs,
    pairs,
    rewritten,
)

RUN = "msmarco-docdev-top100.gz"
DPR = "biencoder-mini-train.json"
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


# BEIR


def test_grades_and_sources_of_a_folder(tmp_path):
    folder = copied("beir", tmp_path)
    (folder / "qrels/dev.tsv").write_text("query-id\tcorpus-id\tscore\n7\t2\t2\n7\t1\t0\n")
    rewritten(folder / "queries.jsonl", lambda text: text + '{"_id": 7, "text": "who?"}\n')
    before = collect(read_layout(folder), tmp_path / "store")
    assert before.judgements("dev")["7"] == {"2": 2, "1": 0}
    assert {Path(file).name for file in before.sources} == {
        *("corpus.jsonl", "queries.jsonl", "train.tsv"),
        *("dev.tsv", "dev_seen.tsv", "dev_unseen.tsv"),
    }
    rewritten(folder / "queries.jsonl", lambda text: text.replace("who?", "when?"))
    after = collect(read_layout(folder), tmp_path / "store")
    assert after.folder != before.folder and "when?" in after.queries["text"][:]


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


# DSI-QG, Ultron and DDRO


def test_judgements_of_another_collection_are_refused(tmp_path):
    def stored(folder):
        collect(read_layout(folder), tmp_path / "store")

    message = r"none of the 15 judgements .* of this collection"
    folder, qrels = copied("ultron", tmp_path), "msmarco-docdev-qrels.tsv.gz"
    assert_refused(folder, qrels, lambda text: text.replace("D1", "D7"), message, stored)


def test_one_of_several_files_of_documents_is_named_by_the_path(tmp_path):
    folder = copied("ultron", tmp_path)
    (folder / "msmarco-docs-sents-all.json").write_text('{"docid": "D1", "body": "x"}\n')
    layout = read_layout(folder / "msmarco-docs-sents.top.300k.json.gz")
    assert layout.name == "msmarco-docs-sents.top.300k"
    assert len(list(layout.judgements["dev"]())) == 15
    (document,) = read_layout(folder / "msmarco-docs-sents-all.json").documents()
    assert document.id == "D1"


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


# TREC files


def test_runs_of_a_year(tmp_path):
    folder = copied("trec", tmp_path)
    for name in ("queries.tsv", "qrels.tsv"):
        year = "2019qrels-docs.txt" if name == "qrels.tsv" else f"msmarco-test2019-{name}"
        (folder / f"msmarco-docdev-{name}.gz").rename(folder / f"{year}.gz")
    shutil.copy(folder / RUN, folder / "coldev.run")
    (folder / RUN).rename(folder / "msmarco-doctest2019-top100.gz")
    (folder / "bm25.run").write_text("5000 Q0 D106 1 2.5 x\n")
    layout = read_layout(folder)
    assert list(layout.candidates) == ["2019"] and len(list(layout.candidates["2019"]())) == 52
    (folder / "2019.run").write_text("5000 Q0 D106 1 2.5 x\n")
    layout = read_layout(folder)
    assert len(list(layout.candidates["2019"]())) == 1, "the one that names just the split"
    assert [d.relevance for d in layout.judgements["2019"]()][:1] == [1]
