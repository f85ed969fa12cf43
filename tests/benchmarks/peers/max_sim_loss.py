"""The contrastive loss over MaxSim of 64 × 32 with 64 × 160 vectors, forwards and backwards:
sentence-transformers' scores of all pairs."""

import numpy as np

REQUIREMENTS = []  # sentence-transformers is in ours


def inputs():
    rng = np.random.default_rng(0)
    sides = {"queries": (64, 32, 128), "documents": (64, 160, 128)}
    drawn = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in sides.items()}
    return {
        name: side / np.linalg.norm(side, axis=-1, keepdims=True) for name, side in drawn.items()
    }


def gradients(arrays, score):
    """Of the loss, for the queries; `score`: (queries, documents) → (documents, queries)."""
    import torch

    queries, documents = (
        torch.from_numpy(arrays[name]).requires_grad_() for name in ("queries", "documents")
    )

    def work():
        queries.grad = documents.grad = None
        scores = score(queries, documents)
        torch.nn.functional.cross_entropy(scores.T, torch.arange(len(queries))).backward()
        return queries.grad

    return work


def ours(arrays):
    import torch

    from gr_mvdr.alignment import MaxSim
    from gr_mvdr.scoring import Scoring, all_pairs_relevance
    from gr_mvdr.token_vectors import TokenVectors

    def side(vectors):
        mask = torch.ones(vectors.shape[:2], dtype=torch.bool)
        return TokenVectors(vectors, mask, torch.zeros(vectors.shape[:2], dtype=torch.int64))

    scoring = Scoring(MaxSim())
    return {"loss": gradients(arrays, lambda q, d: all_pairs_relevance(side(d), side(q), scoring))}


def peer(arrays):
    from sentence_transformers.multi_vector_encoder.scoring import colbert_scores

    return {"loss": gradients(arrays, lambda q, d: colbert_scores(q, d[:, None]).T)}
