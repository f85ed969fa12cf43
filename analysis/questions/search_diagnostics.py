"""Do a generative system's search errors come from the model or from the beam?

A sample of test queries is searched, one at a time. The analysis measures at which step the gold
document's hypothesis leaves the beam, and its rank at that step (`gr_mvdr.decoding.search_trace`).
It compares the beam's result with the scores of all documents.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from analysis.figures import GalleryEntry, draw_lines
from analysis.questions.analysis import Analysis, Findings, Subject
from gr_mvdr.decoding.search_trace import SearchPath, SearchTrace
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.measures import Metric
from gr_mvdr.options import Count, part
from gr_mvdr.progress import track

DEPTHS = (1, 10)
_ERROR = {"better": "low", "headline": True}
SHARES = {
    "recall": Metric("recall@#", "The share of relevant documents in the top k of the beam."),
    "model_error": Metric(
        "model_error@#",
        "The share of relevant documents that the model itself ranks below the first k.",
        **_ERROR,
    ),
    "search_error": Metric(
        "search_error@#",
        "The share of relevant documents that the model ranks in the top k but the beam lost.",
        **_ERROR,
    ),
    "luck": Metric(
        "luck@#",
        "The share of relevant documents that are in the top k only because the beam dropped "
        "documents with better scores.",
    ),
}


def places_of(documents: Sequence[str], scores: Mapping[str, float]) -> list[int | None]:
    """Returns each document's rank (from 1, in `Ranking`'s order), or None if it has no score."""
    ranking = Ranking({"": scores}).documents("")
    place = {d: rank for rank, d in enumerate(ranking, start=1) if scores[d] > -np.inf}
    return [place.get(document) for document in documents]


def search_errors(
    beam: Sequence[int | None], exhaustive: Sequence[int | None] | None, k: int
) -> dict[str, float]:
    """Computes shares of one query's relevant documents, such as "search_error@10".

    Let b mean that a document is in the top k of the beam search, and e that it is in the top k of
    the exhaustive ranking. Recall is b, model error ¬e, search error e ∧ ¬b, and luck b ∧ ¬e (a
    better competitor was pruned). Hence recall = 1 − model error − search error + luck.

    Args:
        beam, exhaustive: the rank of each relevant document; if exhaustive is None, only recall is
            computed.
    """
    b, e = (
        np.array([rank is not None and rank <= k for rank in ranks or beam])
        for ranks in (beam, exhaustive)
    )
    shares = {"recall": b}
    if exhaustive is not None:
        shares |= {"model_error": ~e, "search_error": e & ~b, "luck": b & ~e}
    return {f"{name}@{k}": float(share.mean()) for name, share in shares.items()}


@part("analysis")
@dataclass
class SearchDiagnostics(Analysis):
    """Diagnoses the search of a generative system.

    Args:
        queries: the maximum number of test queries, evenly spread over the first test split.
        most_documents: the documents of a larger collection are not all scored. An error of the
            model then cannot be distinguished from one of the search.
    """

    queries: Count
    most_documents: Count = 20_000

    name, title = "search", "Search"
    reading = (
        "The beam's result compared with the scores of all documents. Recall = 1 − model error − "
        "search error + luck."
    )
    metrics = (
        *(metric.at(k) for metric in SHARES.values() for k in DEPTHS),
        Metric("queries", "How many queries were measured.", unit="count"),
        Metric(
            "score_difference",
            "The largest difference between a document's score in the search and its score when it "
            "is scored directly; it should be rounding error.",
            unit="rounding",
        ),
        Metric("gold_alive", "The share of queries whose relevant document is still in the beam."),
        Metric(
            "lost_rank",
            "The median rank of the relevant document's best continuation where the beam lost it.",
            unit="count",
        ),
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return getattr(subject.model, "names", None) is not None

    def finish(self) -> Findings:
        """Returns metrics, the table `search_diagnostics` and a figure."""
        diagnoses = list(self._diagnoses())
        if not diagnoses:
            return Findings()
        rows, paths = zip(*diagnoses, strict=True)
        table = DataFrame(rows)
        shares = [f"{name}@{k}" for name in SHARES for k in DEPTHS]
        numbers = self.rows(table.reindex(columns=shares).mean().to_dict())
        differs = table["score_difference"].astype(float).max()
        numbers += self.rows({"queries": len(table), "score_difference": differs})
        alive, lost = follow_gold(paths)
        for name, values in {"gold_alive": alive, "lost_rank": lost}.items():
            numbers += [r for step, v in values.items() for r in self.rows({name: v}, part=step)]
        title = f"{self.subject.data.collection.name}: search of {len(rows)} test queries"
        heading = "Where the search loses the gold document"
        entry = GalleryEntry("search_diagnostics", heading, CAPTION)
        figures = [(search_figure([*alive.values()], title), entry)]
        return self.findings(numbers, {"search_diagnostics": rows}, figures)

    def _diagnoses(self) -> Iterator[tuple[dict[str, Any], SearchPath]]:
        """Yields each query's row of the table, and its gold documents' path through the search."""
        model, data, split = self.subject.model, self.subject.data, self.subject.split
        names, ids = model.names, data.documents["id"][:]
        rows, table = {name: n for n, name in enumerate(ids)}, self.subject.queries(self.queries)
        relevant, exact = data.evaluation.relevant(split, table), None
        sample = [query for query in table if relevant[query["id"]]]
        if len(ids) > self.most_documents:
            print(f"search: only recall is measured above most_documents={self.most_documents}")
        elif sample and not model.targets_are_ngrams:  # T5-SEAL has no exact search
            named = data.collection.documents["id"][:]
            every = {query["id"]: data.evaluation.keep_hits(query["id"], named) for query in sample}
            exact = model.rerank(sample, data.documents, every)
        for query in track(sample, "diagnosing", total=len(sample)):
            name, gold = query["id"], relevant[query["id"]]
            prefixes = [names.gold_prefixes(rows[d]) for d in model.passages.of(gold) if d in rows]
            trace = SearchTrace(set().union(*prefixes), model.template.stop)
            result = model.search([query["tokens"]], texts=[query["text"]], trace=trace)
            path, scores = trace.path(result), names.scores(result, 0)
            hits = Ranking({"": {ids[number]: score for number, score in scores.items()}})
            hits = model.passages.rank(hits).scores("")
            hits = {document: hits[document] for document in data.evaluation.keep_hits(name, hits)}
            beam, exhaustive, difference = places_of(gold, hits), None, None
            if exact is not None:
                scores = exact.scores(name)
                exhaustive = places_of(gold, scores)
                difference = max((abs(hits[d] - scores[d]) for d in hits), default=0.0)
            row = {
                "query": name,
                "relevant": len(gold),
                "steps": len(path.steps),
                "lost_at_step": path.lost,
                "lost_rank": path.lost_step and path.lost_step.rank,
                # Ranks of the best relevant document.
                "rank_beam": min(filter(None, beam), default=None),
                "rank_exhaustive": min(filter(None, exhaustive or []), default=None),
                "score_difference": difference,
            }
            for k in DEPTHS:
                row |= search_errors(beam, exhaustive, k)
            yield row, path


def follow_gold(paths: Sequence[SearchPath]) -> tuple[dict[str, float], dict[str, float]]:
    """Computes the share of queries whose gold survives each step, and lost gold's median rank."""
    alive = DataFrame(dict(enumerate(float(step.alive) for step in p.steps)) for p in paths)
    alive = alive.ffill(axis=1).mean()  # a search that ended earlier keeps its last state
    lost = [(path.lost, path.lost_step.rank) for path in paths if path.lost]
    ranks = DataFrame(lost, columns=["step", "rank"], dtype=float).dropna()
    medians = ranks.groupby("step")["rank"].median()
    by_step = {f"step_{step:.0f}": rank for step, rank in medians.items()}
    by_step |= {"any_step": ranks["rank"].median()} if len(ranks) else {}
    return {f"step_{n + 1}": value for n, value in alive.items()}, by_step


CAPTION = (
    "The share of queries whose gold document is still in the beam after each step of the search."
)


def search_figure(alive: Sequence[float], title: str) -> Figure:
    """Plots where the gold is lost."""
    points = DataFrame({"x": range(1, len(alive) + 1), "y": alive, "line": "", "panel": ""})
    figure = draw_lines(points, title, "step of the search", "gold document in the beam, share")
    for axes in figure.axes:
        axes.set_ylim(0, 1.03)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
