"""A growing corpus: documents arrive after training, and nothing is trained again.

Zhang et al. (2025, arXiv 2504.17519) find that text docids generalise to new documents and numeric
docids prefer known ones. At every stage the system indexes exactly the documents that have arrived:
its statistics (idf, n-gram counts) and its constraint are those of the stage.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from pandas import DataFrame, concat

from analysis.figures import GalleryEntry, draw_lines
from analysis.questions.analysis import Findings
from analysis.runs.evaluation import judge
from analysis.runs.queries import tabulate_queries
from analysis.runs.settings import write_setting
from analysis.statistics import NORMAL
from analysis.studies.study import study_rows
from data_modules.module import RetrievalDataModule
from gr_mvdr.evaluation.metrics import rank_of, ranking_metric
from gr_mvdr.measures import RANKINGS, STUDY, Group, keep_finite
from gr_mvdr.options import Rule, Seed, Size, part
from gr_mvdr.passages import document_ids
from gr_mvdr.progress import track
from models.base import System

FIRST = 10
# Metrics that are kept for every query → what the old queries lose of them.
LOST = {
    f"success@{FIRST}": RANKINGS["forgetting"].at(FIRST),
    f"mrr@{FIRST}": RANKINGS["mrr_forgetting"].at(FIRST),
}
KEPT, KNOWN = tuple(LOST), RANKINGS["known"].at(FIRST)
GROUP = Group("growing_corpus", "Growing corpus")
_RULE = Rule("a split whose documents arrive after training, or a list of such splits", bool)
Splits = Annotated[str | list[str], _RULE]


@part("study")
class GrowingCorpus:
    """A study: what is found of old and of new documents while the new ones arrive, in parts.

    Old queries are those of the first test split whose relevant documents are known in training.
    New queries are those of `splits`, from the stage on at which their last relevant document
    arrives. The weights stay the same, so old queries lose only to new competitors.
    """

    def __init__(self, splits: Splits, parts: Size = 5, seed: Seed = 0):
        """
        Args:
            splits: the splits of new queries, those of `data.new_documents`.
            parts: the number of parts in which the new documents arrive.
            seed: random seed of the order in which they arrive.
        """
        self.splits = [splits] if isinstance(splits, str) else splits
        self.parts, self.seed = parts, seed

    def check(self, model: System) -> None:
        """Accepts every system: all of them index documents."""

    def __call__(self, model: System, data: RetrievalDataModule, run: Path) -> Findings:
        """Indexes and searches at every stage; the model ends with the index of all documents.

        New documents get their docids in the order in which they arrive. A multi-vector system
        encodes each new document once more; other systems build each index from nothing.

        Raises:
            ValueError: no query of `splits` has a relevant document that arrives after training.
        """
        known, documents = data.known_documents, data.documents
        new, ids = np.setdiff1d(np.arange(len(documents)), known), document_ids(documents)
        order = np.random.default_rng(self.seed).permutation(new)
        # A document arrives with all its passages.
        place = {ids[row]: number for number, row in enumerate(order)}
        order = np.array(sorted(order, key=lambda row: place[ids[row]]), np.int64)
        stages = [known, *np.array_split(order, self.parts)]
        arrivals = {ids[row]: stage for stage, rows in enumerate(stages) for row in rows}
        splits = dict.fromkeys([data.evaluation.test_splits[0], *self.splits])
        asked = concat([self._list_queries(data, split, arrivals) for split in splits])
        asked = asked.reset_index(drop=True)
        if not (asked["arrival"] > 0).any():
            rule = "must have a query whose relevant documents arrive after training"
            raise ValueError(f"data.new_documents={self.splits}: {rule}")
        parts = []
        for stage in track(range(len(stages)), "stages of the corpus"):
            indexed = documents.select(np.concatenate(stages[: stage + 1]))
            model.update_index(indexed)
            measured = search(model, data, asked[asked["arrival"] <= stage], arrivals)
            arrival, place = measured["arrival"], {"stage": stage, "documents": len(indexed)}
            groups = {"old": arrival == 0, "new": arrival > 0, "latest": arrival == max(1, stage)}
            for name, chosen in groups.items():
                parts += [measured[chosen].assign(queries=name, **place)] if chosen.any() else []
        return summarise(parts, asked, f"{data.collection.name} ({', '.join(splits)})")

    def _list_queries(
        self, data: RetrievalDataModule, split: str, arrivals: Mapping[str, int]
    ) -> DataFrame:
        """Returns a split's old and new queries, and the stage at which each can be answered.

        Args:
            arrivals: document id → the stage at which it arrives, 0 = known in training.

        Returns:
            Columns split, row (in the split's test queries), query, arrival.
        """
        judged = data.evaluation.relevant(split, data.evaluation.test_queries(split))
        queries = DataFrame({"split": split, "row": range(len(judged)), "query": list(judged)})
        queries["arrival"] = [
            max((arrivals[name] for name in relevant if name in arrivals), default=-1)
            for relevant in judged.values()
        ]
        is_old = (queries["arrival"] == 0) & (split == data.evaluation.test_splits[0])
        return queries[is_old | (queries["arrival"] > 0) & (split in self.splits)]


def search(
    model: System, data: RetrievalDataModule, asked: DataFrame, arrivals: Mapping[str, int]
) -> DataFrame:
    """Searches for queries as `_list_queries` returns them; adds a column for each metric."""
    depth = max(map(rank_of, (*data.metrics, *KEPT))) + data.drop_identical
    values = {}
    for split, own in asked.groupby("split", sort=False):
        queries = data.evaluation.test_queries(split).select(own["row"].tolist())
        ranking = model.retrieve(queries, depth)
        judged = judge(ranking, data, split, queries, [*KEPT])
        for index, (query, metrics) in zip(own.index, judged.items(), strict=True):
            first = ranking.documents(query)[:FIRST]
            share = sum(arrivals[name] == 0 for name in first) / max(1, len(first))
            values[index] = metrics | {KNOWN.name: share}
    return asked.join(DataFrame.from_dict(values, orient="index"))


def summarise(parts: list[DataFrame], asked: DataFrame, title: str) -> Findings:
    """Makes tables, metrics and the figure.

    Args:
        parts: the measured queries of each row of the table `study`, in order.
        asked: all queries.
    """
    rows, tables, kept, before = [], [], {}, {}
    names = [c for c in parts[0] if c not in (*asked, "queries", "stage", "documents")]
    declared = {n: KNOWN if n == KNOWN.name else ranking_metric(n) for n in names}
    for own in parts:
        about = own[["stage", "documents", "queries"]].iloc[0].to_dict()
        setting = {k: v if k == "queries" else int(v) for k, v in about.items()}
        setting["n_queries"], group = len(own), setting["queries"]
        means = own[names].mean()
        before = before or means.to_dict()
        measured = [declared[name].row(means[name], n=len(own)) for name in names]
        lost = []
        if group == "old":
            lost = [LOST[m].row(before[m] - means[m], n=len(own)) for m in KEPT]
        rows += study_rows(setting, measured + lost)
        values = own.set_index("query")[[*KEPT]]
        tables.append(tabulate_queries(STUDY.name, values, part=write_setting(setting)))
        # Of several stages, the last one counts.
        names_shown = (*KEPT, KNOWN.name)
        shown = [declared[name].row(means[name], group, n=len(own)) for name in names_shown]
        kept |= {(row.metric.name, row.place): row for row in lost + shown}
    points = concat(parts).rename(columns={"stage": "x", "queries": "line"})
    points = points[points["line"] != "latest"].melt(["x", "line"], [*KEPT], "panel", "y")
    points["panel"] = points["panel"].map({metric: declared[metric].label for metric in KEPT})
    figure = draw_lines(points, title, "parts that have arrived", "", ("se", NORMAL))
    caption = (
        "What is found of old and of new documents while the new ones arrive after training, in "
        "parts; nothing is trained again. Whiskers are 95 % intervals over queries. "
    )
    entry = GalleryEntry("study", "A growing corpus", f"{caption}{title}.")
    rows += keep_finite(kept.values(), GROUP)
    return Findings(rows, figures=[(figure, entry)], queries=tables)
