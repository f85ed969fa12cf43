import pytest

from analysis.runs.tables import (
    BOLD,
    Cell,
    escape_latex,
    escape_markdown,
    format_latex,
    format_markdown,
    pivot,
    print_tables,
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


def test_a_table_escapes_its_texts_and_the_best_are_bold():
    table = pivot({("a|_", "x_"): Cell("1 ± 2", True), ("a|_", "y"): "<b>"}, "50%|")
    assert [line for line in format_markdown(table) if line] == [
        *(r"## 50%\|", r"| system | x_ | y |", "|---|---:|---:|", r"| a\|_ | **1 ± 2** | \<b> |")
    ]
    latex = format_latex(table)
    assert r"\caption{50\%$|$}" in latex and r"system & x\_ & y \\" in latex
    assert r"a$|$\_ & \textbf{1 $\pm$ 2} & $<$b$>$ \\" in latex
    assert escape_latex("_&%#${}\\input") == r"\_\&\%\#\$\{\}\textbackslash input"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_note_names_bold_where_it_is_drawn(capsys, monkeypatch, terminal):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    note = f"Mean. {BOLD}*: better."
    print_tables([pivot({("a", "x"): Cell("1", True)}, "h", note=note)])
    shown = capsys.readouterr().out
    assert ("Bold" in shown) == ("\x1b[1m" in shown) == terminal
    assert shown.rstrip().endswith("*: better.")
