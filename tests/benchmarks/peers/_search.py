"""What the peers in searching token vectors share: the vectors, our searches, and recall.

The names of the figures hold the recall of the exact search's best 10 and 100. Other vectors than
synthetic ones come from `PEER_VECTORS=FILE.npz`: "vectors" (T, 128), "counts" (D,), "queries"
(t, 128), "lengths" (Q,), and of more queries to plan on "sample" and "sample_lengths".
"""

import os

import numpy as np

DOCUMENTS, QUERIES = 2_200, 32
WANTED = (10, 0.6), (10, 0.8), (10, 0.99), (100, 0.8), (100, 0.99)


def inputs():
    if path := os.environ.get("PEER_VECTORS"):
        with np.load(path) as arrays:
            return dict(arrays)
    from tests.benchmarks.bench_gather import Texts

    texts = Texts()
    documents = sorted((texts.document() for _ in range(DOCUMENTS)), key=len)
    queries = [texts.query(documents[n * 17 % DOCUMENTS]).vectors for n in range(2 * QUERIES)]
    arrays = {"counts": [len(d) for d in documents], "lengths": [len(q) for q in queries[:QUERIES]]}
    arrays["sample_lengths"] = [len(q) for q in queries[QUERIES:]]
    vectors = np.concatenate([texts.vectors(d).numpy() for d in documents])
    parts = {"queries": queries[:QUERIES], "sample": queries[QUERIES:]}
    arrays |= {name: np.concatenate([q.numpy() for q in part]) for name, part in parts.items()}
    return {"vectors": vectors} | {name: np.asarray(part) for name, part in arrays.items()}


def split(rows, lengths):
    return np.split(rows, np.cumsum(lengths)[:-1])


def named(arrays, searches):
    """Name and recall → a round over all queries, of searches query → best document numbers."""
    queries, documents = split(arrays["queries"], arrays["lengths"]), arrays["vectors"]
    starts = np.cumsum(arrays["counts"]) - arrays["counts"]
    exact = [np.maximum.reduceat(q @ documents.T, starts, axis=1).sum(0) for q in queries]
    works = {}
    for name, search in searches.items():
        found = [list(search(query)) for query in queries]
        shares = [
            np.mean(
                [
                    len({*np.argsort(-e)[:k]} & {*f[:k]}) / k
                    for e, f in zip(exact, found, strict=True)
                ]
            )
            for k in (10, 100)
        ]
        label = f"{len(queries)} queries, {name}: recall@10 {shares[0]:.3f} @100 {shares[1]:.3f}"
        works[label] = lambda search=search: [search(query) for query in queries] and None
    return works


def ours(arrays):
    import tempfile

    import torch

    from gr_mvdr.alignment import MaxSim
    from gr_mvdr.scoring import Scoring
    from gr_mvdr.token_index.index import TokenIndex
    from gr_mvdr.token_index.search import SearchOptions
    from gr_mvdr.token_vectors import PackedTokens, TokenVectors

    def query(rows):
        mask = torch.ones(len(rows), dtype=torch.bool)
        return TokenVectors(torch.from_numpy(rows), mask, mask.long())

    vectors, counts = (torch.from_numpy(arrays[name]) for name in ("vectors", "counts"))
    packed, colbert = (
        PackedTokens(vectors, counts, counts.new_zeros(len(vectors))),
        Scoring(MaxSim()),
    )
    ids = [str(number) for number in range(len(counts))]
    index = TokenIndex.build(tempfile.mkdtemp() + "/index", ids, lambda _: [packed])
    index.keep_sample([query(rows) for rows in split(arrays["sample"], arrays["sample_lengths"])])

    def search(options, depth):
        def best(rows):
            found = index.search([query(rows)], colbert, options)[0]
            places = found.scores.topk(min(100, len(found.scores))).indices
            return found.documents[places].tolist()

        return best

    searches = {"exact": search(SearchOptions(), 100)}
    for depth, recall in WANTED:
        planned = index.planned(SearchOptions("gather", recall=recall), colbert, depth)
        searches[f"recall={recall} of {depth}"] = search(planned, depth)
    return named(arrays, searches)
