"""Files that name documents for queries: every line read, every broken one named."""

import math

import pytest

from data_modules.formats.named_pairs import RUN, SCORED_TRIPLE, TRIPLE, NamedPair, read_pairs

RUN_LINE = "q1 Q0 d1 1 2.5 bm25"


def written(path, *lines):
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_a_run_names_one_pair_a_line(tmp_path):
    file = written(tmp_path / "run.trec", RUN_LINE, "", "q1\tQ0\td2\t2\t-1e-3\tbm25")
    assert list(read_pairs(file, RUN)) == [("q1", "d1", 2.5, False), ("q1", "d2", -1e-3, False)]


def test_triples_name_two_pairs_a_line(tmp_path):
    file = written(tmp_path / "triples.tsv", "q1\td1\td2", "q2 d3 d1")
    found = list(read_pairs(file, TRIPLE, SCORED_TRIPLE))
    assert [(*pair[:2], pair.positive) for pair in found] == [
        ("q1", "d1", True),
        ("q1", "d2", False),
        ("q2", "d3", True),
        ("q2", "d1", False),
    ]
    assert all(math.isnan(pair.score) for pair in found)


@pytest.mark.parametrize("forms", [(TRIPLE, SCORED_TRIPLE), (RUN, SCORED_TRIPLE)])
def test_triples_with_scores(forms, tmp_path):
    file = written(tmp_path / "margins.tsv", "9.5\t-0.25\tq1\td1\td2")
    expected = [NamedPair("q1", "d1", 9.5, True), NamedPair("q1", "d2", -0.25, False)]
    assert list(read_pairs(file, *forms)) == expected


@pytest.mark.parametrize(
    ("lines", "forms", "message"),
    [
        ([RUN_LINE, "q1 Q0 d1 1 2.5"], (RUN,), ":2: expected 'query Q0 document rank score tag'"),
        ([RUN_LINE, "", "1 2 q d e"], (RUN, SCORED_TRIPLE), ":3: expected 'query Q0 .* tag', got"),
        (["q d e", RUN_LINE], (TRIPLE, SCORED_TRIPLE), ":2: expected 'query positive negative', g"),
        (["what is it", "d"], (RUN,), ":1: expected .*got 'what is it'"),
        (["q d"], (TRIPLE, SCORED_TRIPLE), ":1: expected 'query positive negative' or 'positive_s"),
        (["q Q0 d 1 high x"], (RUN,), ":1: expected a number as score, got 'high'"),
        (["q Q0 d 1 nan x"], (RUN,), ":1: expected a number as score, got 'nan'"),
        (["1 inf q d e"], (SCORED_TRIPLE,), ":1: expected a number as negative_score, got 'inf'"),
        (["", " "], (RUN, TRIPLE), "file.tsv: the file is empty; expected lines of 'query Q0.* or"),
    ],
)
def test_bad_lines_are_named(lines, forms, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        list(read_pairs(written(tmp_path / "file.tsv", *lines), *forms))
