"""Training losses: on relevance matrices (documents, queries), and between two predictions."""

import torch
import torch.nn.functional as F
from torch import Tensor


def in_batch_cross_entropy(relevance: Tensor, document_index: Tensor) -> Tensor:
    """Contrastive loss with in-batch negatives (gr_as_mvdr Eq. 2, Appendix D).

    Document b is the positive of query b; the other documents of the batch are its negatives,
    except further copies of the positive, which are masked out.

    Args:
        relevance: (B documents, B queries) float.
        document_index: (B,) int64, equal numbers = the same document.

    Returns:
        () mean over the queries.
    """
    copies = document_index[:, None] == document_index[None, :]
    copies.fill_diagonal_(False)
    # Queries as rows, because cross_entropy wants one row a decision.
    logits = relevance.masked_fill(copies, -torch.inf).T
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def pairwise_cross_entropy(relevance: Tensor, document_index: Tensor) -> Tensor:
    """The official ColBERTv1 loss: positive against one negative (gr_as_mvdr Table 7, "ib neg. ×").

    The negative of query b is the next document of the batch that is not its positive.

    Args, returns: as `in_batch_cross_entropy`.
    """
    size = len(relevance)
    differs = document_index[:, None] != document_index[None, :]
    # Rotate so that row b starts at b: the first difference after b is the negative.
    order = (
        torch.arange(size, device=relevance.device)[:, None]
        + torch.arange(size, device=relevance.device)
    ) % size
    first = differs.gather(1, order).int().argmax(1)
    negative = order.gather(1, first[:, None]).squeeze(1)
    queries = torch.arange(size, device=relevance.device)
    margin = relevance[queries, queries] - relevance[negative, queries]
    usable = differs.any(1)
    return -(F.logsigmoid(margin) * usable).sum() / usable.sum().clamp(min=1)


def symmetric_divergence(first: Tensor, second: Tensor) -> Tensor:
    """How far two predictions of the same targets lie apart (NCI's consistency regularisation).

    Args:
        first, second: (n, R) logits of two dropout passes; −inf at the same places.

    Returns:
        () mean over n of ½ KL(p‖q) + ½ KL(q‖p).
    """
    masked = first == -torch.inf  # where log p − log q would be no number
    one = first.log_softmax(-1).masked_fill(masked, 0.0)
    other = second.log_softmax(-1).masked_fill(masked, 0.0)
    return 0.5 * ((one.exp() - other.exp()) * (one - other)).sum(-1).mean()
