"""BM25, the 100 best of 6,801 documents, one query after another: bm25s itself."""

import numpy as np

REQUIREMENTS = []  # bm25s is in ours
DOCUMENTS, QUERIES, WORDS = 6_801, 200, 20_000
TOLERANCE = 1e-4


def inputs():
    rng = np.random.default_rng(0)
    chance = 1 / np.arange(1, WORDS + 1)
    words = rng.choice(WORDS, (DOCUMENTS, 75), p=chance / chance.sum())
    queries = rng.choice(WORDS, (QUERIES, 9), p=chance / chance.sum())
    return {"documents": words, "queries": queries}


def ours(arrays):
    from gr_mvdr.evaluation.bm25 import index_bm25

    names = [str(number) for number in range(DOCUMENTS)]
    index = index_bm25(names, arrays["documents"].tolist())
    queries = arrays["queries"].tolist()

    def search():
        found = [list(index.best(query, 100).values()) for query in queries]
        return np.array([row + [0.0] * (100 - len(row)) for row in found])

    return {f"{QUERIES} queries": search}


def peer(arrays):
    import bm25s

    scorer = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
    vocabulary = {str(word): word for word in range(WORDS)}
    scorer.index((list(arrays["documents"]), vocabulary), show_progress=False)
    queries = [[str(word) for word in query] for query in arrays["queries"]]

    def search():
        return np.concatenate(
            [scorer.retrieve([query], k=100, show_progress=False).scores for query in queries]
        )

    return {f"{QUERIES} queries": search}
