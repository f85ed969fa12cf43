"""A growing corpus: documents arrive after training, and nothing is trained again.

Text docids are said to generalise to new documents, numeric docids not (arXiv 2504.17519). At every
stage the system indexes exactly the documents that have arrived: its statistics (idf, n-gram
counts), its trie, and the search's choices are those of the stage.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from pandas import DataFrame, concat

from analysis.analysis import Findings, named
from analysis.evaluation import judge
from analysis.studies.study import draw_all, read_curves
from data_modules.module import RetrievalDataModule
from gr_mvdr.evaluation.metrics import rank_of
from gr_mvdr.options import Rule, Seed, Size, Text, part
from gr_mvdr.progress import track
from models.base import System

# Metrics that are kept for every query → what the old queries have lost of them.
KEPT = {"success@10": "forgetting@10", "mrr@10": "mrr_forgetting@10"}
Splits = Annotated[
    list[Text], Rule("a list of at least one split whose documents arrive after training", bool)
]


@part("study")
class GrowingCorpus:
    """A study: what is found of old and new documents while the new ones arrive, part by part.

    Old queries are those of the first test split whose relevant documents are known in training;
    new queries those of `splits`, each from the stage on at which its last relevant document
    arrives. The weights stay as they are, so what old queries lose (`KEPT`) is lost to new
    competitors alone.
    """

    def __init__(self, splits: Text | Splits, curves: dict | list, parts: Size = 5, seed: Seed = 0):
        """
        Args:
            splits: the splits of new queries, `data.new_documents`.
            curves: what the figure shows, see `Curves`.
            parts: the number of parts in which the new documents arrive, in a random order.
            seed: random seed of the order.
        """
        self.splits = [splits] if isinstance(splits, str) else splits
        self.curves, self.parts, self.seed = read_curves(curves), parts, seed

    def check(self, model: System) -> None:
        """Accepts every system, as every system indexes documents."""

    def __call__(self, model: System, data: RetrievalDataModule, run: Path) -> Findings:
        """Indexes and searches at every stage; the model ends with the index of all documents.

        New documents get their docids in the order of arrival. A multi-vector system encodes each
        of them once more; the other systems build their index anew at every stage.

        The table `study_queries` has a row for each query. Its columns n/METRIC belong to row n of
        `study` (from 0) and are empty for the queries that this row is not about.
        """
        known, documents = data.known_documents, data.documents
        new = np.setdiff1d(np.arange(len(documents)), known)
        order = np.random.default_rng(self.seed).permutation(new)
        stages, ids = [known, *np.array_split(order, self.parts)], documents["id"][:]
        arrivals = {ids[row]: stage for stage, rows in enumerate(stages) for row in rows}
        splits = dict.fromkeys([data.test_splits[0], *self.splits])
        asked = concat([self._list_queries(data, split, arrivals) for split in splits])
        asked = asked.reset_index(drop=True)
        depth = max(map(rank_of, (*data.metrics, *KEPT))) + data.drop_identical
        table, of_queries = [], asked[["query"]]
        for stage in track(range(len(stages)), "stages of the corpus"):
            arrived, values = asked[asked["arrival"] <= stage], {}
            indexed = np.concatenate(stages[: stage + 1])
            model.update_index(documents.select(indexed))
            for split, own in arrived.groupby("split", sort=False):
                queries = data.test_queries(split).select(own["row"].tolist())
                judged = judge(model.retrieve(queries, depth), data, split, queries, [*KEPT])
                values |= zip(own.index, judged.values(), strict=True)
            measured = DataFrame.from_dict(values, orient="index")
            is_new, is_latest = arrived["arrival"] > 0, arrived["arrival"] == stage
            groups = {"old": ~is_new, "new": is_new, "latest": is_new & is_latest}
            for name, chosen in groups.items():
                if chosen.any():
                    own = measured.loc[arrived.index[chosen]]
                    row = {"stage": stage, "documents": len(indexed), "queries": name}
                    of_queries = of_queries.join(own[[*KEPT]].add_prefix(f"{len(table)}/"))
                    table.append(row | {"n_queries": len(own)} | own.mean().to_dict())
                    if name == "old":
                        table[-1] |= {lost: table[0][m] - table[-1][m] for m, lost in KEPT.items()}
        # Of several stages, the last one counts.
        metrics = {f"{row['queries']}/{m}": row[m] for row in table for m in KEPT}
        metrics |= {m: row[m] for row in table for m in KEPT.values() if m in row}
        title = f"{data.collection.name} ({', '.join(splits)})"
        tables = {"study": table, "study_queries": of_queries.to_dict("records")}
        figures = draw_all(self.curves, table, title)
        return Findings(named("growing_corpus", metrics), tables, figures)

    def _list_queries(
        self, data: RetrievalDataModule, split: str, arrivals: Mapping[str, int]
    ) -> DataFrame:
        """Returns the old or new queries of a split, and the stage at which each is answered.

        Args:
            arrivals: document id → the stage at which it arrives, 0 = known in training.

        Returns:
            Columns split, row (in the split's test queries), query, arrival.
        """
        judged = data.judgements(split, data.test_queries(split))
        relevant = [
            [arrivals[name] for name, grade in grades.items() if grade > 0 and name in arrivals]
            for grades in judged.values()
        ]
        queries = DataFrame({"split": split, "row": range(len(judged)), "query": list(judged)})
        queries["arrival"] = [max(stages, default=-1) for stages in relevant]
        is_old = (queries["arrival"] == 0) & (split == data.test_splits[0])
        return queries[is_old | (queries["arrival"] > 0) & (split in self.splits)]
