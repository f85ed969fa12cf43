import csv

import pytest

from analysis.compare import compare
from analysis.runs.run_folder import Run
from analysis.tables.comparison import Group, Section
from analysis.tables.significance import compare_effectiveness
from gr_mvdr.evaluation.ranking import Ranking, write_qrels

QUERIES = [f"q{n}" for n in range(40)]


def run_of(folder, ranks, seed=1, queries=QUERIES):
    """A run in which the relevant document of each query stands at the given rank, 0 = nowhere."""
    folder.mkdir(parents=True)
    found = {}
    for query, rank in zip(queries, ranks, strict=True):
        others = {f"x{n}": -float(n) for n in range(1, 20)}
        found[query] = others | ({"gold": 0.5 - rank} if rank else {})
    Ranking(found).write(folder / "retrieve.trec", "run")
    write_qrels({query: {"gold": 1} for query in queries}, folder / "retrieve.qrels")
    return Run(folder, {}, {"system": folder.name, "collection": "fruit"}, {"retrieve/mrr@10": 1.0})


def section_of(tmp_path, **systems):
    groups = [Group([run_of(tmp_path / name, ranks)], name) for name, ranks in systems.items()]
    return Section("fruit", groups)


def test_means_and_intervals_over_queries(tmp_path):
    section = section_of(tmp_path, good=[1, 2] * 20, sure=[1] * 40)
    found = compare_effectiveness(section)
    mrr = found.statistics["good"]["retrieve/mrr@10"]
    assert mrr.mean == pytest.approx(0.75)
    # The mean of 40 values with deviation 1/4 has a standard error of 0.04.
    assert mrr.low == pytest.approx(0.75 - 1.96 * 0.04, abs=0.015)
    assert mrr.high == pytest.approx(0.75 + 1.96 * 0.04, abs=0.015)
    sure = found.statistics["sure"]["retrieve/mrr@10"]
    assert sure.low == sure.high == 1
    assert found.winners == {"retrieve/mrr@10": "sure"}  # both systems find all


def test_seeds_are_averaged_query_by_query(tmp_path):
    seeds = [run_of(tmp_path / "a", [1] * 40), run_of(tmp_path / "b", [2] * 40)]
    found = compare_effectiveness(Section("fruit", [Group(seeds, "both")]))
    assert found.statistics["both"]["retrieve/mrr@10"].mean == pytest.approx(0.75)


def test_every_pair_of_systems_is_tested_and_corrected(tmp_path):
    section = section_of(tmp_path, best=[1] * 40, near=[1] * 39 + [5], bad=[5] * 40)
    found = compare_effectiveness(section)
    mrr = {(d.first, d.second): d for d in found.differences if d.metric == "mrr@10"}
    assert set(mrr) == {("best", "near"), ("best", "bad"), ("near", "bad")}
    assert mrr["best", "bad"].difference == pytest.approx(0.8)
    assert mrr["best", "near"].p == 1 and mrr["best", "bad"].p < 0.001
    assert mrr["best", "bad"].corrected == pytest.approx(3 * mrr["best", "bad"].p)
    rows = {name: cells[0].text for name, cells in found.tabulate().rows}
    assert rows["best − near"] == "+0.020 (p = 1.000)"
    assert rows["best − bad"] == "+0.800 (p < 0.001) *"
    assert found.winners == {}  # the best is no better than the next one but by chance


def test_a_system_without_or_with_other_judgements_is_named(tmp_path):
    section = section_of(tmp_path, first=[1] * 40, second=[1] * 40)
    other = run_of(tmp_path / "other", [1] * 3, queries=["a", "b", "c"])
    section.groups.append(Group([other], "other"))
    (tmp_path / "second/retrieve.trec").unlink()
    found = compare_effectiveness(section)
    assert list(found.statistics) == ["first"] and not found.differences
    assert "second: no intervals and tests, a run has no retrieve.trec" in found.notes[0]
    assert "other: no intervals and tests, judged on other queries" in found.notes[1]


def test_the_page_the_terminal_and_files_hold_the_tests(tmp_path, capsys):
    for name, ranks in (("good", [1] * 40), ("bad", [3] * 40)):
        folder = run_of(tmp_path / name, ranks).path
        (folder / "config.yaml").write_text(f"seed: 1\nmodel: {{name: {name}}}\n")
        (folder / "provenance.json").write_text(f'{{"system": "{name}", "collection": "fruit"}}')
        mean = 1.0 if name == "good" else 1 / 3
        (folder / "metrics.json").write_text(f'{{"retrieve/mrr@10": {mean}}}')
    compare([tmp_path / "good", tmp_path / "bad"], tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out/comparison_tests.csv").open()))
    assert {row["metric"] for row in rows} == {"mrr@10", "recall@10"}
    assert float(rows[0]["difference"]) == pytest.approx(2 / 3)
    page = (tmp_path / "out/comparison.html").read_text()
    latex = (tmp_path / "out/comparison.tex").read_text()
    said, markdown = capsys.readouterr().out, (tmp_path / "out/comparison.md").read_text()
    assert "<td>+0.667 (p &lt; 0.001) *</td>" in page
    assert '<td class="best">1.000 [1.000, 1.000] *</td>' in page
    assert r"\textbf{1.000 [1.000, 1.000] *}" in latex and "+0.667 (p $<$ 0.001) * &" in latex
    assert "| good − bad | +0.667 (p < 0.001) \\* |" in markdown
    assert "| retrieve MRR@10 | **1.000 [1.000, 1.000] \\*** | 0.333" in markdown
    assert "good − bad  +0.667 (p < 0.001) *" in said
    test = "p: two-sided paired randomisation test over queries (10,000 permutations); "
    assert f"{test}*: p < 0.05." in said and test in markdown
    for form in (said, markdown, latex):  # what is bold and what has a star, in each form
        assert "Bold: the best value of a metric." in form
