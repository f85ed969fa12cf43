"""Few-shot alignment adaptation: the grid of alignments, and the folds that choose among them."""

from dataclasses import replace
from statistics import fmean, stdev
from unittest import mock

import numpy as np
import pytest
from analysis.tables.rows import read_rows

from analysis.studies.study import check_study, run_study
from gr_mvdr.alignment import Softmax, SoftTopK, TopK, TopP
from gr_mvdr.evaluation.ranking import Ranking, evaluate
from gr_mvdr.scoring import Scoring

ADAPTATION = {"_target_": "analysis.studies.adaptation.Adaptation", "k": [1, 2], "p": [0.2, 0.5]}
FEW = "analysis/adaptation/few_shot_2/ndcg@10"


@pytest.fixture
def made(studied_system, studied_data, tmp_path):
    """Makes a study; its metrics, its rows and those of the folds."""

    def run(n_queries=6, **changes):
        settings = ADAPTATION | {"folds_of": [2]} | changes
        metrics = run_study(settings, studied_system, studied_data(n_queries), tmp_path)
        return metrics, read_rows(tmp_path / "study.csv"), read_rows(tmp_path / "study_folds.csv")

    return run


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


def test_every_alignment_is_scored_by_itself(made, studied_system, studied_data):
    """Those of aligner Tables 3 and 13; the smallest ε is top-1."""
    soft = {"_target_": "gr_mvdr.alignment.SoftTopK", "k": 1}
    parts = [soft | {"epsilon": epsilon} for epsilon in (1e-6, 5.0)]
    _, rows, _ = made(alignments=parts)
    rows = {row["strategy"]: row for row in rows}
    alignments = {
        **{"top-k=1": TopK(1), "top-k=2": TopK(2), "top-p=20.0%": TopP(0.2)},
        **{"top-p=50.0%": TopP(0.5), "top-k=1 ε=1e-06": SoftTopK(1, 1e-6)},
        "top-k=1 ε=5": SoftTopK(1, 5.0),
    }
    assert list(rows) == [*alignments, "default", "oracle", "few-shot 2"]
    data = studied_data(6)
    queries = data.evaluation.test_queries("test")
    encoded = studied_system.encoded_queries(queries)
    candidates = {query: [f"d{n}" for n in range(12)] for query in queries["id"]}
    for name, alignment in alignments.items():
        scoring = Scoring(alignment, "alignment")
        ranking = studied_system.rerank_encoded(encoded, candidates, scoring)
        for metric, value in evaluate(ranking, data.evaluation.judgements("test", queries)).items():
            assert rows[name][metric] == pytest.approx(value, rel=1e-5), (name, metric)
    worth = {name: row["ndcg@10"] for name, row in rows.items()}
    # 20 % of five tokens are one: the same as top-1, which is the system's own MaxSim.
    assert worth["top-k=1"] == worth["top-p=20.0%"] == worth["default"] != worth["top-k=2"]
    assert worth["oracle"] == max(worth[name] for name in alignments)


def test_every_fold_chooses_for_the_others(made, studied_system):
    # 1 / log2(rank + 1): rank 1 is worth 1, rank 3 is worth 0.5. Two kinds of queries.
    ranks = {1: [1, 3, 1, 3, 1, 3, 3], 2: [3, 1, 3, 1, 3, 1, 1]}
    with_ranks(studied_system, ranks)
    studied_system.noise = studied_system.noise.repeat(2, 1, 1)
    with pytest.warns(UserWarning, match="study.folds_of=7: left out.*there are 7"):
        metrics, rows, folds = made(7, p=[], folds_of=[2, 7])
    order = np.random.default_rng(0).permutation(7)
    worth, rest, chosen = {1: 1.0, 3: 0.5}, [], []
    for start in (0, 2, 4):  # the seventh query fills no fold
        own = set(order[start : start + 2].tolist())
        means = {k: fmean(worth[ranks[k][n]] for n in own) for k in (1, 2)}
        best = 2 if means[2] > means[1] else 1
        chosen.append(f"top-k={best}")
        rest.append(fmean(worth[ranks[best][n]] for n in set(range(7)) - own))
    few = next(row for row in rows if row["strategy"] == "few-shot 2")
    assert few["ndcg@10"] == metrics[FEW] == pytest.approx(fmean(rest), rel=1e-5)
    assert few["ndcg@10/std"] == pytest.approx(stdev(rest), rel=1e-5)
    assert [row["chosen"] for row in folds] == chosen and len(set(chosen)) == 2
    assert [row["ndcg@10"] for row in folds] == pytest.approx(rest, rel=1e-5)


def test_of_equally_good_strategies_the_first_is_chosen(made, studied_system):
    with_ranks(studied_system, {1: [1] * 6, 2: [1] * 6})
    _, _, folds = made(p=[])
    assert {row["chosen"] for row in folds} == {"top-k=1"}


def test_a_study_of_pruned_searches_adapts_each(made, studied_system):
    """aligner Figure 7: all rows name the search, also those of the folds."""
    settings = {"keep_document": [0.25, 1.0], "mode": ["gather"]}
    metrics, rows, folds = made(settings=settings)
    names = ["top-k=1", "top-k=2", "top-p=20.0%", "top-p=50.0%", "default", "oracle", "few-shot 2"]
    found = [(row["keep_document"], row["strategy"]) for row in rows]
    assert found == [(keep, name) for keep in (0.25, 1.0) for name in names]
    assert {
        (keep, search["mode"], search["refine"]) for *_, keep, search in studied_system.searches
    } == {
        (0.25, "gather", None),
        (1.0, "gather", None),
    }
    assert [row["keep_document"] for row in folds] == [0.25] * 3 + [1.0] * 3
    few = next(row for row in rows if row.get("folds_of"))
    assert metrics[FEW] == pytest.approx(few["ndcg@10"])
    assert rows[0]["mrr@10"] <= 0.5 < rows[7]["mrr@10"]  # three of six are indexed


def test_bad_options_are_refused_before_training(studied_system):
    fine = ADAPTATION | {"folds_of": [8]}
    check_study(fine, studied_system)
    with pytest.raises(ValueError, match="study.k, study.p, study.alignments: must hold at least"):
        check_study(fine | {"k": [], "p": []}, studied_system)
    several = replace(studied_system.scoring, alignment=Softmax(), heads=2)
    refused = pytest.raises(ValueError, match="model.heads=2: must be 1 under TopK")
    with mock.patch.object(studied_system, "scoring", several), refused:
        check_study(fine, studied_system)
