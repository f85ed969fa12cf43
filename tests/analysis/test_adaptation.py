import csv
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, stdev
from unittest import mock

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from analysis.studies.adaptation import Adaptation, Adapted, Fold, draw_adaptation
from analysis.studies.study import check_study, run_study
from gr_mvdr.alignment import Softmax, TopK, TopP
from gr_mvdr.evaluation.ranking import Ranking, evaluate
from gr_mvdr.scoring import Scoring

ADAPTATION = {"_target_": "analysis.studies.adaptation.Adaptation", "k": [1, 2], "p": [0.2, 0.5]}


def made(run, system, data, **changes):
    metrics = run_study(ADAPTATION | {"folds_of": [2]} | changes, system, data, run)
    with (run / "study.csv").open() as file:
        return metrics, {row["strategy"]: row for row in csv.DictReader(file)}


def folds(run):
    with (run / "study_folds.csv").open() as file:
        return list(csv.DictReader(file))


def with_ranks(system, ranks):
    """The system ranks q<n>'s document at ranks[k][n] under top-k; its own alignment is top-1."""

    def retrieve(encoded, k, scoring, **search):
        results = {}
        for query, _ in encoded:
            rank = ranks[scoring.alignment.k][int(query[1:])]
            others = [f"x{number}" for number in range(rank - 1)]
            names = [*others, query.replace("q", "d")]
            results[query] = {name: -place for place, name in enumerate(names)}
        return Ranking(results)

    system.retrieve_encoded, system.scoring = retrieve, Scoring(TopK(1), "alignment")
    return system


def test_the_grid_is_each_strategy_scored_by_itself(studied_system, studied_data, tmp_path):
    data = studied_data(6)
    _, rows = made(tmp_path, studied_system, data)
    grid = ["top-k=1", "top-k=2", "top-p=20.0%", "top-p=50.0%"]
    assert list(rows) == [*grid, "default", "oracle", "few-shot 2"]
    queries = data.test_queries("test")
    encoded = studied_system.encoded_queries(queries)
    candidates = {query: [f"d{n}" for n in range(12)] for query in queries["id"]}
    values = []
    for name, alignment in (
        ("top-k=1", TopK(1)),
        ("top-k=2", TopK(2)),
        ("top-p=20.0%", TopP(0.2)),
        ("top-p=50.0%", TopP(0.5)),
    ):
        scoring = Scoring(alignment, "alignment")
        found = studied_system.rerank_encoded(encoded, candidates, scoring)
        expected = evaluate(found, data.judgements("test", queries))
        values.append(expected["ndcg@10"])
        for metric, value in expected.items():
            assert float(rows[name][metric]) == pytest.approx(value, rel=1e-5), (name, metric)
    # 20 % of five tokens are one: the same as top-1; two are another alignment.
    assert values[0] == values[2] != values[1]
    assert rows["top-k=2"]["k"] == "2" and rows["top-p=50.0%"]["p"] == "0.5"
    # The system's own is MaxSim, which is top-1; the oracle knows the best for the collection.
    assert rows["default"]["ndcg@10"] == rows["top-k=1"]["ndcg@10"]
    best = max((rows[name] for name in grid), key=lambda row: float(row["ndcg@10"]))
    assert rows["oracle"]["recall@1"] == best["recall@1"] and not rows["oracle"]["k"]


def test_any_alignment_may_be_a_strategy(studied_system, studied_data, tmp_path):
    """The soft ones of aligner Table 13; the smallest ε is top-1."""
    part = {"_target_": "gr_mvdr.alignment.SoftTopK", "k": 1}
    parts = [part | {"epsilon": epsilon} for epsilon in (1e-6, 5.0)]
    parts.append({"_target_": "gr_mvdr.alignment.Softmax"})
    _, rows = made(tmp_path, studied_system, studied_data(6), k=[1], p=[], alignments=parts)
    soft = ["top-k=1 ε=1e-06", "top-k=1 ε=5", "Softmax(direction='document_to_query')"]
    assert list(rows)[:4] == ["top-k=1", *soft]
    assert rows["top-k=1 ε=5"]["epsilon"] == "5.0" and rows["top-k=1 ε=5"]["k"] == "1"
    found = [float(rows[name]["mrr@10"]) for name in ("top-k=1", *soft)]
    assert found[0] == pytest.approx(found[1]) != pytest.approx(found[2])


