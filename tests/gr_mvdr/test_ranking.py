import random

import ir_measures
import numpy as np
import pytest
from ir_measures import RR, R, nDCG

from gr_mvdr.ranking import (
    METRICS,
    Ranking,
    evaluate,
    evaluate_queries,
    read_qrels,
    write_qrels,
)


def test_documents_come_by_score_and_ties_by_id_last_first():
    ranking = Ranking({"q": {"a": 1.0, "c": 2.0, "b": 1.0, "d10": 1.0, "d9": 1.0}})
    assert ranking.documents("q") == ["c", "d9", "d10", "b", "a"]
    assert list(ranking.scores("q")) == ranking.documents("q")
    assert ranking.top(2).scores("q") == {"c": 2.0, "d9": 1.0}
    assert ranking.documents("unknown") == []


def test_rankings_are_equal_when_their_results_are():
    first = Ranking({"q": {"a": 1, "b": 2}, "r": {"a": 1}})
    assert first == Ranking({"r": {"a": np.float32(1)}, "q": {"b": 2, "a": 1}, "empty": {}})
    assert first != Ranking({"q": {"a": 1, "b": 2}})
    assert first != Ranking({"q": {"a": 1, "b": 3}, "r": {"a": 1}})


def test_a_score_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="query 'q', document 'b': the score is not a number"):
        Ranking({"q": {"a": 1.0, "b": float("nan")}})


def test_a_run_is_written_in_six_columns_and_read_back(tmp_path):
    ranking = Ranking({"q": {"a": 1 / 3, "b": 1e-9}, "r": {"b": -5.0, "ü": float(2**60)}})
    ranking.write(tmp_path / "run.trec", tag="bm25")
    lines = (tmp_path / "run.trec").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "q Q0 a 1 0.3333333333333333 bm25"
    assert [line.split()[3] for line in lines] == ["1", "2", "1", "2"]
    assert Ranking.read(tmp_path / "run.trec") == ranking
    assert [file.name for file in tmp_path.iterdir()] == ["run.trec"]


def test_a_refused_run_leaves_the_old_one(tmp_path):
    Ranking({"q": {"a": 1.0}}).write(tmp_path / "run.trec", tag="old")
    with pytest.raises(ValueError, match="'b c': a TREC column"):
        Ranking({"q": {"a": 1.0}, "r": {"b c": 1.0}}).write(tmp_path / "run.trec", tag="new")
    assert [file.name for file in tmp_path.iterdir()] == ["run.trec"]
    assert (tmp_path / "run.trec").read_text().endswith("old\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 a 2 0.5", "run.trec:2: expected 'query Q0 document rank score tag'"),
        ("q Q0 c 2 high x", "run.trec:2: expected a number as score, got 'high'"),
        ("q Q0 b 2 0.5 x", "run.trec:2: 'q' 'b' stands there already"),
    ],
)
def test_a_broken_run_names_the_line(tmp_path, line, message):
    (tmp_path / "run.trec").write_text(f"q Q0 b 1 0.7 x\n{line}\n")
    with pytest.raises(ValueError, match=message):
        Ranking.read(tmp_path / "run.trec")


def test_qrels_are_written_and_read_back(tmp_path):
    qrels = {"q": {"a": 2, "b": 0}, "r": {"a": 1}}
    write_qrels(qrels, tmp_path / "qrels")
    assert (tmp_path / "qrels").read_text() == "q 0 a 2\nq 0 b 0\nr 0 a 1\n"
    assert read_qrels(tmp_path / "qrels") == qrels
    (tmp_path / "qrels").write_text("q 0 a 1.5\n")
    with pytest.raises(ValueError, match="qrels:1: expected an integer as grade"):
        read_qrels(tmp_path / "qrels")


def test_metrics_worked_out_by_hand():
    ranking = Ranking({"q": {"a": 3.0, "b": 2.0, "c": 1.0}})
    values = evaluate(ranking, {"q": {"b": 1, "z": 1}, "unanswered": {"a": 1}})
    ideal = 1 + 1 / np.log2(3)
    expected = {"recall@1": 0, "recall@10": 1 / 4, "recall@100": 1 / 4, "mrr@10": 1 / 4}
    assert values == pytest.approx({**expected, "ndcg@10": 1 / np.log2(3) / ideal / 2})
    assert list(values) == list(METRICS)
    with pytest.raises(ValueError, match="no query"):
        evaluate(ranking, {})


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


@pytest.mark.parametrize("ties", [False, True])
def test_every_metric_of_every_query_equals_trec_eval(ties):
    run, qrels = random_run_and_qrels(seed=1, queries=200, ties=ties)
    references = {measure: name for name, measure in REFERENCES.items()} | {nDCG @ 10: "ndcg@10"}
    values = evaluate_queries(Ranking(run), qrels)
    compared = 0
    for reference in ir_measures.iter_calc(list(references), qrels, run):
        name = references[reference.measure]
        value = reference.value
        if name == "mrr@10" and value < 0.0999:
            value = 0.0
        assert values[reference.query_id][name] == pytest.approx(value, abs=1e-6), reference
        compared += 1
    assert compared == 200 * len(METRICS)


def test_means_equal_ir_measures_when_queries_have_no_results_or_no_judgements():
    run, qrels = random_run_and_qrels(seed=2, queries=100, ties=False)
    run["unjudged"] = {"d1": 1.0}
    run["q1"] = {}
    for query in ("q2", "q3"):
        del run[query]
    measures = {**REFERENCES, "mrr@10": RR @ 10, "ndcg@10": nDCG @ 10}
    expected = ir_measures.calc_aggregate(list(measures.values()), qrels, run)
    values = evaluate(Ranking(run), qrels)
    for name, measure in measures.items():
        assert values[name] == pytest.approx(expected[measure], abs=1e-6), name


def test_relevant_documents_that_were_not_retrieved_count_in_the_ideal():
    found = Ranking({"q": {"a": 1.0}})
    complete = evaluate(found, {"q": {"a": 1}})
    missed = evaluate(found, {"q": {"a": 1, "b": 3}})
    assert complete["ndcg@10"] == pytest.approx(1)
    assert missed["ndcg@10"] == pytest.approx(1 / (3 + 1 / np.log2(3)))
    assert missed["recall@10"] == 0.5
