"""Training losses: on the relevance of documents to queries, and on predicted tokens.

A loss on relevance is called as `loss(relevance, batch)`. `relevance` is (D documents, B queries)
float, for all pairs of the batch; document b < B is the positive of query b. The result is () fp32.
A batch has hard negatives and a teacher's scores if `data.examples` names their source.

Contrastive losses exclude documents known to be relevant from a query's negatives
(`PairBatch.is_negative`). Distillation uses all documents that the teacher scored.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gr_mvdr.batch import PairBatch
from gr_mvdr.options import NonNegative, Positive, build, part
from gr_mvdr.relevance import at_least_float32


@dataclass(frozen=True)
class _Softened:
    """A loss that divides every score by a temperature.

    Args:
        temperature: should be below 1 if relevance has a small range, as a mean of cosines has.
    """

    temperature: Positive = 1.0


@part("loss")
@dataclass(frozen=True)
class InBatchCrossEntropy(_Softened):
    """Contrastive loss over all documents of the batch (gr_as_mvdr Eq. 2, Appendix D).

    The positives and the hard negatives of the other queries are negatives, too, unless
    `PairBatch.is_negative` excludes them.
    """

    def __call__(self, relevance: Tensor, batch: PairBatch) -> Tensor:
        positives = torch.arange(len(batch), device=relevance.device)
        masked = ~batch.is_negative
        masked[positives, positives] = False
        # Queries as rows: cross_entropy takes a softmax over each row.
        logits = (at_least_float32(relevance) / self.temperature).masked_fill(masked, -torch.inf).T
        return F.cross_entropy(logits, positives)


@part("loss")
@dataclass(frozen=True)
class PairwiseCrossEntropy(_Softened):
    """The official ColBERTv1 loss: one positive, one negative (gr_as_mvdr Table 7, "ib neg. ×").

    The negative is the query's first hard negative; without hard negatives, the next document of
    the batch that is a negative (`PairBatch.is_negative`). A query without negatives is ignored.
    """

    def __call__(self, relevance: Tensor, batch: PairBatch) -> Tensor:
        queries = torch.arange(len(batch), device=relevance.device)
        rows = rotate_documents(batch).T if batch.negatives is None else batch.negatives
        usable = batch.is_negative[rows, queries[:, None]]
        first = usable.int().argmax(1)
        negative, usable = rows[queries, first], usable.any(1)
        relevance = at_least_float32(relevance)
        margin = relevance[queries, queries] - relevance[negative, queries]
        return _mean(-F.logsigmoid(margin / self.temperature), usable)


def rotate_documents(batch: PairBatch) -> Tensor:
    """(B, B) int64: entry (s, b) is the row of the positive of query (b + s) mod B."""
    steps = torch.arange(len(batch), device=batch.document_index.device)
    return (steps[:, None] + steps) % len(batch)


@part("loss")
@dataclass(frozen=True)
class HardNegativesCrossEntropy(_Softened):
    """Softmax over the positive and the query's own hard negatives (mva §2.3: triples).

    A query whose hard negatives are all relevant to it is ignored.
    """

    def __call__(self, relevance: Tensor, batch: PairBatch) -> Tensor:
        logits = _own_scores(relevance, batch, self) / self.temperature
        queries = torch.arange(len(batch), device=relevance.device)[:, None]
        masked = ~batch.is_negative[batch.negatives, queries]
        logits = logits.masked_fill(F.pad(masked, (1, 0)), -torch.inf)
        return _mean(-logits.log_softmax(1)[:, 0], (~masked).any(1))


@part("loss")
@dataclass(frozen=True)
class KLDistillation(_Softened):
    """T² · KL(teacher ‖ student) over the positive and the hard negatives of each query.

    The student's distribution is softmax(scores / T), the teacher's softmax(scores / its own
    temperature), over the documents that the teacher scored. The result is a mean over queries; a
    query with fewer than two such documents is ignored. T² keeps the size of the gradient as T
    grows. With equal scores the loss equals `DistillKLDivLoss` and `MultiVectorDistillKLDivLoss`
    of sentence-transformers; with `normalise`, PyLate's `Distillation`.

    Args:
        teacher_temperature: the teacher's temperature; None = T.
        normalise: map the student's scores of a query to [0, 1], lowest to highest.
    """

    teacher_temperature: Positive | None = None
    normalise: bool = False

    def __call__(self, relevance: Tensor, batch: PairBatch) -> Tensor:
        student, teacher = _own_scores(relevance, batch, self), _teacher(batch, self)
        scored = teacher.isfinite()
        usable = scored.sum(1) > 1
        masked = ~(scored | ~usable[:, None])  # a row of −inf alone would have no softmax
        if self.normalise:
            low = student.masked_fill(masked, torch.inf).amin(1, keepdim=True)
            high = student.masked_fill(masked, -torch.inf).amax(1, keepdim=True)
            student = (student - low) / (high - low + 1e-8)
        temperature = self.teacher_temperature or self.temperature
        expected = _log_softmax(teacher.nan_to_num() / temperature, masked)
        predicted = _log_softmax(student / self.temperature, masked)
        divergence = _mean((expected.exp() * (expected - predicted)).sum(1), usable)
        return divergence * self.temperature**2


@part("loss")
@dataclass(frozen=True)
class MarginMSE:
    """Mean squared difference of the student's and the teacher's margins.

    A margin is the positive's score minus a hard negative's, one for each hard negative; margins
    without both of the teacher's scores are ignored. With equal scores the loss equals
    `MarginMSELoss` and `MultiVectorMarginMSELoss` of sentence-transformers.
    """

    def __call__(self, relevance: Tensor, batch: PairBatch) -> Tensor:
        student, teacher = _own_scores(relevance, batch, self), _teacher(batch, self)
        expected = teacher[:, :1] - teacher[:, 1:]
        usable = expected.isfinite()
        margins = student[:, :1] - student[:, 1:]
        return _mean((margins - expected.where(usable, 0.0)).square(), usable)


@part("loss")
class WeightedSum:
    """A weighted sum of losses, such as a contrastive and a distilled one."""

    def __init__(self, losses: list[dict[str, Any]], weights: list[NonNegative]):
        """
        Args:
            losses: losses of this module, as dicts with `_target_`.
            weights: one for each loss.
        """
        if not losses or len(losses) != len(weights):
            rule = f"must be one for each of the {len(losses)} of model.loss.losses, at least one"
            raise ValueError(f"model.loss.weights={list(weights)}: {rule}")
        self.losses, self.weights = [build("loss", loss) for loss in losses], list(weights)

    def __call__(self, relevance: Tensor, batch: PairBatch) -> Tensor:
        parts = zip(self.losses, self.weights, strict=True)
        return torch.stack([weight * loss(relevance, batch) for loss, weight in parts]).sum()


def _own_scores(relevance: Tensor, batch: PairBatch, loss: object) -> Tensor:
    """(B, 1 + G) fp32, the relevance of each query's positive and hard negatives."""
    if batch.negatives is None:
        rule = "needs data.examples.negatives, such as negatives=bm25"
        raise ValueError(f"model.loss={type(loss).__name__}: {rule}")
    queries = torch.arange(len(batch), device=relevance.device)[:, None]
    return at_least_float32(relevance[torch.cat([queries, batch.negatives], dim=1), queries])