def test_every_fold_chooses_for_the_others(studied_system, studied_data, tmp_path):
    # 1 / log2(rank + 1): rank 1 is worth 1, rank 3 is worth 0.5. Two kinds of queries.
    ranks = {1: [1, 3, 1, 3, 1, 3, 3], 2: [3, 1, 3, 1, 3, 1, 1]}
    system, data = with_ranks(studied_system, ranks), studied_data(7)
    system.noise = system.noise.repeat(2, 1, 1)
    metrics, rows = made(tmp_path, system, data, p=[])
    order = np.random.default_rng(0).permutation(7)
    worth, rest, chosen = {1: 1.0, 3: 0.5}, [], []
    for start in (0, 2, 4):  # the seventh query fills no fold
        own = set(order[start : start + 2].tolist())
        means = {k: fmean(worth[ranks[k][n]] for n in own) for k in (1, 2)}
        best = 2 if means[2] > means[1] else 1
        chosen.append(f"top-k={best}")
        rest.append(fmean(worth[ranks[best][n]] for n in set(range(7)) - own))
    few = rows["few-shot 2"]
    assert float(few["ndcg@10"]) == pytest.approx(fmean(rest), rel=1e-5)
    assert float(few["ndcg@10/std"]) == pytest.approx(stdev(rest), rel=1e-5)
    assert [row["chosen"] for row in folds(tmp_path)] == chosen and len(set(chosen)) == 2
    assert [float(row["ndcg@10"]) for row in folds(tmp_path)] == pytest.approx(rest, rel=1e-5)
    assert metrics["analysis/adaptation/few_shot_2/ndcg@10"] == pytest.approx(fmean(rest), rel=1e-5)
    # The grid: three queries of one kind, four of the other.
    assert float(rows["top-k=1"]["ndcg@10"]) == pytest.approx((3 + 4 * 0.5) / 7, rel=1e-5)


def test_of_equally_good_strategies_the_first_is_chosen(studied_system, studied_data, tmp_path):
    made(tmp_path, with_ranks(studied_system, {1: [1] * 6, 2: [1] * 6}), studied_data(6), p=[])
    assert {row["chosen"] for row in folds(tmp_path)} == {"top-k=1"}


def test_nothing_is_encoded_for_a_new_strategy_and_that_is_counted(
    studied_system, studied_data, tmp_path
):
    calls = []
    studied_system.encoder.register_forward_hook(lambda *_: calls.append(1))
    metrics, rows = made(tmp_path, studied_system, studied_data(6))
    assert len(calls) == 6  # each query once
    assert {row["cost/encoder_calls"] for row in rows.values()} == {"0", ""}
    assert metrics["analysis/adaptation/encoder_calls"] == 0

    original = studied_system.retrieve_encoded

    def wasteful(encoded, k, scoring, **search):
        assert scoring.normaliser == "alignment"  # the system's own Z
        studied_system.encoder(studied_system.noise)
        return original(encoded, k, scoring, **search)

    studied_system.retrieve_encoded = wasteful
    metrics, rows = made(tmp_path, studied_system, studied_data(6))
    assert rows["top-k=2"]["cost/encoder_calls"] == "1"
    assert metrics["analysis/adaptation/encoder_calls"] == 4  # the grid; its own is top-1


def test_every_alignment_scores_all_gathered_documents(studied_system, studied_data, tmp_path):
    """Not the best of them under the system's own, under which q<n>'s document is the last."""
    system, data = studied_system, studied_data(6)

    def retrieve(encoded, k, scoring, mode="impute", refine=5, **search):
        assert (mode, refine) == ("gather", None)  # what an estimate would leave out is there
        names = [f"d{n}" for n in range(12)]
        best = scoring.alignment == TopK(2)
        found = {}
        for query, _ in encoded:
            order = {name: (name == query.replace("q", "d")) == best for name in names}
            found[query] = {name: float(first) for name, first in order.items()}
        return Ranking(found).top(k)

    system.retrieve_encoded, system.search.mode = retrieve, "impute"
    _, rows = made(tmp_path, system, data, p=[], depth=3)
    assert rows["top-k=2"]["mrr@10"] == "1.0" and rows["default"]["mrr@10"] == "0.0"


