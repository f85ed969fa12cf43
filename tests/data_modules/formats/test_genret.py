import json

import pytest

from data_modules.formats.registry import read_layout
from tests.data_modules.formats.miniature import (
    MINIATURES,
    TEXTS,
    TITLES,
    assert_refused,
    copied,
    found_pairs,
    pairs,
)


def test_ids_are_places():
    layout = read_layout(MINIATURES / "genret")
    assert [document.id for document in layout.documents()] == [str(n) for n in range(24)]
    ids = [query.id for query in layout.queries()]
    assert ids[0] == "train-0" and ids[20] == "dev-0" and len(set(ids)) == len(ids) == 33
    judged = list(layout.judgements["dev"]())
    assert [j.document_id for j in judged if j.query_id == "dev-12"] == ["3", "7"], "both relevant"
    seen = {j.query_id for j in layout.judgements["dev_seen"]()}
    places = json.loads((MINIATURES / "genret/dev.json.seen").read_text())
    assert seen == {f"dev-{place}" for place in places}


def test_documents_as_lines(tmp_path):
    folder = copied("genret", tmp_path)
    records = [
        {"title": title, "abstract": text, **({"doc_id": number} if number % 2 else {})}
        for number, (title, text) in enumerate(zip(TITLES, TEXTS, strict=True))
    ]
    corpus = folder / "corpus_lite.json"
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records))
    layout = read_layout(folder)
    assert [d[1:] for d in layout.documents()][1] == ("1", TITLES[1], TEXTS[1])
    assert found_pairs(layout, "train") == pairs("train")
    records[4]["doc_id"] = 9
    content = "".join(json.dumps(record) + "\n" for record in records)
    message = r":5: expected the documents in the order .*doc_id 9 is at"
    assert_refused(folder, corpus.name, content, message)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("corpus_lite.json", '["a", 3]', r":1, item 1: expected a document's text, got 3"),
        ("train.json", '[["q", 1], ["q"]]', r":1, item 1: expected \[query, place\]"),
        ("train.json", '[["q", -1]]', r"item 0: expected \[query, place\]"),
        ("train.json", '[["q", "3"]]', r"item 0: expected \[query, place\]"),
        ("dev.json", '[\n["q" 1]]', r":2: expected JSON, but Expecting ','"),
        ("dev.json.seen", "[0, 99]", r"names place 99, but the last of dev\.json is 12"),
        ("dev.json.seen", '["0"]', r"expected an array of places in dev\.json"),
    ],
)
def test_a_broken_item_is_named(file, content, message, tmp_path):
    assert_refused(copied("genret", tmp_path), file, content, message)


def test_missing_files_are_named(tmp_path):
    folder = copied("genret", tmp_path)
    (folder / "corpus_lite.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"the file corpus_lite\.json is missing"):
        read_layout(folder, "genret")
