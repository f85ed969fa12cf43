import gzip
import json
import zipfile
from pathlib import Path

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
    read_all,
)

TRAIN = "biencoder-mini-train.json"


def questions(folder) -> list[dict]:
    return json.loads((folder / TRAIN).read_text())


def without_table(tmp_path) -> Path:
    folder = copied("dpr", tmp_path)
    (folder / "psgs_w100.tsv.zip").unlink()
    return folder


def test_ids_and_negatives():
    layout = read_layout(MINIATURES / "dpr")
    assert [document.id for document in layout.documents()] == [str(n) for n in range(1, 25)]
    ids = [query.id for query in layout.queries()]
    assert ids[0] == "dev-0" and ids[-1] == "train-19"
    assert next(layout.negatives["negative_ctxs"]())[1:] == ("train-0", "6", 0.0)
    assert next(layout.negatives["hard_negative_ctxs"]())[1:] == ("train-0", "10", 0.0)


def test_without_a_table_the_contexts_are_the_documents(tmp_path):
    folder = without_table(tmp_path)
    collection = collect(read_layout(folder), tmp_path / "store")
    assert sorted(map(int, collection.documents["id"][:])) == list(range(1, 25)), "each once"
    rows = dict(zip(collection.documents["id"][:], collection.documents["text"][:], strict=True))
    assert rows["4"] == TEXTS[3] and rows["6"] == TEXTS[5]


def test_one_file_is_a_collection():
    layout = read_layout(MINIATURES / "dpr" / TRAIN)
    assert layout.name == "biencoder-mini-train" and list(layout.judgements) == ["train"]
    assert len(list(layout.judgements["train"]())) == 20


def test_contexts_without_ids_are_named_by_their_content(tmp_path):
    folder = without_table(tmp_path)
    (folder / "biencoder-mini-dev.json.gz").unlink()
    records = questions(folder)
    for record in records:
        for kind in ("positive_ctxs", "negative_ctxs", "hard_negative_ctxs"):
            for context in record[kind]:
                del context["passage_id"]
    (folder / TRAIN).write_text(json.dumps(records))
    layout = read_layout(folder)
    documents = list(layout.documents())
    assert all(document.id.startswith("ctx-") for document in documents)
    assert len({document.id for document in documents}) == len(documents) == 24
    texts = {d.id: d.text for d in documents}
    judged = sorted(texts[j.document_id] for j in layout.judgements["train"]())
    assert judged == sorted(TEXTS[number] for _, number in pairs("train"))


def test_a_question_without_an_answer_is_not_judged_and_a_context_counts_once(tmp_path):
    folder = copied("dpr", tmp_path)
    records = questions(folder)
    records[0]["positive_ctxs"] = []
    records[1]["positive_ctxs"] *= 2
    records[2].pop("negative_ctxs")
    (folder / TRAIN).write_text(json.dumps(records))
    collection = collect(read_layout(folder), tmp_path / "store")
    assert len(collection.qrels["train"]) == 19 and len(collection.queries) == 33


@pytest.mark.parametrize("order", [("id", "title", "text"), ("title", "text", "id")])
def test_a_header_may_name_the_columns_in_any_order(order, tmp_path):
    folder = without_table(tmp_path)
    values = {"title": TITLES, "text": [text.replace('"', '""') for text in TEXTS]}
    values |= {"text": [f'"{text}"' for text in values["text"]], "id": list(range(1, 25))}
    rows = ["\t".join(str(values[name][n]) for name in order) for n in range(24)]
    (folder / "psgs_w100.tsv").write_text("\n".join(["\t".join(order), *rows]))
    assert found_pairs(read_layout(folder), "train") == pairs("train")


def test_kilts_order_without_a_header_is_refused(tmp_path):
    rows = (f"{n + 1}\t{TITLES[n]}\t{TEXTS[n]}\n" for n in range(24))
    message = r"psgs_w100\.tsv:1: expected the columns id text title; w"
    assert_refused(without_table(tmp_path), "psgs_w100.tsv", "".join(rows), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'id\ttext\ttitle\n1\t"a "b" c"\tt\n',
            r":2: expected texts in quotes, quotes within them d",
        ),
        ("id\ttext\ttitle\n1\ta\tb\tt\n", r":2: expected 3 columns .*got 4"),
        (
            "id\ttext\n1\ta\n",
            r":1: expected a header with the columns id, title, text: title is mi",
        ),
    ],
)
def test_a_broken_table_is_named(text, message, tmp_path):
    assert_refused(without_table(tmp_path), "psgs_w100.tsv", text, message)


def test_a_quoted_text_may_hold_tabs_and_newlines(tmp_path):
    folder = without_table(tmp_path)
    rows = 'id\ttext\ttitle\r\n1\t"a\tb\r\n""c"""\tt\r\n2\td\tu\r\n'
    (folder / "psgs_w100.tsv").write_text(rows)
    documents = [document[1:] for document in read_layout(folder).documents()]
    assert documents == [("1", "t", 'a\tb\n"c"'), ("2", "u", "d")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("question"), r':1, item 1: expected a string "question", got null'),
        (lambda r: r.pop("positive_ctxs"), r':1, item 1: expected {"question": …, "positive_c'),
        (lambda r: r.update(negative_ctxs="x"), r':1, item 1: expected "negative_ctxs": \[{"tit'),
        (
            lambda r: r["positive_ctxs"][0].update(passage_id=[1]),
            r':1, item 1: expected a string "pa',
        ),
    ],
)
def test_a_broken_item_is_named(change, message, tmp_path):
    records = questions(MINIATURES / "dpr")
    change(records[1])
    assert_refused(copied("dpr", tmp_path), TRAIN, json.dumps(records), message)


def test_the_line_of_an_item_is_named(tmp_path):
    lines = (MINIATURES / "dpr" / TRAIN).read_text().splitlines(True)
    text = "".join([*lines[:300], "oops\n", *lines[300:]])
    assert_refused(copied("dpr", tmp_path), TRAIN, text, rf"{TRAIN}:301: expected JSON, but")


def test_two_files_of_a_split_and_missing_ones_are_named(tmp_path):
    folder = copied("dpr", tmp_path)
    (folder / "other-train.json").write_text("[]")
    with pytest.raises(
        ValueError, match=r"biencoder-mini-train\.json and other-train\.json are bot"
    ):
        read_layout(folder)
    for file in folder.glob("*.json*"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match=r"a file …-train\.json with .* is missing"):
        read_layout(folder)


def test_an_archive_of_several_files_is_refused(tmp_path):
    folder = copied("dpr", tmp_path)
    with zipfile.ZipFile(folder / "psgs_w100.tsv.zip", "a") as archive:
        archive.writestr("other.tsv", "")
    with pytest.raises(ValueError, match=r"expected one file in the archive, found 2"):
        read_all(folder)


def test_a_bad_archive_is_named(tmp_path):
    folder = copied("dpr", tmp_path)
    file = folder / "biencoder-mini-dev.json.gz"
    file.write_bytes(gzip.compress(b"[")[:4] + b"not an archive")
    with pytest.raises(ValueError, match=rf"{file.name}: a damaged archive|ends too early"):
        read_all(folder)
