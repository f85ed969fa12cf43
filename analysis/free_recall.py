"""The best recall of any system with one vector a text (Weller et al. 2025, §4)."""

import torch
from torch.nn.functional import normalize

from data_modules.collection import Collection


def free_recall(
    collection: Collection, dimension: int, k: int, steps: int = 500, seed: int = 0
) -> float:
    """Recall@k of the queries by vectors that are optimised for the judgements; no text is read.

    Only queries with a relevant document in the collection count. The recall bounds every system
    with one vector a text in this dimension, as far as Adam finds the optimum: a value below 1
    shows that the dimension, not the encoder, is too small.
    """
    row = {name: number for number, name in enumerate(collection.documents["id"][:])}
    judged = [q for split in collection.qrels for q in collection.judgements(split).values()]
    answers = [[row[d] for d, grade in q.items() if grade > 0 and d in row] for q in judged]
    answers = [rows for rows in answers if rows]
    relevant = torch.zeros(len(answers), len(row))
    for number, rows in enumerate(answers):
        relevant[number, rows] = 1
    draw = torch.Generator().manual_seed(seed)
    sizes = len(answers), len(row)
    sides = [torch.randn(size, dimension, generator=draw).requires_grad_() for size in sizes]
    optimizer = torch.optim.Adam(sides, 0.05)
    for _ in range(steps + 1):
        queries, documents = (normalize(side, dim=1) for side in sides)
        scores = queries @ documents.T
        loss = -(relevant * (scores / 0.05).log_softmax(1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = relevant.gather(1, scores.topk(k, 1).indices).sum(1)
    return float((found / relevant.sum(1)).mean())
