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
    rewritten,
)

DEV = "nq-dev-kilt.jsonl"


def test_ids_are_kilts():
    layout = read_layout(MINIATURES / "kilt")
    assert [document.id for document in layout.documents()][:3] == ["700-1", "700-2", "701-1"]
    assert [query.id for query in layout.queries()][:2] == ["dev_0", "dev_1"]
    assert "test" not in layout.judgements, "its answers are not public"


def with_table(folder, lines) -> None:
    (folder / "kilt.tsv").unlink()
    (folder / "kilt_w100_title.tsv").write_text("".join(lines))


def test_passages_are_judged_by_the_title_of_their_page(tmp_path):
    folder = copied("kilt", tmp_path)
    rows = [
        f'{2 * n + part}\t"{half}"\t{TITLES[n]}\n'
        for n in range(24)
        for part, half in enumerate(("first half", TEXTS[n].replace('"', '""')))
    ]
    with_table(folder, ["id\ttext\ttitle\n", *rows])
    layout = read_layout(folder)
    documents = list(layout.documents())
    assert documents[7][1:] == ("7", TITLES[3], TEXTS[3])
    halves = {(text, 2 * n + part) for text, n in pairs("dev") for part in range(2)}
    assert set(found_pairs(layout, "dev")) == halves


def test_pages_are_judged_by_their_id(tmp_path):
    folder = copied("kilt", tmp_path)
    (folder / "kilt.tsv").unlink()
    pages = [
        {
            "wikipedia_id": 700 + n,
            "wikipedia_title": TITLES[n],
            "text": [f"{TITLES[n]}\n", "One.\n"],
        }
        for n in range(12)
    ]
    lines = "".join(json.dumps(page) + "\n" for page in pages)
    (folder / "kilt_knowledgesource.json").write_text(lines)
    layout = read_layout(folder)
    assert next(layout.documents())[1:] == ("700", TITLES[0], "One.")
    expected = {(text, document // 2) for text, document in pairs("train")}
    assert set(found_pairs(layout, "train")) == expected


def test_dprs_order_of_columns_is_refused(tmp_path):
    rows = (f"70{n}-1\t{text}\t{TITLES[n]}\n" for n, text in enumerate(TEXTS))
    message = r"kilt\.tsv:1: expected the columns id title text; what is"
    assert_refused(copied("kilt", tmp_path), "kilt.tsv", "".join(rows), message)


def test_provenance_outside_the_table_is_counted(tmp_path, capsys):
    folder = copied("kilt", tmp_path)
    rewritten(
        folder / DEV, lambda text: text.replace('"wikipedia_id": "703"', '"wikipedia_id": "9"')
    )
    layout = read_layout(folder)
    kept = [pair for pair in pairs("dev") if pair[1] // 2 != 3]
    assert found_pairs(layout, "dev") == kept
    assert "3 of 14 judgements, from this line on, are of unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"input": "who?"}, r':14: expected a string "id", got null'),
        ({"id": "x", "output": []}, r':14: expected a string "input", got null'),
        ({"id": "x", "input": "?", "output": [3]}, r':14: expected "output": \[{"provenance"'),
        ({"id": "x", "input": "?", "output": 3}, r':14: expected "output": \[{"provenance"'),
        (
            {"id": "x", "input": "?", "output": [{"provenance": ["1"]}]},
            r':14: expected "output": \[{"provenance"',
        ),
        (
            {"id": "x", "input": "?", "output": [{"provenance": [{"wikipedia_id": "1"}]}]},
            r':14: expected a string "start_paragraph_id", got null',
        ),
    ],
)
def test_a_broken_line_is_named(record, message, tmp_path):
    assert_refused(copied("kilt", tmp_path), DEV, lambda t: t + json.dumps(record), message)


def test_null_is_no_answer(tmp_path):
    folder = copied("kilt", tmp_path)
    records = [
        {"id": "x", "input": "?", "output": None},
        {"id": "y", "input": "?", "output": [{"answer": "z", "provenance": None}]},
    ]
    rewritten(folder / DEV, lambda text: text + "\n".join(map(json.dumps, records)))
    layout = read_layout(folder)
    assert found_pairs(layout, "dev") == pairs("dev")
    assert {"x", "y"} <= {query.id for query in layout.queries()}


def test_a_header_in_capitals_is_no_document(tmp_path):
    message = r"kilt\.tsv:1: expected a header with the columns id, title, text: .* is missing"
    assert_refused(copied("kilt", tmp_path), "kilt.tsv", lambda t: "ID\tTITLE\tTEXT\n" + t, message)


def test_a_tab_in_a_text_is_named(tmp_path):
    folder = copied("kilt", tmp_path)
    message = r"kilt\.tsv:1: expected 3 columns .*got 4"
    assert_refused(folder, "kilt.tsv", lambda t: t.replace("is a port", "is\ta port"), message)


def test_two_tasks_tables_and_missing_ones_are_named(tmp_path):
    folder = copied("kilt", tmp_path)
    (folder / "fever-dev-kilt.jsonl").write_text("{}")
    with pytest.raises(
        ValueError, match=r"fever-dev-kilt\.jsonl and nq-dev-kilt\.jsonl are both of"
    ):
        read_layout(folder)
    (folder / "fever-dev-kilt.jsonl").unlink()
    (folder / "more.tsv").write_text("")
    with pytest.raises(
        ValueError, match=r"expected one table of documents, found kilt\.tsv, more\."
    ):
        read_layout(folder)
    for file in folder.glob("*.tsv"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match=r"a table of documents \(\*\.tsv\) is missing"):
        read_layout(folder)
