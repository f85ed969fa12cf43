"""Metrics as trec_eval computes them."""

import random

import ir_measures
import pytest
from ir_measures import AP, RR, P, R, Success, nDCG

from gr_mvdr.evaluation.metrics import name_metric
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


# ir_measures takes RR@10 from MS MARCO's script, whose rule for ties is not trec_eval's, but RR
# from trec_eval; an RR below 1/10 is an RR@10 of 0.
REFERENCES = {"recall@1": R @ 1, "recall@10": R @ 10, "recall@100": R @ 100, "mrr@10": RR}
OTHERS = {nDCG @ 10: "ndcg@10", nDCG @ 3: "ndcg@3", R @ 1000: "recall@1000"}
OTHERS |= {Success @ 5: "success@5", P @ 5: "precision@5", AP @ 20: "map@20"}


@pytest.mark.parametrize("ties", [False, True])
def test_every_metric_of_every_query_equals_trec_eval(ties):
    run, qrels = random_run_and_qrels(seed=1, queries=200, ties=ties)
    references = {measure: name for name, measure in REFERENCES.items()} | OTHERS
    values = evaluate_queries(Ranking(run), qrels, tuple(references.values()))
    compared = 0
    for reference in ir_measures.iter_calc(list(references), qrels, run):
        name = references[reference.measure]
        value = reference.value
        if name == "mrr@10" and value < 0.0999:
            value = 0.0
        assert values[reference.query_id][name] == pytest.approx(value, abs=FP32), reference
        compared += 1
    assert compared == 200 * len(references)


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
    for names in (ours, ranx, map(str, measures), map(str.upper, ours)):
        assert list(map(name_metric, names)) == ours
    qrels = {"q": {"a": 1}, "unanswered": {"b": 1}}
    assert evaluate(Ranking({"q": {"a": 1.0}}), qrels, ["RR@10"]) == {"mrr@10": 0.5}
    with pytest.raises(ValueError, match="no query"):
        evaluate(Ranking({}), {})
