"""Ranking losses for generation, which compare log p of a query's positive and other documents.

Teacher forcing raises the probability of each target but ignores the identifiers of other
documents: one that is slightly more probable at one step displaces the gold from the beam. These
losses compare the two. They are multiplied by `weight` and added to the cross-entropy:

- `PrefixRanking`: a margin at every prefix length, of growing lengths (RIPOR, Zeng et al. 2024);
- `MarginRanking`: a margin to the best and to a random candidate (LTRGR, Li et al. 2023);
- `ListwiseRanking`: a softmax over the candidates (GLEN, Lee et al. 2023);
- `PreferenceRanking`: the positive's gain over a frozen copy exceeds each candidate's (DDRO,
  Mekonnen et al. 2025, after direct preference optimisation).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.losses import rotate_documents
from gr_mvdr.options import NonNegative, Positive, Size, part
from gr_mvdr.ranks import gather_batch, mean_over_ranks, slice_for_rank

_PADDING = -1  # marks padding among tokens


@dataclass(frozen=True)
class ScoredTargets:
    """The targets that are ranked for each of B queries: its positive, then C candidates.

    Attributes:
        tokens: (B, 1 + C, L) int64, the targets, −1 at padding.
        scores: (B, 1 + C, L) fp32, the score of the first l tokens of each target; beyond its end,
            of the whole target.
        shared: (B, C) int64, the length of a candidate's longest prefix that also leads to a
            document relevant to the query; prefixes up to this length are not negatives.
        is_negative: (B, C) bool, False for candidates that are relevant to the query.
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
        """(B, 1 + C) int64, the number of tokens of each target."""
        return (self.tokens != _PADDING).sum(2)

    @property
    def search_scores(self) -> Tensor:
        """(B, 1 + C) the scores by which the search ranks the documents."""
        return self.scores[..., -1] / self.lengths.clamp(min=1) ** self.length_penalty

    @property
    def contrasted(self) -> Tensor:
        """(B, C) bool: the candidates whose whole targets are negatives of the query."""
        return self.is_negative & (self.shared < self.lengths[:, 1:])


@dataclass(eq=False)
class RankingLoss:
    """Chooses and scores the candidates of each query; a subclass compares them in `values`.

    Args:
        weight: factor of the loss; 0 = the loss is not computed, only the cross-entropy.
        negatives: the number of the batch's other documents that a query is compared with if the
            data give no hard negatives (group `negatives`).
    """

    weight: NonNegative = 1.0
    negatives: Size = 4

    def begin(self, system: Any) -> None:
        """Called before training."""

    def end(self) -> None:
        """Called after training."""

    def values(self, targets: ScoredTargets, progress: float = 1.0) -> tuple[Tensor, Tensor]:
        """Returns losses of any shape and a mask of that shape, True = the loss counts.

        Args:
            progress: the completed fraction of the training.
        """
        raise NotImplementedError

    def __call__(self, system: Any, batch: PairBatch) -> Tensor:
        """Computes weight · the mean () of `values` over all ranks, from this rank's share.

        Args:
            system: a `GenerativeSystem`.
            batch: its targets, S for each query, then hard negatives.
        """
        batch = gather_batch(first_targets(batch.on_host).to(system.device))
        host, own = batch.on_host, slice_for_rank(len(batch))
        rows, negatives = choose_candidates(host, self.negatives)
        tokens = host.document_ids.masked_fill(~host.document_mask, _PADDING)[rows]
        shared = count_shared_prefixes(system, tokens[:, 1:], host)
        chosen = (x[own].to(system.device, non_blocking=True) for x in (tokens, shared, negatives))
        tokens, shared, negatives = chosen
        targets = ScoredTargets(
            tokens,
            self.score(system, batch, own, rows),
            shared,
            negatives,
            None if batch.teacher is None else batch.teacher[own],
            self.reference(system, batch, own, rows),
            system.hparams.get("length_penalty", 0.0),
        )
        trainer = system._trainer  # None outside of training
        progress = trainer.global_step / trainer.estimated_stepping_batches if trainer else 1.0
        values, usable = self.values(targets, progress)
        total = values.where(usable, 0.0).sum()
        return self.weight * mean_over_ranks(total, usable.sum())

    def score(self, system: Any, batch: PairBatch, own: slice, rows: Tensor) -> Tensor:
        """Scores all prefixes (B, 1 + C, M) of the batch's documents `rows` (B, 1 + C), a CPU's."""
        rows, mask, host = rows[own], batch.query_mask[own], batch.on_host
        queries = system.encode(batch.query_ids[own], mask)
        ids, index = (
            x[rows.flatten()].to(system.device, non_blocking=True)
            for x in (host.document_ids, host.document_index)
        )
        scores = system.token_log_probs(
            queries,
            mask,
            ids,
            host.document_mask[rows.flatten()],
            index,
        )
        return scores.view(*rows.shape, -1).cumsum(2)

    def reference(self, system: Any, batch: PairBatch, own: slice, rows: Tensor) -> Tensor | None:
        """Returns a frozen copy's scores (B, 1 + C) of the whole targets; None = no copy."""
        return None


