"""Losses that rank for generation: a query's positive against other documents, by their log p.

Teacher forcing makes each target probable and says nothing of other documents' identifiers: one
that is a little more probable at one step takes the gold's place in the beam. These losses compare
them. They are added to the cross-entropy, `weight` times:

- `PrefixRanking`: a margin at every prefix length, of growing lengths (RIPOR, Zeng et al. 2024);
- `MarginRanking`: a margin to the best and to a random candidate (LTRGR, Li et al. 2023);
- `ListwiseRanking`: a softmax over the candidates (GLEN, Lee et al. 2023);
- `PreferenceRanking`: preferred to each candidate, more than by a frozen copy (DDRO, Mekonnen et
  al. 2025, after direct preference optimisation).

A loss is called as `loss(candidates, progress)` and returns values of any one shape and a mask of
it, which of them count; the loss is their mean over the batch of all ranks.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.losses import rotate_documents
from gr_mvdr.options import build, part
from gr_mvdr.ranks import gather_batch, mean_over_ranks, slice_for_rank

_NONE = -1  # the token of no place: padding


@dataclass(frozen=True)
class Candidates:
    """The documents that B queries are ranked among: each query's positive, then C others.

    Attributes:
        tokens: (B, 1 + C, L) int64 the documents' targets, −1 at padding.
        scores: (B, 1 + C, L) fp32 of their first l tokens; beyond its end that of the whole target.
        shared: (B, C) int64, how many first tokens of a candidate lead to a document, too, that is
            relevant to the query: the candidate's prefixes are no negatives up to there.
        is_negative: (B, C) bool, the candidate itself is none that is relevant.
        teacher: (B, 1 + C) a teacher's scores, NaN where it gave none; None = no teacher.
        reference: (B, 1 + C) the frozen copy's scores of the whole targets; None = no copy.
        length_penalty: documents are ranked by log p / length^penalty.
    """

    tokens: Tensor
    scores: Tensor
    shared: Tensor
    is_negative: Tensor
    teacher: Tensor | None = None
    reference: Tensor | None = None
    length_penalty: float = 0.0

    @property
    def lengths(self) -> Tensor:
        """(B, 1 + C) int64, tokens of each target."""
        return (self.tokens != _NONE).sum(2)

    @property
    def ranked_by(self) -> Tensor:
        """(B, 1 + C) what the search ranks the documents by."""
        return self.scores[..., -1] / self.lengths.clamp(min=1) ** self.length_penalty

    @property
    def tell_apart(self) -> Tensor:
        """(B, C) bool: the candidates that the positive is to be told apart from."""
        return self.is_negative & (self.shared < self.lengths[:, 1:])


@dataclass(frozen=True)
class RankingLoss:
    """What all of them take.

    Args:
        weight: what the loss is multiplied by; 0 = the cross-entropy alone, nothing is computed.
        negatives: the batch's other documents that a query is compared with where the data give it
            no hard negatives of its own (group `negatives`).
    """

    needs_reference: ClassVar[bool] = False  # to a frozen copy

    weight: float = 1.0
    negatives: int = 4
    logits: ClassVar[bool] = False  # scores are sums of logits, not of log-probabilities

    def __post_init__(self):
        for key, value in vars(self).items():
            counted = key in ("negatives", "stages")
            if value < counted or (value == 0 and key not in ("weight", "logits")):
                rule = "≥ 1" if counted else "≥ 0" if key == "weight" else "> 0"
                raise ValueError(f"model.ranking.{key}={value}: must be {rule}")

    def __call__(self, candidates: Candidates, progress: float = 1.0) -> tuple[Tensor, Tensor]:
        """Values and which of them count; progress: the share of the training that is done."""
        raise NotImplementedError


@part("ranking")
@dataclass(frozen=True)
class PrefixRanking(RankingLoss):
    """The positive's prefix of each length leads negatives' by a margin (RIPOR, Zeng et al. 2024).

    A beam keeps prefixes: a gold that ranks first in the end is lost if one of its beginnings falls
    behind. At length l the margin is a_l = 1 − 1/(2l) of the whole targets', RIPOR's ½, ¾, ⅞, … at
    doubled lengths, and 1 where both have ended. Without a teacher it is fixed, and a hinge; with
    one it is the teacher's, and a squared difference (MarginMSE), where a prefix has the highest of
    the teacher's scores of the candidates that begin with it. A prefix that also leads to what is
    relevant is told apart from nothing.

    The lengths grow with training, as RIPOR's 4, 8, 16, 32: up to 1 in the first of `stages` equal
    parts, then 2, 4, …, and all in the last.

    Args:
        margin: between whole targets, in nats, where no teacher scored the pair.
        stages: of the curriculum; 1 = all lengths from the beginning.
        logits: score by sums of logits, RIPOR's form; False = of log-probabilities, which is what
            the beam search here ranks by. They differ by log Z of every prefix.
    """

    margin: float = 1.0
    stages: int = 3
    logits: bool = False  # type: ignore[misc]

    def __call__(self, candidates: Candidates, progress: float = 1.0) -> tuple[Tensor, Tensor]:
        lead = candidates.scores[:, :1] - candidates.scores[:, 1:]  # (B, C, L)
        length = torch.arange(1, lead.shape[2] + 1, device=lead.device)
        ends = candidates.lengths.unsqueeze(2)
        longest = torch.maximum(ends[:, :1], ends[:, 1:])  # (B, C, 1)
        share = (1 - 0.5 / length).where(length < longest, 1.0)
        values = (share * self.margin - lead).relu()
        usable = candidates.tell_apart.unsqueeze(2) & (length > candidates.shared.unsqueeze(2))
        if candidates.teacher is not None:
            wanted = _teacher_margins(candidates, candidates.teacher)
            known = wanted.isfinite()
            taught = (lead - share * wanted.where(known, 0.0)).square()
            values, usable = taught.where(known, values), known | usable
        stage = min(int(progress * self.stages), self.stages - 1)
        last = stage == self.stages - 1
        return values, usable & (length <= (longest if last else longest.clamp(max=2**stage)))


def _teacher_margins(candidates: Candidates, teacher: Tensor) -> Tensor:
    """(B, C, L) a teacher's margins of prefixes; NaN where it did not score both, or they are one.

    A prefix has the highest score of the candidates that begin with it.
    """
    tokens, ends = candidates.tokens, candidates.lengths[:, :, None, None]
    length = torch.arange(1, tokens.shape[2] + 1, device=tokens.device)
    common = common_prefixes(tokens.unsqueeze(2), tokens.unsqueeze(1)).unsqueeze(3)
    beginning = common >= torch.minimum(length, ends)  # (B, 1 + C, 1 + C, L)
    known = teacher.isfinite()
    best = teacher.where(known, -torch.inf)[:, None, :, None].where(beginning, -torch.inf).amax(2)
    usable = (known[:, :1] & known[:, 1:]).unsqueeze(2) & (common[:, 0, 1:] < length)
    return (best[:, :1] - best[:, 1:]).where(usable, torch.nan)


@part("ranking")
@dataclass(frozen=True)
class MarginRanking(RankingLoss):
    """The positive leads the best and a random negative by a margin (LTRGR, Li et al. 2023).

    The mean of both hinges. Hard negatives are drawn at random, so the first of them is a random
    one. LTRGR's scores are SEAL's sums of evidence; these are what the search ranks by.

    Args:
        margin: in nats.
    """

    margin: float = 1.0

    def __call__(self, candidates: Candidates, progress: float = 1.0) -> tuple[Tensor, Tensor]:
        scores, usable = candidates.ranked_by, candidates.tell_apart
        least = torch.finfo(scores.dtype).min
        others = F.pad(scores[:, 1:].masked_fill(~usable, least), (0, 1), value=least)
        first = F.pad(usable, (0, 1)).int().argmax(1, keepdim=True)
        chosen = torch.cat([others.amax(1, keepdim=True), others.gather(1, first)], 1)
        values = (self.margin - (scores[:, :1] - chosen)).relu()
        return values, usable.any(1, keepdim=True).expand_as(values)


@part("ranking")
@dataclass(frozen=True)
class ListwiseRanking(RankingLoss):
    """Softmax over the positive and its negatives (GLEN's second phase, Lee et al. 2023).

    Args:
        temperature: what scores are divided by.
    """

    temperature: float = 1.0

    def __call__(self, candidates: Candidates, progress: float = 1.0) -> tuple[Tensor, Tensor]:
        usable = candidates.tell_apart
        logits = candidates.ranked_by / self.temperature
        logits = logits.masked_fill(F.pad(~usable, (1, 0)), -torch.inf)
        return -logits.log_softmax(1)[:, 0], usable.any(1)


@part("ranking")
@dataclass(frozen=True)
class PreferenceRanking(RankingLoss):
    """−log σ(β(positive's gain − negative's)) over a frozen copy (DDRO, Mekonnen et al. 2025).

    A gain is log p less that of the model as it was when training began: log 2 at the beginning,
    where dropout is 0.

    Args:
        beta: β; DDRO's 0.4.
    """

    needs_reference = True

    beta: float = 0.4

    def __call__(self, candidates: Candidates, progress: float = 1.0) -> tuple[Tensor, Tensor]:
        gains = candidates.scores[..., -1] - candidates.reference
        return -F.logsigmoid(self.beta * (gains[:, :1] - gains[:, 1:])), candidates.tell_apart


def own_targets(batch: PairBatch) -> PairBatch:
    """The batch without its hard negatives."""
    if batch.negatives is None:
        return batch
    size, targets = len(batch), len(batch.document_ids) + len(batch) - len(batch.document_index)
    sides = {name: getattr(batch, name)[:targets] for name in ("document_ids", "document_mask")}
    own = batch.document_index[:size]
    return replace(batch, **sides, document_index=own, negatives=None, teacher=None)


def first_targets(batch: PairBatch) -> PairBatch:
    """The batch with one target a query, the first of each; hard negatives follow as before."""
    size, rows = len(batch), torch.arange(len(batch.document_ids))
    targets = len(rows) + size - len(batch.document_index)
    rows = torch.cat([rows[: targets : targets // size], rows[targets:]])
    sides = {name: getattr(batch, name)[rows] for name in ("document_ids", "document_mask")}
    return replace(batch, **sides)


def mark_padding(batch: PairBatch) -> Tensor:
    """(D, M) int64 the documents' token ids, −1 at padding."""
    return batch.document_ids.masked_fill(~batch.document_mask, _NONE)


def common_prefixes(one: Tensor, other: Tensor) -> Tensor:
    """(…) int64, how many first tokens two sequences (…, L), (…, M) have in common; −1 is none."""
    length = min(one.shape[-1], other.shape[-1])
    one, other = one[..., :length], other[..., :length]
    return ((one == other) & (one != _NONE)).long().cumprod(-1).sum(-1)


def shared_ngrams(tokens: Tensor, texts: Sequence[Sequence[int]], stop: int) -> Tensor:
    """(B, C) int64, how many first tokens of n-grams (B, C, M) occur in a row in one of B texts.

    What ends an n-gram that occurs counts as well.
    """
    length, (ids, mask) = tokens.shape[2], pad(texts)
    ids = F.pad(ids.masked_fill(~mask, _NONE), (0, length), value=_NONE).to(tokens.device)
    windows = ids.unfold(1, length, 1)  # (B, places, M)
    shared = common_prefixes(tokens.unsqueeze(2), windows.unsqueeze(1)).amax(2)
    following = tokens.gather(2, shared.clamp(max=length - 1).unsqueeze(2)).squeeze(2)
    return shared + (following == stop)


class Ranker:
    """A ranking loss of a generative system, and the system's frozen copy where it asks for one."""

    def __init__(self, loss: RankingLoss):
        self.loss = loss
        self.frozen: Any = None

    @classmethod
    def of(cls, settings: dict[str, Any] | None) -> "Ranker | None":
        """Of the loss that settings describe; None where there is none, or its weight is 0."""
        loss = build("ranking", settings) if settings else None
        return cls(loss) if loss is not None and loss.weight else None

    def freeze(self, system: Any) -> None:
        """Copies the system as it is now, if the loss compares it with itself.

        The copy is no module of the system: it is not trained, and no checkpoint holds it. Training
        begins with the same weights when it is resumed, and copies them again.
        """
        if self.loss.needs_reference:
            self.frozen = copy.copy(system)
            self.frozen._modules = copy.deepcopy(system._modules)
            self.frozen.eval().requires_grad_(False)

    def __call__(self, system: Any, batch: PairBatch) -> Tensor:
        """() weight · the mean over all ranks' queries, of this rank's share of them.

        Args:
            system: a `ConstrainedSearch`. batch: its targets, S of each query, hard negatives.
        """
        batch = gather_batch(first_targets(batch))
        own = slice_for_rank(len(batch))
        rows, negatives = choose_candidates(batch, self.loss.negatives)
        tokens = mark_padding(batch)[rows]
        candidates = Candidates(
            tokens[own],
            self._score(system, batch, own, rows),
            system.shared_prefixes(tokens[:, 1:], batch)[own],
            negatives[own],
            None if batch.teacher is None else batch.teacher[own],
            None if self.frozen is None else self._reference(system, batch, own, rows),
            system.hparams.get("length_penalty", 0.0),
        )
        values, usable = self.loss(candidates, training_progress(system))
        total = values.where(usable, 0.0).sum()
        return self.loss.weight * mean_over_ranks(total, usable.sum())

    def _score(self, system: Any, batch: PairBatch, own: slice, rows: Tensor) -> Tensor:
        """(B, 1 + C, M) sums up to each token; rows (B, 1 + C) of the batch's documents."""
        rows, mask = rows[own], batch.query_mask[own]
        queries, each = system.encode(batch.query_ids[own], mask), rows.shape[1]
        texts = batch.document_ids, batch.document_mask, batch.document_index
        found = system.token_log_probs(
            queries.repeat_interleave(each, 0),
            mask.repeat_interleave(each, 0),
            *(x[rows.flatten()] for x in texts),
            normalised=not self.loss.logits,
        )
        return found.view(*rows.shape, -1).cumsum(2)

    @torch.no_grad()
    def _reference(self, system: Any, batch: PairBatch, own: slice, rows: Tensor) -> Tensor:
        frozen = self.frozen.to(device=system.device, dtype=system.dtype)
        return self._score(frozen, batch, own, rows)[..., -1]


def training_progress(system: Any) -> float:
    """The share of the training's epochs, or steps, that is done; 1 without a trainer."""
    trainer = system._trainer
    if trainer is None:
        return 1.0
    part = max(0, trainer.fit_loop.batch_idx) / max(1, trainer.num_training_batches)
    of_epochs = (system.current_epoch + part) / max(1, trainer.max_epochs or 0)
    of_steps = system.global_step / max(1, trainer.max_steps)
    ends = [(trainer.max_epochs or -1, of_epochs), (trainer.max_steps, of_steps)]
    return max((done for end, done in ends if end > 0), default=0.0)


def choose_candidates(batch: PairBatch, number: int) -> tuple[Tensor, Tensor]:
    """Whom each query's positive is compared with: hard negatives, or the batch's next documents.

    Args:
        number: documents of the batch a query, where it has no hard negatives.

    Returns:
        (B, 1 + C) int64 rows of the batch's documents, the positive's first; (B, C) bool, which of
        the others are negatives (`PairBatch.is_negative`).
    """
    circle = rotate_documents(batch).T
    others = circle[:, 1 : 1 + number] if batch.negatives is None else batch.negatives
    queries = circle[:, :1]
    return torch.cat([queries, others], 1), batch.is_negative[others, queries]
