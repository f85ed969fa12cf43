"""MaxSim of a query's 32 vectors with 1,000 documents of 68,959: maxsim-cpu, a padded einsum."""

import numpy as np

REQUIREMENTS = ["maxsim-cpu==0.1.0", "numpy"]


def inputs():
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(1000, 4.0))
    counts = np.sort(20 + rng.multinomial(68_959 - 20_000, shares))
    vectors = rng.standard_normal((68_959 + 32, 128), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return {"query": vectors[:32], "vectors": vectors[32:], "counts": counts}


def ours(arrays):
    import torch

    from gr_mvdr.alignment import MaxSim
    from gr_mvdr.scoring import Scoring
    from gr_mvdr.token_index.scorers import packed_relevance
    from gr_mvdr.token_vectors import PackedTokens, TokenVectors

    vectors, query, counts = (torch.from_numpy(arrays[n]) for n in ("vectors", "query", "counts"))
    packed = PackedTokens(vectors, counts, torch.zeros(len(vectors), dtype=torch.int64))
    queries = TokenVectors(query[None], torch.ones(1, 32).bool(), torch.zeros(1, 32).long())
    padded = torch.nn.utils.rnn.pad_sequence(vectors.split(counts.tolist()), batch_first=True)
    outside = torch.arange(padded.shape[1]) >= counts[:, None]

    def einsum():
        scores = torch.einsum("dmh,nh->dmn", padded, query)
        return scores.masked_fill(outside[..., None], -torch.inf).amax(1).sum(1)

    return {
        "MaxSim": lambda: packed_relevance(packed, queries, Scoring(MaxSim()))[:, 0],
        "a padded einsum": einsum,
        "the product alone": lambda: vectors @ query.T,
    }


def peer(arrays):
    import maxsim_cpu

    query, vectors = arrays["query"], arrays["vectors"]
    documents = np.split(vectors, arrays["counts"].cumsum()[:-1])
    documents = [np.ascontiguousarray(document) for document in documents]
    return {"MaxSim": lambda: maxsim_cpu.maxsim_scores_variable(query, documents)}