def test_a_study_of_pruned_searches_adapts_each(studied_system, studied_data, tmp_path):
    """aligner Figure 7: β_d = 1/2 knows six documents; all its rows say so, also those of folds."""
    settings = {"keep_document": [0.25, 1.0], "mode": ["gather"]}
    metrics, _ = made(tmp_path, studied_system, studied_data(6), settings=settings, depth=7)
    with (tmp_path / "study.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = [(row["keep_document"], row["strategy"]) for row in rows]
    names = ["top-k=1", "top-k=2", "top-p=20.0%", "top-p=50.0%", "default", "oracle", "few-shot 2"]
    assert found == [(keep, name) for keep in ("0.25", "1.0") for name in names]
    assert studied_system.searches == [
        *[(6, 7, 0.25, {"mode": "gather", "refine": None})] * 4,
        *[(6, 7, 1.0, {"mode": "gather", "refine": None})] * 4,
    ]
    assert [row["keep_document"] for row in folds(tmp_path)] == ["0.25"] * 3 + ["1.0"] * 3
    few = {row["keep_document"]: row["ndcg@10"] for row in rows if row["folds_of"]}
    assert metrics["analysis/adaptation/few_shot_2/ndcg@10"] == pytest.approx(float(few["0.25"]))
    assert float(rows[0]["mrr@10"]) <= 0.5 < float(rows[7]["mrr@10"])  # three of six are known
    table = (tmp_path / "study.md").read_text()
    assert "| fruit (test), keep_document=0.25, mode=gather |" in table
    assert (tmp_path / "figures/study_2.png").is_file()


def test_a_table_like_the_papers_and_a_figure(studied_system, studied_data, tmp_path):
    made(tmp_path, with_ranks(studied_system, {1: [1] * 6, 2: [3] * 6}), studied_data(6), p=[])
    lines = (tmp_path / "study.md").read_text().splitlines()
    assert lines[2] == "| collection | top-k=1 | top-k=2 | default | few-shot 2 |"
    assert lines[4] == "| fruit (test) | **100.0** | 50.0 | 100.0 | 100.0 ± 0.0 |"
    assert (tmp_path / "figures/study.png").is_file()


def test_names_in_the_figure_do_not_overlap():
    grid = {f"top-k={k}": 0.5 for k in (1, 2, 4, 6, 8)}
    grid |= {f"top-p={p:.1%}": 0.4 for p in (0.005, 0.01, 0.015, 0.02)}
    scores = {name: {"q": {"ndcg@10": value}} for name, value in grid.items()}
    chosen = [("a", 8, 0.4), ("b", 8, 0.6), ("a", 16, 0.6)]
    few = [Fold(size, 0, name, 1.0, {"ndcg@10": value}) for name, size, value in chosen]
    adapted = Adapted({}, scores, {}, {"ndcg@10": 0.5}, few)
    figure = draw_adaptation(adapted, "t")
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert len(boxes) == 11
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert [bar.get_height() for bar in axes.patches] == [*grid.values(), 0.5, 0.6]


def test_folds_that_leave_no_query_are_left_out_and_said(studied_system, studied_data, tmp_path):
    with pytest.warns(UserWarning, match="study.folds_of=8: left out.*there are 6"):
        _, rows = made(tmp_path, studied_system, studied_data(6), folds_of=[2, 8])
    assert "few-shot 8" not in rows and "few-shot 2" in rows
    with pytest.warns(UserWarning, match="study.folds_of=6: left out"):  # none would be tested
        _, rows = made(tmp_path, studied_system, studied_data(6), folds_of=[6])
    assert len(rows) == 6


def test_bad_options_are_refused_before_training(studied_system):
    class BM25:
        pass

    fine = {"folds_of": [8]}
    with pytest.raises(ValueError, match="BM25 has no index of token vectors"):
        check_study(ADAPTATION | fine, BM25())
    for wrong, message in (
        ({"k": [0]}, "k=0: must be a whole number ≥ 1"),
        ({"p": [1.5]}, "p=1.5"),
        ({"k": [], "p": []}, "study.k, study.p, study.alignments: must hold at least one"),
        (
            {"alignments": [{"_target_": "gr_mvdr.alignment.TopK", "k": 0}]},
            "k=0: must be a whole number ≥ 1",
        ),
        ({"folds_of": [0]}, "study.folds_of=0: must be ≥ 1"),
        ({"depth": 0}, "study.depth=0: must be ≥ 1"),
        ({"settings": {"probe": [1]}}, "model.search.probe"),
        ({"settings": {"mode": "gather"}}, "study.settings.mode=gather: must be a list"),
    ):
        with pytest.raises(ValueError, match=message):
            check_study(ADAPTATION | fine | wrong, studied_system)
    several = replace(studied_system.scoring, alignment=Softmax(), heads=2)
    refused = pytest.raises(ValueError, match="model.heads=2: must be 1 under TopK")
    with mock.patch.object(studied_system, "scoring", several), refused:
        check_study(ADAPTATION | fine, studied_system)
    check_study(ADAPTATION | fine, studied_system)
    found = Adaptation([1], [0.005], []).strategies
    assert found == {"top-k=1": TopK(1), "top-p=0.5%": TopP(0.005)}
