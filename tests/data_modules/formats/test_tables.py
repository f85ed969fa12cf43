import pytest

from data_modules.formats.tables import quoted_rows, rows


@pytest.fixture
def file(tmp_path):
    return tmp_path / "table.tsv"


def test_quotes_tabs_and_newlines_within_quotes(file):
    file.write_text('"a\tb"\t"c ""d"""\n"e\nf"\tg\nh\t\n')
    assert list(quoted_rows(file)) == [
        (f"{file}:1", ["a\tb", 'c "d"']),
        (f"{file}:2", ["e\nf", "g"]),
        (f"{file}:4", ["h", ""]),
    ]


def test_a_text_may_be_longer_than_csv_allows_by_itself(file):
    file.write_text("x" * 200_000 + "\ty\n")
    assert len(next(quoted_rows(file))[1][0]) == 200_000


@pytest.mark.parametrize("text", ['a\tb\n"c\nd\te', 'a\tb\n"c\nd" e\tf\n'])
def test_a_record_is_named_by_its_first_line(file, text):
    file.write_text(text)
    with pytest.raises(ValueError, match=r"table\.tsv:2: expected texts in quotes"):
        list(quoted_rows(file))


def test_more_columns_than_were_asked_for_are_allowed_with_a_header_only(file):
    file.write_text("n\ta\tb\n1\t2\t3\n")
    assert list(rows(file, ["b", "a"], header=True, quoted=True)) == [
        (f"{file}:2", {"n": "1", "a": "2", "b": "3"})
    ]
    with pytest.raises(
        ValueError, match=r":1: expected 2 columns separated by tabs \(b, a\), got 3"
    ):
        list(rows(file, ["b", "a"], quoted=True))