def _teacher(batch: PairBatch, loss: object) -> Tensor:
    if batch.teacher is None:
        rule = "needs a teacher's scores, data.examples.negatives.teacher"
        raise ValueError(f"model.loss={type(loss).__name__}: {rule}")
    return batch.teacher


def _log_softmax(logits: Tensor, masked: Tensor) -> Tensor:
    """Log-softmax over the unmasked entries of the last axis; 0 at masked entries.

    Masked entries are not −inf, since −inf − −inf is NaN.
    """
    return logits.masked_fill(masked, -torch.inf).log_softmax(-1).masked_fill(masked, 0.0)


def _mean(values: Tensor, usable: Tensor) -> Tensor:
    """() mean of the usable entries; 0 without usable entries."""
    return values.where(usable, 0.0).sum() / usable.sum().clamp(min=1)


def expected_operations(weights: Tensor) -> Tensor:
    """() Σ_v (mean_b w_bv)², the FLOPS regulariser of sparse vectors (Paria et al. 2020).

    It is a smooth bound on the cost of an inverted index, which is the number of terms that two
    texts share: one term in many texts costs more than many terms in one text each.

    Args:
        weights: (B, V) ≥ 0, the weight of each term in each text.
    """
    return at_least_float32(weights).mean(0).square().sum()
