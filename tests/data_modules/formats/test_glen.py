import pytest

from data_modules.formats.registry import read_layout
from tests.data_modules.formats.miniature import (
    MINIATURES,
    assert_refused,
    copied,
    found_pairs,
    pairs,
    rewritten,
)

DEV = "GTQ_NQ_dev.tsv"
SEEN = "GTQ_NQ_dev_seen.tsv"


def test_ids():
    layout = read_layout(MINIATURES / "glen")
    assert [document.id for document in layout.documents()] == [str(n) for n in range(24)]
    queries = {query.id: query.text for query in layout.queries()}
    assert "train-2" in queries and "train-1" not in queries, "the header is line 1"
    assert len(queries) == 34, "the query with two documents is two queries"
    of_dev = {j.query_id for j in layout.judgements["dev"]()}
    seen, unseen = (
        {j.query_id for j in layout.judgements[f"dev_{p}"]()} for p in ("seen", "unseen")
    )
    assert seen | unseen == of_dev and not seen & unseen


def test_the_first_words_where_there_is_no_content(tmp_path):
    folder = copied("glen", tmp_path)
    (folder / "DOC_NQ_title+content.tsv").unlink()
    layout = read_layout(folder)
    assert all(len(document.text.split()) <= 64 for document in layout.documents())
    assert found_pairs(layout, "dev") == pairs("dev")


def test_columns_are_known_by_the_header(tmp_path):
    folder = copied("glen", tmp_path)

    def turned(text: str) -> str:
        rows = [line.rpartition("\t") for line in text.splitlines()]
        return "".join(f"{old}\t{n}\t{query}\n" for n, (query, _, old) in enumerate(rows)).replace(
            "oldid\t0\tquery", "oldid\tqueryid\tquery"
        )

    rewritten(folder / DEV, turned)
    assert found_pairs(read_layout(folder), "dev") == pairs("dev")


def test_without_the_whole_split_its_parts_are_splits(tmp_path):
    folder = copied("glen", tmp_path)
    (folder / DEV).unlink()
    layout = read_layout(folder)
    assert sorted(layout.judgements) == ["dev_seen", "dev_unseen", "train"]
    assert found_pairs(layout, "dev_seen") == pairs("dev_seen")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            DEV,
            lambda t: t.replace("oldid", "docid"),
            r":1: expected a header .*oldid is missing in",
        ),
        (DEV, "", r":1: expected a header with the columns query, oldid"),
        (DEV, lambda t: t + "a\tb\tc\n", r":16: expected 2 columns .*got 3"),
        (DEV, lambda t: t + '"a\t3\n', r":16: expected texts in quotes"),
        (SEEN, lambda t: t + "new?\t3\n", r":10: the query 'new\?' is not in"),
        ("DOC_NQ_title+content.tsv", "oldid\ttext\n1\tx\n", r":2: expected a column query"),
    ],
)
def test_a_broken_line_is_named(file, content, message, tmp_path):
    assert_refused(copied("glen", tmp_path), file, content, message)


def test_two_sets_and_missing_files_are_named(tmp_path):
    folder = copied("glen", tmp_path)
    (folder / "GTQ_MARCO_dev.tsv").write_text("query\toldid\n")
    with pytest.raises(ValueError, match=r"the queries of one set, .* found MARCO, NQ"):
        read_layout(folder)
    (folder / "GTQ_MARCO_dev.tsv").unlink()
    for file in folder.glob("DOC_*"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match=r"DOC_NQ_title\+content\.tsv is missing"):
        read_layout(folder)
