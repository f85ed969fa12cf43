"""Retrieve and rerank the test queries with any system (gr_as_mvdr §6.3)."""

from pathlib import Path
from typing import Any

from gr_mvdr.metrics import evaluate
from gr_mvdr.ranking import Ranking, write_qrels


def evaluate_retrieval(model: Any, data: Any, run: Path, depth: int) -> dict[str, float]:
    """End-to-end search (gr_as_mvdr §6.3): writes `retrieve*.trec`, answers `retrieve/…`.

    The judgements lie beside the ranking, `retrieve*.qrels`: a later comparison of runs, or
    trec_eval, needs nothing else.

    Args:
        model: a `models.base.System` whose index is built; data: a `RetrievalDataModule`.
        run: the run's folder.
        depth: documents a query.

    Returns:
        Metrics of each test split; a split after the first adds its name.
    """
    metrics = {}
    for split in data.test_splits:
        queries = data.test_queries(split)
        ranking = _own_left_out(model.retrieve(queries, depth + data.drop_identical), data, depth)
        qrels = data.judgements(split, queries)
        file = _file("retrieve", split, data)
        ranking.write(run / f"{file}.trec", model.__class__.__name__)
        write_qrels(qrels, run / f"{file}.qrels")
        found = evaluate(ranking, qrels, data.metrics)
        metrics |= _prefixed(found, "retrieve", split, data)
        if split == data.test_splits[0]:
            metrics |= model.search_fidelity(queries, ranking)
    return metrics


def evaluate_reranking(
    model: Any, data: Any, run: Path, forms: dict[str, dict[str, Any]]
) -> dict[str, float]:
    """Reranks the candidates in every form of the system: `rerank*.trec`, `rerank/…`.

    All forms are judged by `rerank*.qrels`, those of the reranked queries.

    Args:
        model, data, run: as `evaluate_retrieval`.
        forms: name → arguments of `model.rerank`; the first form is the main one, the others add
            their name to the metrics.
    """
    metrics = {}
    for split in data.test_splits:
        queries = data.rerank_queries(split)
        candidates, qrels = data.candidates(split, queries), data.judgements(split, queries)
        write_qrels(qrels, run / f"{_file('rerank', split, data)}.qrels")
        for number, (form, arguments) in enumerate(forms.items()):
            ranking = model.rerank(queries, data.documents, candidates, **arguments)
            name = "rerank" if number == 0 else f"rerank-{form}"
            ranking.write(run / f"{_file(name, split, data)}.trec", model.__class__.__name__)
            found = evaluate(ranking, qrels, data.metrics)
            metrics |= _prefixed(found, name.replace("-", "/"), split, data)
    return metrics


def _own_left_out(ranking: Ranking, data: Any, depth: int) -> Ranking:
    """A ranking without hits that are their own query, where the collection asks for that."""
    if not data.drop_identical:
        return ranking
    kept = {}
    for query in ranking.query_ids:
        scores = ranking.scores(query)
        kept[query] = {document: scores[document] for document in data.kept(query, scores)}
    return Ranking(kept).top(depth)


def _file(name: str, split: str, data: Any) -> str:
    return name if split == data.test_splits[0] else f"{name}-{split}"


def _prefixed(found: dict[str, float], name: str, split: str, data: Any) -> dict[str, float]:
    place = name if split == data.test_splits[0] else f"{name}/{split}"
    return {f"{place}/{metric}": value for metric, value in found.items()}
