import pytest

from data_modules.formats.registry import read_layout
from data_modules.formats.tables import quoted_rows
from tests.data_modules.formats.miniature import (
    MINIATURES,
    TITLES,
    assert_refused,
    copied,
    found_pairs,
    pairs,
)

DEV = "nq_dev_doc_newid.tsv"


def test_ids_are_the_files():
    layout = read_layout(MINIATURES / "nci")
    assert [document.id for document in layout.documents()] == [str(n) for n in range(24)]
    queries = list(layout.queries())
    assert queries[0].id == "700000000000500" and queries[1].id == "-700000000000501"
    assert len(queries) == 33, "the query with two documents is there twice"


@pytest.mark.parametrize(
    "columns",
    [
        lambda text, query, old, new: [text, query, old, new, new, new],
        lambda text, query, old, new: [text, query, "a title", new, old],
        lambda text, query, old, new: [text, query, new, old],
        lambda text, query, old, new: [text, query, old, "7"],
    ],
)
def test_the_orders_of_columns(columns, tmp_path):
    folder = copied("nci", tmp_path)
    for split in ("train", "dev"):
        file = folder / f"nq_{split}_doc_newid.tsv"
        rows = ["\t".join(columns(*row)) for _, row in quoted_rows(file)]
        file.write_text("\n".join(rows))
    layout = read_layout(folder)
    assert found_pairs(layout, "train") == pairs("train")
    assert found_pairs(layout, "dev") == pairs("dev")


def test_several_documents_in_a_column(tmp_path):
    folder = copied("nci", tmp_path)
    (folder / DEV).write_text("who?\t9\t3,4\t1-2\n")
    judged = [j[1:] for j in read_layout(folder).judgements["dev"]()]
    assert judged == [("9", "3", 1), ("9", "4", 1)]


def test_abstracts_where_there_is_no_content(tmp_path):
    folder = copied("nci", tmp_path)
    (folder / "NQ_doc_content.tsv").unlink()
    documents = list(read_layout(folder).documents())
    assert len(documents) == len({d.id for d in documents}) == 24, "each once"
    assert {d.id: d.text for d in documents}["3"].startswith(TITLES[3].lower())


def test_one_id_with_two_texts_is_left_to_the_store(tmp_path):
    folder = copied("nci", tmp_path)
    (folder / DEV).write_text("who?\t9\t3\t1-2\nwho?\t9\t4\t1-2\nwhere?\t9\t5\t1-2\n")
    dev = [query.text for query in read_layout(folder).queries() if query.id == "9"]
    assert dev == ["who?", "where?"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (DEV, lambda t: t + "who?\t1\n", r":15: expected 4 columns .*got 2"),
        (DEV, "who?\t1\tx\ty\n", r":1: expected the columns query, queryid, oldid, "),
        (DEV, "who?\t1\t3\n", r":1: expected the columns query, queryid, oldid, "),
        (DEV, "", r":1: expected the columns .*got nothing"),
        (DEV, lambda t: t * 8 + "who?\t1\tx\t1\n", r":113: expected a whole number \(oldid\) in"),
        (DEV, lambda t: '"who" is?\t1\t3\t1-2\n' + t, r":1: expected texts in quotes, "),
        ("NQ_doc_content.tsv", "0\t\t\ta\tb\t\t\ten\n", r":1: expected 7 columns .*got 8"),
    ],
)
def test_a_broken_line_is_named(file, content, message, tmp_path):
    assert_refused(copied("nci", tmp_path), file, content, message)


def test_missing_texts_are_named(tmp_path):
    folder = copied("nci", tmp_path)
    for name in ("NQ_doc_content.tsv", "nq_title_abs.tsv"):
        (folder / name).unlink()
    with pytest.raises(
        FileNotFoundError, match=r"NQ_doc_content\.tsv and nq_title_abs\.tsv are mis"
    ):
        read_layout(folder)
