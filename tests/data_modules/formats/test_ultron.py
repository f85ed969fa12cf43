import json

import pytest

from data_modules.formats.registry import read_layout
from data_modules.store import collect
from tests.data_modules.formats.miniature import (
    MINIATURES,
    TEXTS,
    TITLES,
    assert_refused,
    copied,
    found_pairs,
    pairs,
)

DOCUMENTS = "msmarco-docs-sents.top.300k.json.gz"
QRELS = "msmarco-docdev-qrels.tsv.gz"


def test_ids_are_the_files():
    layout = read_layout(MINIATURES / "ultron")
    assert [document.id for document in layout.documents()][:2] == ["D100", "D101"]
    assert {query.id for query in layout.queries()} >= {"1000", "5000"}


def test_judgements_of_other_documents_are_counted_and_left_out(tmp_path, capsys):
    collect(read_layout(MINIATURES / "ultron"), tmp_path)
    assert "1 of 15 judgements, from this line on, are of unknown" in capsys.readouterr().out


def test_judgements_of_another_collection_are_refused(tmp_path):
    message = r"none of the 15 judgements .*they are of another one"
    assert_refused(copied("ultron", tmp_path), QRELS, lambda t: t.replace("D1", "D7"), message)


def test_ddros_natural_questions(tmp_path):
    folder = tmp_path / "ddro"
    folder.mkdir()
    names = {"train": "nq_queries_train.tsv", "dev": "nq_queries_dev.tsv"}
    for split, name in names.items():
        ids = {text: str(number) for number, (text, _) in enumerate(pairs(split))}
        lines = [f"{number}\t{text}\n" for text, number in ids.items()]
        (folder / name).write_text("".join(lines).replace("\t", f"{split}\t"))
        rows = [f"{ids[text]}{split}\t0\t{document}\t1\n" for text, document in pairs(split)]
        (folder / name.replace("queries", "qrels")).write_text("".join(rows))
    records = [
        {"id": number, "url": "", "title": title, "contents": text, "doc_tac": "x"}
        for number, (title, text) in enumerate(zip(TITLES, TEXTS, strict=True))
    ]
    (folder / "nq-docs-sents.json").write_text("".join(json.dumps(r) + "\n" for r in records))
    layout = read_layout(folder)
    assert [d[1:] for d in layout.documents()][3] == ("3", TITLES[3], TEXTS[3])
    for split in names:
        assert found_pairs(layout, split) == pairs(split)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            DOCUMENTS,
            lambda t: t.replace('"body"', '"Body"', 1),
            r':1: expected a string "body", got',
        ),
        (DOCUMENTS, lambda t: t.replace('"docid"', '"d"', 1), r':1: expected a string "docid"'),
        (QRELS, "5000 0 D100\n", r":1: expected 'query 0 document grade'"),
        ("msmarco-docdev-queries.tsv.gz", "5000\ta\tb\n", r":1: expected 2 columns"),
    ],
)
def test_a_broken_line_is_named(file, content, message, tmp_path):
    assert_refused(copied("ultron", tmp_path), file, content, message)


def test_one_of_several_files_of_documents_is_named_by_the_path(tmp_path):
    folder = copied("ultron", tmp_path)
    (folder / "msmarco-docs-sents-all.json").write_text('{"docid": "D1", "body": "x"}\n')
    layout = read_layout(folder / DOCUMENTS)
    assert layout.name == "msmarco-docs-sents.top.300k"
    assert found_pairs(layout, "dev") == pairs("dev")
    (document,) = read_layout(folder / "msmarco-docs-sents-all.json").documents()
    assert document.id == "D1"


def test_missing_and_doubled_files_are_named(tmp_path):
    folder = copied("ultron", tmp_path)
    (folder / "msmarco-docdev-queries.tsv.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"of the split 'dev', which msmarco-docdev-qrels"):
        read_layout(folder)
    (folder / "msmarco-docs-sents-all.json").write_text("{}")
    message = r"expected one file \*docs-sents\*\.json, found .*: name one of them, data.path=.*all"
    with pytest.raises(ValueError, match=message):
        read_layout(folder)
    for file in folder.glob("*qrels*"):
        file.unlink()
    (folder / "msmarco-docs-sents-all.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"judgements \(\*qrels\*\.tsv\) missing"):
        read_layout(folder)
