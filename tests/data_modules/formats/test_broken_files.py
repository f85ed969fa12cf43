"""What formats refuse: broken lines by their place, missing and doubled files by their name."""

import json
from functools import partial

import pytest

from data_modules.formats.catalogue import read_layout
from tests.data_modules.formats.miniature import (
    MINIATURES,
    TEXTS,
    TITLES,
    assert_refused,
    copied,
    read_all,
)

JUDGED = "query-id\tcorpus-id\tscore\n"
SWAPPED = "".join(f"{n}\t{TITLES[n]}\t{TEXTS[n]}\n" for n in range(24))
NCI_DEV = "nq_dev_doc_newid.tsv"
TRIPLES, DPR = "triples.train.2.squeeze.tsv", "biencoder-mini-train.json"
CONTEXTS = {"question": "?", "positive_ctxs": []}


BROKEN = [
    # JSON lines
    ("beir", "corpus.jsonl", '{"_id": "a", "text": "x"}\n{"_id": ', r":2: expected a JSON object"),
    # Tables
    ("beir", "qrels/dev.tsv", "2\tb\t2\n", r":1: expected a header with the columns query-id, cor"),
    ("beir", "qrels/dev.tsv", JUDGED + "2\tb\t1.5\n", r":2: expected an integer .*'1\.5'"),
    ("wu", "collection.tsv", SWAPPED, r":1: expected the columns id text title; what is read as"),
    ("dpr", "psgs_w100.tsv", 'id\ttext\ttitle\n1\t"a "b" c"\tt\n', r":2: expected texts in quotes"),
    ("trec", "msmarco-docs.tsv.gz", "D1\tu\tt\n", r":1: expected 4 columns .*text\), got 3"),
    ("nci", NCI_DEV, "who?\t1\t3\n", r":1: expected the columns query, queryid, oldid, "),
    # Arrays
    ("dpr", DPR, json.dumps([CONTEXTS, {"question": "?"}]), r': item 1: expected {"question": …'),
    # Provenance, runs, triples and candidates
    (
        "wu",
        TRIPLES,
        lambda text: text + "1000\t3\n",
        r":21: expected 'query positive ",
    ),
    ("wu", "candidate.json", '{"5000": "3"}', r'"5000": expected .*got "3"'),
]


@pytest.mark.parametrize(("format", "file", "content", "message"), BROKEN)
def test_a_broken_line_is_named_with_its_file_and_number(format, file, content, message, tmp_path):
    folder = copied(format, tmp_path)
    (folder / f"{file}.zip").unlink(missing_ok=True)
    assert_refused(folder, file, content, message, partial(read_all, format=format))


def test_missing_doubled_and_unknown_files_are_named(tmp_path):
    beir, trec = copied("beir", tmp_path), copied("trec", tmp_path)
    (beir / "queries.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"^data\.path=.*beir: the queries .* of the split"):
        read_layout(beir)
    (trec / "qrels.dev.tsv").write_text("[]")
    with pytest.raises(ValueError, match=r"dev-qrels\.tsv\.gz and qrels\.dev\.tsv are both of"):
        read_layout(trec)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"no known format in .*notes\.txt.*; name it with"):
        read_layout(tmp_path)
    with pytest.raises(ValueError, match=r"^data\.format=csv: must be one of beir, wu, .*trec"):
        read_layout(beir, "csv")
    for file in (MINIATURES / "nci").iterdir():
        (trec / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match=r"may be nci or trec: say data\.format="):
        read_layout(trec)
