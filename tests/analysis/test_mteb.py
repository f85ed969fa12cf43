"""A retriever in mteb: its numbers are ours, on a task that is made here."""

import pytest

from gr_mvdr.evaluation.ranking import Ranking, evaluate, evaluate_queries
from models.retriever import Retriever
from tests.runs import TINY

mteb = pytest.importorskip("mteb")
FRUITS = "apple pear plum cherry quince fig grape lemon lime melon peach date".split()
# Two documents of one text tie; one has no title, one neither title nor text.
DOCUMENTS = [
    {"id": f, "title": f, "text": f"The {f} is a fruit, {n}."} for n, f in enumerate(FRUITS)
]
DOCUMENTS += [DOCUMENTS[0] | {"id": name} for name in ("twin", "another")]
DOCUMENTS += [
    {"id": "bare", "title": None, "text": "a river"},
    {"id": "x", "title": "", "text": " "},
]
QUERIES = [
    {"id": "apple", "text": "what is an apple?", "instruction": None},  # its own document
    {"id": "q1", "text": "who eats", "instruction": "pear or plum?"},
    {"id": "q2", "text": "the river", "instruction": ""},
    {"id": "q3", "text": "", "instruction": None},
    {"id": "unjudged", "text": "a fig", "instruction": None},
]
QRELS = {
    "apple": {"apple": 1, "twin": 1, "date": 0},
    "q1": {"pear": 3, "plum": 1, "fig": 1, "x": 1},
    "q2": {"bare": 1},
    "q3": {"lime": 1},
    "unjudged": {},
}
METRICS = {"ndcg_cut_10": "ndcg@10", "recall_3": "recall@3", "recall_10": "recall@10"}
ASKED = {"apple": "what is an apple?", "q1": "who eats pear or plum?", "q2": "the river", "q3": ""}
SYSTEMS = {"bm25": (), "t5_colbert": TINY, "dsi_semantic": TINY}


def make_task(qrels=QRELS, documents=DOCUMENTS, queries=QUERIES, top_ranked=None, own=False):
    """A task whose data are set; it keeps mteb's values of each query, before they are rounded."""
    from datasets import Dataset
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    about = dict.fromkeys(TaskMetadata.model_fields) | {
        "name": "Fruit",
        "description": "Fruit.",
        "dataset": {"path": "nowhere/fruit", "revision": "1"},
        "type": "Reranking" if top_ranked else "Retrieval",
        "category": "t2t",
        "modalities": ["text"],
        "eval_splits": ["test"],
        "eval_langs": ["eng-Latn"],
        "main_score": "ndcg_at_10",
    }
    fields = TaskMetadata.model_fields
    given = {k: v for k, v in about.items() if v is not None or fields[k].is_required()}

    class Fruit(AbsTaskRetrieval):
        metadata = TaskMetadata(**given)
        k_values = (1, 3, 10)
        ignore_identical_ids = own

        def task_specific_scores(self, scores, qrels, results, hf_split, hf_subset):
            self.by_query, self.results = scores, results
            return {}

    task = Fruit()
    parts = {"corpus": Dataset.from_list(documents), "queries": Dataset.from_list(queries)}
    parts |= {"relevant_docs": dict(qrels), "top_ranked": top_ranked}
    task.dataset, task.data_loaded = {"default": {"test": parts}}, True
    return task


def run_task(model, task) -> dict:
    (found,) = mteb.evaluate(model, task, cache=None, co2_tracker=False).task_results
    return found.scores["test"][0]


@pytest.fixture(scope="module", params=SYSTEMS)
def retriever(request, finished_run):
    return Retriever.load(finished_run(request.param, *SYSTEMS[request.param]))


def check(task, scores: dict, ranking: Ranking, own: bool):
    """mteb's values of the queries, and its means, are what we measure of a ranking."""
    qrels = {query: grades for query, grades in QRELS.items() if grades}
    if own:
        rows = {q: ranking.scores(q) for q in ranking.query_ids}
        ranking = Ranking({q: {d: s for d, s in r.items() if d != q} for q, r in rows.items()})
    ours = evaluate_queries(ranking.top(10), qrels, [*METRICS.values(), "mrr@10"])
    assert task.by_query.keys() == qrels.keys()
    for query, values in task.by_query.items():
        for theirs, name in METRICS.items():
            assert values[theirs] == pytest.approx(ours[query][name], abs=1e-6), (query, name)
    means = evaluate(ranking.top(10), qrels, ["ndcg@10", "recall@10", "mrr@10"])
    assert scores["mrr_at_10"] == pytest.approx(means["mrr@10"], abs=1e-6)
    for name in ("ndcg@10", "recall@10"):  # mteb rounds to five digits
        assert scores[name.replace("@", "_at_")] == pytest.approx(means[name], abs=6e-6)


@pytest.mark.parametrize("own", [False, True])
def test_mtebs_numbers_are_ours(retriever, own):
    from mteb.models import SearchProtocol

    from analysis.mteb import MtebModel

    model, task = MtebModel(retriever), make_task(own=own)
    assert isinstance(model, SearchProtocol)
    scores = run_task(model, task)
    assert len(retriever.documents) == len(DOCUMENTS) - 1 and not task.results["q3"]
    ranking = retriever.retrieve(ASKED, 20)
    check(task, scores, ranking, own)
    found = ranking.documents("apple")[:11]
    assert list(task.results["apple"]) == [name for name in found if not own or name != "apple"]


def test_candidates_alone_are_reranked(retriever):
    from analysis.mteb import MtebModel

    candidates = {"apple": [*FRUITS[:8], "twin", "x"], "q1": FRUITS[1:6], "q2": ["fig", "bare"]}
    task = make_task(top_ranked=candidates)
    scores = run_task(MtebModel(retriever), task)
    known = {query: [n for n in names if n != "x"] for query, names in candidates.items()}
    check(task, scores, retriever.rerank(ASKED, known), own=False)
    with pytest.raises(ValueError, match="^tasks=Fruit, split test: no query has a relevant"):
        run_task(MtebModel(retriever), make_task(qrels={"q1": {}}))
