"""Metrics as trec_eval computes them."""

import random

import ir_measures
import pytest
from ir_measures import AP, RR, P, R, Success, nDCG

from gr_mvdr.evaluation.metrics import find_metric, name_metric, ranking_metric
from gr_mvdr.evaluation.ranking import Ranking, evaluate, evaluate_queries

FP32 = 1e-6  # of torchmetrics


def random_run_and_qrels(
    seed: int, queries: int, ties: bool
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, int]]]:
    """Graded qrels with several relevant documents, some judged irrelevant, some not retrieved."""
    generator = random.Random(seed)
    run, qrels = {}, {}
    for query in range(queries):
        documents = [f"d{n}" for n in generator.sample(range(1000), generator.randint(1, 150))]
        score = (lambda: generator.randint(0, 20) - 10.0) if ties else generator.random
        run[f"q{query}"] = {document: score() for document in documents}
        pool = documents[:6] + [f"d{n}" for n in generator.sample(range(1000), 4)]
        judged = set(generator.sample(pool, generator.randint(1, len(pool))))
        qrels[f"q{query}"] = {d: generator.randint(-1, 3) for d in sorted(judged)}
    return run, qrels


# Names that ir_measures and we read alike. It has no RR@10 by trec_eval: an RR below 1/10 counts as
# 0. Its nDCG(dcg='exp-log2') needs Perl; the same gains are written out.
NAMES = "R@1 R@10 R@100 R@1000 nDCG@10 nDCG@3 Success@5 P@5 AP@20 P(rel=2)@5 AP(rel=3)@20"
NAMES += " Success(rel=2)@1 R(rel=2)@10 AP(rel=2,judged_only=True)@20 P(judged_only=True)@3"
NAMES += " R(judged_only=True)@5 nDCG(judged_only=True)@10 Judged@10 Judged@100"
REFERENCES = {name: name for name in NAMES.split()}
REFERENCES |= {"RR": "RR@10", "RR(rel=2)": "RR(rel=2)@10"}
REFERENCES["RR(rel=3,judged_only=True)"] = "RR(rel=3,judged_only=True)@10"
REFERENCES["nDCG(gains={1:1,2:3,3:7})@10"] = "nDCG(dcg='exp-log2')@10"


@pytest.mark.parametrize("ties", [False, True])
def test_every_metric_of_every_run_equals_trec_eval(ties):
    """300 runs of a query: a mean over queries is their mean."""
    run, qrels = random_run_and_qrels(seed=1, queries=300, ties=ties)
    names = {ir_measures.parse_measure(theirs): name_metric(n) for theirs, n in REFERENCES.items()}
    if ties:  # its own code for Judged orders ties by id ascending, against trec_eval
        names = {measure: name for measure, name in names.items() if measure.NAME != "Judged"}
    assert len({*names.values()}) == len(names)
    values, compared = evaluate_queries(Ranking(run), qrels, tuple(names.values())), 0
    for reference in ir_measures.iter_calc(list(names), qrels, run):
        value, name = reference.value, names[reference.measure]
        if reference.measure.NAME == "RR" and value < 0.0999:
            value = 0.0
        assert values[reference.query_id][name] == pytest.approx(value, abs=FP32), reference
        compared += 1
    assert compared == 300 * len(names)


def test_a_relevance_level_is_that_of_every_name_without_its_own():
    run, qrels = random_run_and_qrels(seed=3, queries=100, ties=False)
    ours = ["mrr@10", "recall@10", "map@20", "ndcg@10", "judged@10", "mrr(rel=1)@10"]
    named = ["RR(rel=2)@10", "R(rel=2)@10", "AP(rel=2)@20", *ours[3:]]
    leveled = evaluate(Ranking(run), qrels, ours, relevance_level=2)
    assert [*leveled.values()] == [*evaluate(Ranking(run), qrels, named).values()]
    assert leveled["mrr@10"] < leveled["mrr(rel=1)@10"]


def test_the_ndcg_of_a_perfect_ranking_is_exactly_one():
    generator = random.Random(2)
    for n in range(1, 60):
        grades = {f"d{place}": generator.randint(1, 3) for place in range(n)}
        assert evaluate(Ranking({"q": grades}), {"q": grades}, ["ndcg@10"]) == {"ndcg@10": 1.0}


def test_the_names_of_ir_measures_and_ranx_mean_ours():
    """ir_measures' own, as it prints them, and ranx's; values are kept under our names."""
    measures = [nDCG @ 10, RR @ 10, R @ 100, P @ 5, Success @ 1, AP @ 1000]
    ours = ["ndcg@10", "mrr@10", "recall@100", "precision@5", "success@1", "map@1000"]
    ranx = [name.replace("success", "hit_rate") for name in ours]
    options = [nDCG(dcg="exp-log2") @ 10, AP(judged_only=True, rel=2) @ 5, P(judged_only=False) @ 1]
    plain = ["ndcg(dcg=exp-log2)@10", "map(rel=2,judged_only=true)@5", "precision@1"]
    assert [*map(name_metric, plain)] == [name_metric(str(one)) for one in options] == plain
    assert ranking_metric(plain[1]).label == "MAP(rel=2,judged_only=true)@5"
    for wrong in (
        "nDCG(rel=2)@10",
        "RR(rel=0)@10",
        "RR(dcg=log2)@1",
        "P(rel=2@1",
        "R(x=1)@1",
        "R@0",
    ):
        assert find_metric(wrong) is None
    for names in (ours, ranx, map(str, measures), map(str.upper, ours)):
        assert list(map(name_metric, names)) == ours
    qrels = {"q": {"a": 1}, "unanswered": {"b": 1}}
    assert evaluate(Ranking({"q": {"a": 1.0}}), qrels, ["RR@10"]) == {"mrr@10": 0.5}
    with pytest.raises(ValueError, match="no query"):
        evaluate(Ranking({}), {})
