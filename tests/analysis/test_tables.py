import csv
from math import nan

import pytest
from analysis.tables.rows import (
    BOLD,
    Cell,
    Table,
    escape_latex,
    escape_markdown,
    format_latex,
    format_markdown,
    print_tables,
    read_rows,
    write_rows,
)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("t5_colbert (model.k=2)", "t5_colbert (model.k=2)"),
        ("a|b", r"a\|b"),
        ("&lt;b> **x** `y`", r"\&lt;b> \*\*x\*\* \`y\`"),
        ("[x](http://x)", r"[x]\(http://x)"),
        ("one\ntwo\x1b[1m", r"one two\\x1b[1m"),
    ],
)
def test_foreign_texts_are_mere_text_in_markdown(text, escaped):
    assert escape_markdown(text) == escaped


def test_foreign_texts_are_mere_text_in_latex():
    escaped = escape_latex("_&%#${}\\input~^")
    assert escaped == (r"\_\&\%\#\$\{\}\textbackslash{}input\textasciitilde{}\textasciicircum{}")


def test_a_table_escapes_its_texts_and_the_best_are_bold():
    table = Table("50%|", ["x_", "y"], [("a|_", [Cell("1", True), Cell("<b>")])])
    assert [line for line in format_markdown(table) if line] == [
        *(r"## 50%\|", r"| system | x_ | y |", "|---|---:|---:|", r"| a\|_ | **1** | \<b> |")
    ]
    latex = format_latex(table)
    assert r"\caption{50\%$|$}" in latex and r"system & x\_ & y \\" in latex
    assert r"a$|$\_ & \textbf{1} & $<$b$>$ \\" in latex


@pytest.mark.parametrize("terminal", [True, False])
def test_a_note_names_bold_where_it_is_drawn(capsys, monkeypatch, terminal):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    print_tables([Table("h", ["x"], [("a", [Cell("1", True)])], note=f"Mean. {BOLD}*: better.")])
    shown = capsys.readouterr().out
    assert ("Bold" in shown) == ("\x1b[1m" in shown) == terminal
    assert shown.rstrip().endswith("*: better.")


def test_no_text_of_a_csv_is_a_formula_and_numbers_stay(tmp_path):
    texts = ["=cmd()", "+cmd", "-2+3", "@cmd", "\tcmd", "-", "=", "-0.5", "+1.5e-3", "a=b", "'a"]
    rows = [{"name": text, "=x": -0.5, "none": None, "nan": nan} for text in texts]
    write_rows(rows, tmp_path / "rows.csv")
    header, *lines = csv.reader((tmp_path / "rows.csv").open(newline=""))
    assert header == ["name", "'=x", "none", "nan"]
    assert [line[0] for line in lines] == [f"'{text}" for text in texts[:5]] + texts[5:]
    assert all(line[1:] == ["-0.5", "", ""] for line in lines)
    names = [row["name"] for row in read_rows(tmp_path / "rows.csv")]
    assert names == [*texts[:7], -0.5, 0.0015, *texts[9:]]
