"""Initial weights of small models: attention that matches and copies; token vectors from LSA."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.t5.modeling_t5 import T5Attention

Initialisation = Literal["random", "mimetic"]


@torch.no_grad()
def match_and_copy(model: PreTrainedModel) -> None:
    """Initialises every attention of a T5 to copy equal tokens softly (Trockman and Kolter 2023).

    The products of query and key weights, and of value and output weights, become the identity,
    as they tend to be in trained models: a token attends to equal tokens and copies them. This is
    exact match in a multi-vector system, and copying from the query in a generative one, which a
    small model on little text otherwise learns late or never. Unlike in the paper, nothing random
    is added, values have a positive sign, and cross-attention starts the same way.

    For inputs x of norm √d, a head's logit xᵀ W_qᵀ W_k x of a token and itself is about √d_kv; of
    two different tokens it is about 0.
    """
    for part in model.modules():
        if isinstance(part, T5Attention):
            match, copied = torch.empty(2, *part.k.weight.shape)
            nn.init.orthogonal_(match)
            nn.init.orthogonal_(copied)
            part.k.weight.copy_(match)
            part.q.weight.copy_(match / part.key_value_proj_dim**0.5)
            part.v.weight.copy_(copied)
            part.o.weight.copy_(copied.T)


@torch.no_grad()
def take_latent_meanings(model: PreTrainedModel, documents: Sequence[Sequence[int]]) -> None:
    """Initialises token vectors by latent semantic analysis of a collection.

    Tokens of similar documents start with similar vectors (Deerwester et al. 1990). A share
    `model.latent` of a vector's squared norm is the token's direction in d/2 latent dimensions. The
    rest stays random, so that a token remains most similar to itself. A small model has too few
    queries to learn these similarities.

    Args:
        model: a new backbone, whose rows have norm √d.
        documents: the token ids of each document. A token that occurs in no document, or in all of
            them, keeps its vector.
    """
    share, table = model.latent, model.get_input_embeddings().weight
    terms = _weigh_terms(documents, len(table))
    known = torch.sparse.sum(terms, 0).to_dense().gt(0).unsqueeze(1)
    if not known.any():
        return
    latent = min(table.shape[1] // 2, *terms.shape)
    _, sizes, directions = torch.svd_lowrank(terms, latent, niter=4)
    meanings = F.normalize(directions * sizes.sqrt())
    basis = nn.init.orthogonal_(torch.empty(meanings.shape[1], table.shape[1]))
    meanings = meanings @ basis * table.shape[1] ** 0.5
    started = share**0.5 * meanings + (1 - share) ** 0.5 * table
    table.copy_(started.where(known, table))


def _weigh_terms(documents: Sequence[Sequence[int]], size: int) -> Tensor:
    """TF-IDF, (D, size) sparse fp32: (1 + ln tf) · ln((1 + D) / (1 + df)), rows of length 1.

    A token that occurs in all documents has weight 0, unlike in scikit-learn's TF-IDF, which
    `TfidfSvd` uses.
    """
    counted = [np.unique(np.asarray(ids, np.int64), return_counts=True) for ids in documents]
    row = torch.from_numpy(np.repeat(np.arange(len(counted)), [len(ids) for ids, _ in counted]))
    token, counts = (
        torch.from_numpy(np.concatenate([np.empty(0, np.int64), *(pair[n] for pair in counted)]))
        for n in range(2)
    )
    idf = ((1 + len(counted)) / (1 + token.bincount(minlength=size))).log()
    weights = (1 + counts.log()) * idf[token]
    squares = torch.zeros(len(counted)).index_add(0, row, weights.square())
    weights = weights / squares.sqrt().clamp(min=1e-12)[row]
    shape = len(counted), size
    return torch.sparse_coo_tensor(torch.stack([row, token]), weights, shape, check_invariants=True)
