"""What formats refuse: broken lines by their place, missing and doubled files by their name."""

import json
from functools import partial

import pytest

from data_modules.formats.catalogue import read_layout
from tests.data_modules.formats.miniature import TEXTS, TITLES, assert_refused, copied, read_all

JUDGED = "query-id\tcorpus-id\tscore\n"
SWAPPED = "".join(f"{n}\t{TITLES[n]}\t{TEXTS[n]}\n" for n in range(24))
NQ_DEV, NCI_DEV = "nq-dev-kilt.jsonl", "nq_dev_doc_newid.tsv"
TRIPLES, DPR = "triples.train.2.squeeze.tsv", "biencoder-mini-train.json"
ULTRON = "msmarco-docs-sents.top.300k.json.gz"
CONTEXTS = {"question": "?", "positive_ctxs": []}


def added(line):
    return lambda text: text + (line if isinstance(line, str) else json.dumps(line))


def replaced(old, new):
    return lambda text: text.replace(old, new)


BROKEN = [
    # JSON lines
    ("beir", "corpus.jsonl", '{"_id": "a", "text": "x"}\n{"_id": ', r":2: expected a JSON object"),
    ("ultron", ULTRON, replaced('"body"', '"Body"'), r':1: expected a string "body" or "contents"'),
    # Tables
    ("beir", "qrels/dev.tsv", "2\tb\t2\n", r":1: expected a header with the columns query-id, cor"),
    ("beir", "qrels/dev.tsv", JUDGED + "2\tb\t1.5\n", r":2: expected an integer .*'1\.5'"),
    ("wu", "collection.tsv", SWAPPED, r":1: expected the columns id text title; what is read as"),
    ("dpr", "psgs_w100.tsv", 'id\ttext\ttitle\n1\t"a "b" c"\tt\n', r":2: expected texts in quotes"),
    ("trec", "msmarco-docs.tsv.gz", "D1\tu\tt\n", r":1: expected 4 columns .*text\), got 3"),
    ("nci", NCI_DEV, "who?\t1\t3\n", r":1: expected the columns query, queryid, oldid, "),
    # Arrays
    ("genret", "corpus_lite.json", '["a", 3]', r': item 1: expected a string "abstract", got 3'),
    (
        "genret",
        "corpus_lite.json",
        '{"doc_id": 7, "abstract": "a"}',
        r":1: expected the documents in",
    ),
    ("genret", "dev.json.seen", '["0"]', r"expected an array of places in dev\.json"),
    ("dpr", DPR, json.dumps([CONTEXTS, {"question": "?"}]), r': item 1: expected {"question": …'),
    # Provenance, runs, triples and candidates
    (
        "kilt",
        NQ_DEV,
        added({"id": "x", "input": "?", "output": [{"provenance": [{"wikipedia_id": "1"}]}]}),
        r':14: expected a string "start_paragraph_id", got null',
    ),
    ("wu", TRIPLES, added("1000\t3\n"), r":21: expected 'query positive negative …' or"),
    ("wu", "candidate.json", '{"5000": "3"}', r'"5000": expected .*got "3"'),
]


@pytest.mark.parametrize(("format", "file", "content", "message"), BROKEN)
def test_a_broken_line_is_named_with_its_file_and_number(format, file, content, message, tmp_path):
    folder = copied(format, tmp_path)
    (folder / f"{file}.zip").unlink(missing_ok=True)
    assert_refused(folder, file, content, message, partial(read_all, format=format))


MISSING = [
    ("beir", ["queries.jsonl"], r"^data\.path=.*beir: the queries \(queries\.jsonl\) of the split"),
    ("dpr", ["*.json*"], r"the file …-train\.json with .* is missing"),
]


@pytest.mark.parametrize(("format", "names", "message"), MISSING)
def test_a_missing_file_is_named(format, names, message, tmp_path):
    folder = copied(format, tmp_path)
    for name in names:
        for file in folder.glob(name):
            file.unlink()
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        read_layout(folder, format)


DOUBLED = [
    ("kilt", "more.tsv", r"expected one file \*\.tsv, found kilt\.tsv, more\.tsv: name one of"),
    ("trec", "qrels.dev.tsv", r"msmarco-docdev-qrels\.tsv\.gz and qrels\.dev\.tsv are both of"),
]


@pytest.mark.parametrize(("format", "name", "message"), DOUBLED)
def test_two_files_of_one_kind_are_named(format, name, message, tmp_path):
    folder = copied(format, tmp_path)
    (folder / name).write_text("[]")
    with pytest.raises(ValueError, match=message):
        read_layout(folder)
