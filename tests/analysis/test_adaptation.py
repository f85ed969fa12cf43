"""Few-shot alignment adaptation: the grid of alignments, and the folds that choose among them."""

from dataclasses import replace
from statistics import fmean, stdev

import numpy as np
import pytest

from analysis.studies.study import check_study, run_study
from gr_mvdr.alignment import Softmax, SoftTopK, TopK, TopP
from gr_mvdr.evaluation.ranking import Ranking, evaluate
from gr_mvdr.relevance import Scoring
from tests.models.conftest import make_multi_vector
from tests.runs import flat, read_lines_of
from tests.searches import make_search

ADAPTATION = {"_target_": "analysis.studies.adaptation.Adaptation", "k": [1, 2], "p": [0.2, 0.5]}
FEW = "analysis/adaptation/few_shot_2/ndcg@10"


@pytest.fixture
def system(tiny_data):
    system = make_multi_vector("aligner", salience=None)
    system.index(tiny_data.documents)
    return system


@pytest.fixture
def made(system, tiny_data, tmp_path):
    """Makes a study of ten queries; its metrics, its rows and those of the folds."""
    (tmp_path / "index").mkdir()

    def run(**changes):
        settings = ADAPTATION | {"folds_of": [2]} | changes
        metrics = flat(run_study(settings, system, tiny_data, tmp_path))
        tables = (read_lines_of(tmp_path / f"{name}.csv") for name in ("study", "study_folds"))
        return metrics, *tables

    return run


def with_ranks(system, ranks):
    """The system ranks the n-th query's document at ranks[k][n] under top-k."""

    def retrieve(encoded, scoring, k, search):
        results = {}
        for number, (query, *_) in enumerate(encoded):
            rank = ranks[scoring.alignment.k][number]
            names = [*(f"x{other}" for other in range(rank - 1)), query.replace("q", "d")]
            results[query] = {name: -place for place, name in enumerate(names)}
        return Ranking(results)

    system.searcher.search = retrieve


def test_every_alignment_is_scored_by_itself_in_each_search(made, system, tiny_data):
    """Those of aligner Tables 3 and 13 and Figure 7; the smallest ε is top-1."""
    soft = {"_target_": "gr_mvdr.alignment.SoftTopK", "k": 1, "epsilon": 1e-6}
    system.search = make_search("gather", probes=None)
    searches = {"neighbours": [30, 100]}
    metrics, rows, folds = made(alignments=[soft], settings=searches)
    alignments = {
        **{"top-k=1": TopK(1), "top-k=2": TopK(2), "top-p=20.0%": TopP(0.2)},
        **{"top-p=50.0%": TopP(0.5), "top-k=1 ε=1e-06": SoftTopK(1, 1e-6), "default": TopK(1)},
    }
    names = [*alignments, "oracle", "few-shot 2"]
    found = {(row["neighbours"], row["strategy"]): row for row in rows}
    assert list(found) == [(n, name) for n in searches["neighbours"] for name in names]
    assert [row["neighbours"] for row in folds] == [30] * 5 + [100] * 5
    queries = tiny_data.evaluation.test_queries("test")
    encoded, qrels = (
        system.encoded_queries(queries),
        tiny_data.evaluation.judgements("test", queries),
    )
    for number in searches["neighbours"]:
        for name, alignment in alignments.items():
            options = make_search("gather", probes=None, neighbours=number)
            scoring = Scoring(alignment, "alignment")
            ranking = system.searcher.search(encoded, scoring, 1000, options)
            for metric, value in evaluate(ranking, qrels).items():
                row = found[number, name]
                assert row[metric] == pytest.approx(value, rel=1e-5), (name, metric)
        worth = {name: found[number, name]["ndcg@10"] for name in alignments}
        assert found[number, "oracle"]["ndcg@10"] == max(worth.values())
        assert worth["top-k=1"] == worth["default"] == worth["top-k=1 ε=1e-06"]
    assert metrics[FEW] == pytest.approx(found[30, "few-shot 2"]["ndcg@10"])


def test_every_fold_chooses_for_the_others(made, system):
    # 1 / log2(rank + 1): rank 1 is worth 1, rank 3 is worth 0.5. Two kinds of queries.
    ranks = {1: [1, 3, 1, 3, 1, 3, 3, 1, 3, 1], 2: [3, 1, 3, 1, 3, 1, 1, 3, 1, 3]}
    with_ranks(system, ranks)
    with pytest.warns(UserWarning, match="study.folds_of=10: left out.*there are 10"):
        metrics, rows, folds = made(p=[], folds_of=[3, 10])
    order = np.random.default_rng(0).permutation(10)
    worth, rest, chosen = {1: 1.0, 3: 0.5}, [], []
    for start in (0, 3, 6):  # the tenth query fills no fold
        own = set(order[start : start + 3].tolist())
        means = {k: fmean(worth[ranks[k][n]] for n in own) for k in (1, 2)}
        best = 2 if means[2] > means[1] else 1
        chosen.append(f"top-k={best}")
        rest.append(fmean(worth[ranks[best][n]] for n in set(range(10)) - own))
    few = next(row for row in rows if row["strategy"] == "few-shot 3")
    assert few["ndcg@10"] == pytest.approx(fmean(rest), rel=1e-5)
    assert metrics[FEW.replace("2", "3", 1)] == few["ndcg@10"]
    assert few["ndcg@10/std"] == pytest.approx(stdev(rest), rel=1e-5)
    assert [row["chosen"] for row in folds] == chosen and len(set(chosen)) == 2
    assert [row["ndcg@10"] for row in folds] == pytest.approx(rest, rel=1e-5)
    with_ranks(system, {1: [1] * 10, 2: [1] * 10})
    assert {row["chosen"] for row in made(p=[])[2]} == {"top-k=1"}, "ties go to the first"


def test_bad_options_are_refused_before_training(system):
    with pytest.raises(ValueError, match="study.k, study.p, study.alignments: must hold at least"):
        check_study(ADAPTATION | {"folds_of": [8], "k": [], "p": []}, system)
    system.scoring = replace(system.scoring, alignment=Softmax(), heads=2)
    with pytest.raises(ValueError, match="model.heads=2: must be 1 under TopK"):
        check_study(ADAPTATION | {"folds_of": [8]}, system)
