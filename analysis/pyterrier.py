"""Uses a `Retriever` in PyTerrier's pipelines, to search or to rerank other systems' results.

bm25, colbert = as_transformer("outputs/BM25"), as_transformer("outputs/T5-ColBERT")
pipeline = bm25 % 50 >> colbert  # searched by one, reranked by the other
"""

import os

import pandas as pd

try:
    import pyterrier as pt
except ImportError as error:
    raise ImportError("analysis.pyterrier: needs pip install 'gr-mvdr[pyterrier]'") from error

from models.retriever import Retriever


def as_transformer(
    retriever: Retriever | str | os.PathLike[str], k: int = 1000
) -> "RetrieverTransformer":
    """Makes a transformer from a retriever, or from a folder that `Retriever.load` opens.

    Args:
        k: documents that a search returns for each query.

    Raises:
        ValueError: k is below 1; or see `Retriever.load`.
    """
    opened = retriever if isinstance(retriever, Retriever) else Retriever.load(retriever)
    return RetrieverTransformer(opened, k)


class RetrieverTransformer(pt.Transformer):
    """Searches for queries (`qid`, `query`), or reranks results, which also have a `docno`.

    A `docno` is the id of an indexed document. Scores and their order come from
    `Retriever.retrieve` and `Retriever.rerank`; `rank` counts from 0; all other columns are kept.
    Documents that the system does not score, such as those without an identifier, are left out. A
    missing query, like a blank one, finds nothing.
    """

    def __init__(self, retriever: Retriever, k: int):
        if k < 1:
            raise ValueError(f"k={k}: must be ≥ 1")
        self.retriever, self.k = retriever, k

    def __repr__(self) -> str:
        return f"RetrieverTransformer({self.retriever.label!r}, k={self.k})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Returns a row per query and document, best first; queries keep the frame's order.

        Raises:
            ValueError: a `docno` is not the id of an indexed document.
            pt.validate's error: there is no `query` column.
        """
        with pt.validate.any(inp, context=self) as frame:
            frame.query_frame(["query"], mode="search")
            frame.result_frame(["query"], mode="rerank")
        places = inp.groupby("qid", sort=False).indices
        asked = inp["query"].fillna("").astype(str)
        texts = {qid: asked.iloc[own[0]] for qid, own in places.items()}
        row = {}  # (query, document) → row of the given frame
        if frame.mode == "rerank":
            names = inp["docno"].astype(str).to_numpy()
            row = {(qid, names[n]): n for qid, own in places.items() for n in own}
            candidates = {qid: names[own].tolist() for qid, own in places.items()}
            ranking = self.retriever.rerank(texts, candidates)
        else:
            ranking = self.retriever.retrieve(texts, self.k)
        retrieved = [
            (row.get((qid, name), places[qid][0]), name, score, rank)
            for qid in ranking.query_ids
            for rank, (name, score) in enumerate(ranking.scores(qid).items())
        ]
        rows, *columns = zip(*retrieved, strict=True) if retrieved else ((), (), (), ())
        given = inp.drop(columns=["docno", "score", "rank"], errors="ignore")
        types = {"docno": object, "score": float, "rank": int}
        added = {n: pd.Series(c, dtype=t) for (n, t), c in zip(types.items(), columns, strict=True)}
        return given.iloc[list(rows)].reset_index(drop=True).assign(**added)
