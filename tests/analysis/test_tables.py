import csv
import json
from math import nan

import pytest
from omegaconf import OmegaConf

from analysis.compare import compare
from analysis.tables.rows import (
    Cell,
    Table,
    escape_latex,
    escape_markdown,
    format_latex,
    format_markdown,
    read_rows,
    write_rows,
)

FOREIGN = '=HYPERLINK("http://x")|<script>alert(1)</script>[x](http://x)*'


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("t5_colbert (model.k=2)", "t5_colbert (model.k=2)"),
        ("0.6 [0.5, 0.7]", "0.6 [0.5, 0.7]"),
        ("p < 0.001 & more", "p < 0.001 & more"),
        ("a|b", r"a\|b"),
        ("<script>", r"\<script>"),
        ("&lt;b> **x** `y`", r"\&lt;b> \*\*x\*\* \`y\`"),
        ("[x](http://x)", r"[x]\(http://x)"),
        ("one\ntwo\x1b[1m", r"one two\\x1b[1m"),
    ],
)
def test_foreign_texts_are_mere_text_in_markdown(text, escaped):
    assert escape_markdown(text) == escaped


def test_the_best_are_bold_and_names_are_escaped():
    rows = [("a|b", [Cell("1", True), Cell("2")])]
    assert format_markdown(Table("head", ["x", "<b>"], rows)) == [
        "## head",
        "",
        r"| system | x | \<b> |",
        "|---|---:|---:|",
        r"| a\|b | **1** | 2 |",
    ]


def test_a_table_in_latex_is_the_same_table_and_its_texts_are_mere_text():
    rows = [("a_b", [Cell("1", True), Cell("+0.2 (p < 0.001) *")])]
    assert format_latex(Table("50% ± 1", ["x", "y"], rows)) == [
        r"\begin{table}",
        r"\centering",
        r"\caption{50\% $\pm$ 1}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"system & x & y \\",
        r"\midrule",
        r"a\_b & \textbf{1} & +0.2 (p $<$ 0.001) * \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    escaped = escape_latex("_&%#${}\\input~^")
    assert escaped == (r"\_\&\%\#\$\{\}\textbackslash{}input\textasciitilde{}\textasciicircum{}")


def test_no_text_of_a_csv_is_a_formula_and_numbers_stay(tmp_path):
    texts = ["=cmd()", "+cmd", "-2+3", "@cmd", "\tcmd", "-", "=", "-0.5", "+1.5e-3", "a=b", "'a"]
    rows = [{"name": text, "=x": -0.5, "none": None, "nan": nan} for text in texts]
    write_rows(rows, tmp_path / "rows.csv", none="null")
    header, *lines = csv.reader((tmp_path / "rows.csv").open(newline=""))
    assert header == ["name", "'=x", "none", "nan"]
    assert [line[0] for line in lines] == [f"'{text}" for text in texts[:5]] + texts[5:]
    assert all(line[1:] == ["-0.5", "null", ""] for line in lines)
    names = [row["name"] for row in read_rows(tmp_path / "rows.csv")]
    assert names == [*texts[:7], -0.5, 0.0015, *texts[9:]]


def test_a_foreign_system_runs_nowhere_in_a_comparison(tmp_path):
    for number in (1, 2):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        OmegaConf.save(OmegaConf.create({"seed": number}), folder / "config.yaml")
        record = {"system": FOREIGN, "collection": FOREIGN, "seed": number}
        (folder / "provenance.json").write_text(json.dumps(record))
        (folder / "metrics.json").write_text(json.dumps({"retrieve/mrr@10": 0.5}))
    compare([tmp_path], tmp_path)
    (row,) = csv.DictReader((tmp_path / "comparison.csv").open(newline=""))
    assert row["system"] == row["setting"] == f"'{FOREIGN}"
    for name in ("comparison.md", "comparison.html"):
        assert "<script>alert" not in (tmp_path / name).read_text().replace("\\<", "")