@part("ranking")
@dataclass(eq=False)
class PrefixRanking(RankingLoss):
    """The positive's prefix of each length leads negatives' by a margin (RIPOR, Zeng et al. 2024).

    A beam keeps prefixes: it loses a gold document, even one that would rank first, if one of the
    document's prefixes falls behind. At length l, the margin is a_l = 1 − 1/(2l) times the margin
    of the whole targets (RIPOR's ½, ¾, ⅞, … at doubled lengths), and a_l = 1 where both targets
    have ended. Without a teacher, the margin of the whole targets is fixed and the loss is a hinge.
    A prefix that also leads to a relevant document is then not a negative. With a teacher, the
    margin is the teacher's and the loss is the squared difference (MarginMSE). The teacher's score
    of a prefix is the highest score of the candidates that begin with the prefix.

    The maximum length grows during training, like RIPOR's 4, 8, 16, 32: it is 1 in the first of
    `stages` equal parts, then 2, 4, …; in the last part, all lengths count.

    Args:
        margin: the margin in nats between whole targets if no teacher scored the pair.
        stages: the number of stages of the curriculum; 1 = all lengths from the beginning.
    """

    margin: Positive = 1.0
    stages: Size = 3

    def values(self, targets: ScoredTargets, progress: float = 1.0) -> tuple[Tensor, Tensor]:
        lead = targets.scores[:, :1] - targets.scores[:, 1:]  # (B, C, L)
        length = torch.arange(1, lead.shape[2] + 1, device=lead.device)
        ends = targets.lengths.unsqueeze(2)
        longest = torch.maximum(ends[:, :1], ends[:, 1:])  # (B, C, 1)
        share = (1 - 0.5 / length).where(length < longest, 1.0)
        values = (share * self.margin - lead).relu()
        usable = targets.contrasted.unsqueeze(2) & (length > targets.shared.unsqueeze(2))
        if targets.teacher is not None:
            wanted = _teacher_margins(targets, targets.teacher)
            known = wanted.isfinite()
            taught = (lead - share * wanted.where(known, 0.0)).square()
            values, usable = taught.where(known, values), known | usable
        stage = min(int(progress * self.stages), self.stages - 1)
        last = stage == self.stages - 1
        return values, usable & (length <= (longest if last else longest.clamp(max=2**stage)))


def _teacher_margins(targets: ScoredTargets, teacher: Tensor) -> Tensor:
    """Computes a teacher's margins (B, C, L); NaN if a score is missing or the prefixes are equal.

    A prefix's score is the highest teacher score of the targets that begin with it.
    """
    tokens, ends = targets.tokens, targets.lengths[:, :, None, None]
    length = torch.arange(1, tokens.shape[2] + 1, device=tokens.device)
    common = count_common_tokens(tokens.unsqueeze(2), tokens.unsqueeze(1)).unsqueeze(3)
    beginning = common >= torch.minimum(length, ends)  # (B, 1 + C, 1 + C, L)
    known = teacher.isfinite()
    best = teacher.where(known, -torch.inf)[:, None, :, None].where(beginning, -torch.inf).amax(2)
    usable = (known[:, :1] & known[:, 1:]).unsqueeze(2) & (common[:, 0, 1:] < length)
    return (best[:, :1] - best[:, 1:]).where(usable, torch.nan)


@part("ranking")
@dataclass(eq=False)
class MarginRanking(RankingLoss):
    """The positive leads the best and a random negative by a margin (LTRGR, Li et al. 2023).

    The loss is the mean of both hinges. Hard negatives are in random order, so the first one serves
    as the random negative. LTRGR compares SEAL's sums of evidence; this loss compares the scores of
    the system's search.

    Args:
        margin: the margin in nats.
    """

    margin: Positive = 1.0

    def values(self, targets: ScoredTargets, progress: float = 1.0) -> tuple[Tensor, Tensor]:
        scores, usable = targets.search_scores, targets.contrasted
        least = torch.finfo(scores.dtype).min
        others = F.pad(scores[:, 1:].masked_fill(~usable, least), (0, 1), value=least)
        first = F.pad(usable, (0, 1)).int().argmax(1, keepdim=True)
        chosen = torch.cat([others.amax(1, keepdim=True), others.gather(1, first)], 1)
        values = (self.margin - (scores[:, :1] - chosen)).relu()
        return values, usable.any(1, keepdim=True).expand_as(values)


