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

TRAIN = "mini_DSI_train_data.json"


def test_ids():
    layout = read_layout(MINIATURES / "dsi_qg")
    assert [document.id for document in layout.documents()] == [str(n) for n in range(24)]
    ids = [query.id for query in layout.queries()]
    assert ids[:2] == ["train-2", "train-4"] and ids[-1] == "dev-14" and len(set(ids)) == 34
    asked = [j.document_id for j in layout.judgements["train"]()]
    assert asked.count("2") == 2, "two questions of one passage"


@pytest.mark.parametrize("titled", [True, False])
def test_documents_of_a_table(titled, tmp_path):
    folder = copied("dsi_qg", tmp_path)
    rows = (f"{n}\t{TEXTS[n]}" + f"\t{TITLES[n]}" * titled + "\n" for n in range(24))
    (folder / "mini_corpus.tsv").write_text("".join(rows))
    layout = read_layout(folder)
    assert [d[1:] for d in layout.documents()][5] == ("5", TITLES[5] * titled, TEXTS[5])
    assert found_pairs(layout, "dev") == pairs("dev")


def test_a_table_in_another_order_is_refused(tmp_path):
    rows = (f"{n}\t{TITLES[n]}\t{TEXTS[n]}\n" for n in range(24))
    message = r"mini_corpus\.tsv:1: expected the columns id text tit"
    assert_refused(copied("dsi_qg", tmp_path), "mini_corpus.tsv", "".join(rows), message)


def test_a_passage_twice_is_refused(tmp_path):
    def stored(folder):
        collect(read_layout(folder), tmp_path / "store")

    folder = copied("dsi_qg", tmp_path)
    message = r":45: the document '0' is already at .*json:1"
    assert_refused(folder, TRAIN, lambda t: t + t.splitlines()[0], message, stored)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"text_id": 3, "text": "who?"}, r":45: expected a text that begins with 'Passage: ' or"),
        ({"text_id": 3}, r':45: expected a string "text", got null'),
        (
            {"text_id": [3], "text": "Question: who?"},
            r':45: expected a string "text_id", got \[3\]',
        ),
        ([3], r":45: expected a JSON object"),
    ],
)
def test_a_broken_line_is_named(line, message, tmp_path):
    assert_refused(copied("dsi_qg", tmp_path), TRAIN, lambda t: t + json.dumps(line), message)


def test_two_sets_are_named(tmp_path):
    folder = copied("dsi_qg", tmp_path)
    (folder / "other_DSI_train_data.json").write_text("{}")
    with pytest.raises(ValueError, match=r"expected one file \*_DSI_train_data\.json, found mini_"):
        read_layout(folder)