@part("ranking")
@dataclass(eq=False)
class ListwiseRanking(RankingLoss):
    """Softmax over the positive and its negatives (GLEN's second phase, Lee et al. 2023).

    Args:
        temperature: divides the scores.
    """

    temperature: Positive = 1.0

    def values(self, targets: ScoredTargets, progress: float = 1.0) -> tuple[Tensor, Tensor]:
        usable = targets.contrasted
        logits = targets.search_scores / self.temperature
        logits = logits.masked_fill(F.pad(~usable, (1, 0)), -torch.inf)
        return -logits.log_softmax(1)[:, 0], usable.any(1)


@part("ranking")
@dataclass(eq=False)
class PreferenceRanking(RankingLoss):
    """−log σ(β(gain of the positive − gain of a negative)) (DDRO, Mekonnen et al. 2025).

    The gain of a target is its log p minus its log p under a frozen copy of the initial model. The
    loss starts at log 2 if dropout is 0.

    Args:
        beta: β; 0.4 in DDRO.
    """

    beta: Positive = 0.4

    def __post_init__(self) -> None:
        self.frozen: Any = None

    def begin(self, system: Any) -> None:
        """Makes a frozen copy of the system.

        The copy is not a module of the system, so it is not trained and no checkpoint holds it. A
        resumed training starts from the same initial weights and copies them again.
        """
        self.frozen = copy.copy(system)
        self.frozen._modules = copy.deepcopy(system._modules)
        self.frozen.eval().requires_grad_(False)

    def end(self) -> None:
        """Frees the copy, which search and analysis do not need."""
        self.frozen = None

    @torch.no_grad()
    def reference(self, system: Any, batch: PairBatch, own: slice, rows: Tensor) -> Tensor:
        frozen = self.frozen.to(device=system.device, dtype=system.dtype)
        return self.score(frozen, batch, own, rows)[..., -1]

    def values(self, targets: ScoredTargets, progress: float = 1.0) -> tuple[Tensor, Tensor]:
        gains = targets.scores[..., -1] - targets.reference
        return -F.logsigmoid(self.beta * (gains[:, :1] - gains[:, 1:])), targets.contrasted


def first_targets(batch: PairBatch) -> PairBatch:
    """Returns the batch with only the first target of each query; keeps the hard negatives."""
    size, rows = len(batch), torch.arange(len(batch.document_ids))
    targets = len(rows) + size - len(batch.document_index)
    rows = torch.cat([rows[: targets : targets // size], rows[targets:]])
    sides = {name: getattr(batch, name)[rows] for name in ("document_ids", "document_mask")}
    return replace(batch, **sides)


def choose_candidates(batch: PairBatch, number: int) -> tuple[Tensor, Tensor]:
    """Chooses the documents that each query's positive is compared with.

    Args:
        number: how many of the batch's next documents replace missing hard negatives.

    Returns:
        (B, 1 + C) int64 rows of the batch's documents, the positive's first; (B, C) bool, which of
        the others are negatives (`PairBatch.is_negative`).
    """
    circle = rotate_documents(batch).T
    others = circle[:, 1 : 1 + number] if batch.negatives is None else batch.negatives
    queries = circle[:, :1]
    return torch.cat([queries, others], 1), batch.is_negative[others, queries]


def count_shared_prefixes(system: Any, tokens: Tensor, batch: PairBatch) -> Tensor:
    """Counts (B, C) int64, the first tokens of candidates that also lead to a relevant document.

    Args:
        tokens: (B, C, M) int64, each query's candidates, −1 at padding.
        batch: says which documents are relevant to its queries.
    """
    columns = batch.relevant_index.T.tolist()
    sources = {row: system.target_source(row) for row in set().union(*columns)}
    counts = []
    for column in columns:
        texts = [sources[row] for row in column]
        if system.targets_are_ngrams:
            counts.append(count_ngram_tokens(tokens, texts, system.template.stop))
        else:
            counts.append(count_common_tokens(tokens, pad(texts, _PADDING)[0][:, None].to(tokens)))
    return torch.stack(counts).amax(0)


def count_ngram_tokens(tokens: Tensor, texts: Sequence[Sequence[int]], stop: int) -> Tensor:
    """Counts (B, C) int64, the first tokens of n-grams (B, C, M) that occur in their query's text.

    They must occur consecutively; an end token that follows them counts as well.
    """
    length = tokens.shape[2]
    padded = pad(texts, _PADDING)[0][:, None].to(tokens)
    windows = F.pad(padded, (0, length), value=_PADDING).unfold(2, length, 1)
    shared = count_common_tokens(tokens.unsqueeze(2), windows).amax(2)
    following = tokens.gather(2, shared.clamp(max=length - 1).unsqueeze(2)).squeeze(2)
    return shared + (following == stop)


def count_common_tokens(one: Tensor, other: Tensor) -> Tensor:
    """Counts (…) int64, the first tokens that sequences (…, L) and (…, M) share, up to padding."""
    length = min(one.shape[-1], other.shape[-1])
    one, other = one[..., :length], other[..., :length]
    return ((one == other) & (one != _PADDING)).long().cumprod(-1).sum(-1)
