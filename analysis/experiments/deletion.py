"""The deletion test: how much does the score fall without the most aligned tokens?

If the alignment shows what a score is made of, a text without the tokens that contribute most to
the relevance (Eq. 1; of a generative system Eq. 14, its last layer) loses more than one without as
many random tokens. Every shortened text is encoded and scored anew.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from analysis.analysis import Findings
from analysis.contribution import contributions
from analysis.experiments.deletion_figure import CAPTION, deletion_figure
from analysis.experiments.token_removal import SIDES, removable, strongest, without_tokens
from analysis.figures import GalleryEntry
from analysis.tables import Row
from gr_mvdr.batch import PairBatch
from gr_mvdr.parts import part
from gr_mvdr.progress import track

PREFIX = "analysis/deletion/"
REPORTED = {"document": 4, "query": 1}  # how many tokens are gone in the metrics
_BATCH = 32  # pairs

# Side, which tokens are removed ("aligned", "random"), how many.
Key = tuple[str, str, int]


@dataclass
class Deletion:
    """What is removed.

    Attributes:
        removed: how many tokens; draws: random choices that are averaged.
        special: ids that are never removed.
        generator: of the random choices.
    """

    removed: Sequence[int]
    draws: int
    special: Tensor
    generator: torch.Generator

    def falls(self, model: Any, batch: PairBatch, scores: Tensor) -> Iterator[tuple[Key, Tensor]]:
        """Score minus score without the tokens, of the pairs that keep a token that may go.

        Args:
            batch: pairs; scores: (B,) of the whole pairs.
        """
        pairs = model.align(batch)
        for side, contribution in zip(SIDES, contributions(pairs), strict=True):
            words = removable(batch, pairs, side, self.special)
            if words is None:
                continue
            values = self._values(contribution[:, : words.shape[1]])
            for k in self.removed:
                rows = (words.sum(1) > k).nonzero()[:, 0]
                if not len(rows):
                    continue
                part = _chosen(batch, rows)
                for name, drawn in values.items():
                    gone = [strongest(value[rows], words[rows], k) for value in drawn]
                    left = torch.stack([_score(model, part, side, tokens) for tokens in gone])
                    yield (side, name, k), scores[rows] - left.mean(0)

    def _values(self, contribution: Tensor) -> dict[str, list[Tensor]]:
        """What is removed: the tokens with the largest of these values (B, L)."""
        draw = [torch.rand(contribution.shape, generator=self.generator) for _ in range(self.draws)]
        return {
            "aligned": [contribution],
            "random": [one.to(contribution.device) for one in draw],
        }


@part("experiment")
@torch.inference_mode()
def measure_deletion(
    model: Any,
    data: Any,
    pairs: int,
    removed: Sequence[int] = (1, 2, 4, 8),
    draws: int = 3,
    seed: int = 0,
) -> Findings:
    """Deletes tokens of test queries and of their relevant documents.

    A pair counts where a token that may go is left; aligned and random tokens are removed from the
    same pairs. Documents are left alone where a system does not read them token by token.

    Args:
        model: a system; data: a `RetrievalDataModule`.
        pairs: of test query and relevant document, at most.
        removed: how many tokens are removed.
        draws: random choices a pair; seed: of these.

    Returns:
        Metrics "document/aligned_4", "query/random_1": the mean fall in standard deviations of the
        score over pairs. Nothing for a system without alignment.

    Raises:
        ValueError: fewer than one token or draw.
    """
    if min(*removed, draws) < 1:
        raise ValueError(f"removed={list(removed)}, draws={draws}: must be ≥ 1")
    if not pairs or not model.alignable:
        return Findings()
    _, batches = data.test_pairs(data.test_splits[0], pairs, _BATCH, covers=model.covers)
    special = torch.tensor(sorted(data.tokenizer.all_special_ids), device=model.device)
    generator = torch.Generator().manual_seed(seed)
    falls, scores = _falls(model, batches, Deletion(removed, draws, special, generator))
    rows = deletion_rows(falls, scores)
    if not rows:
        return Findings()
    title = f"{data.collection.name}: scores of {len(scores):,} pairs without some of their tokens"
    entry = GalleryEntry("deletion", "Scores without the most aligned tokens", CAPTION)
    return Findings(_metrics(rows), {"deletion": rows}, [(deletion_figure(rows, title), entry)])


def _falls(
    model: Any, batches: Sequence[PairBatch], deletion: Deletion
) -> tuple[dict[Key, Tensor], Tensor]:
    """What `deletion_rows` reads, on the CPU."""
    model.eval()
    falls: dict[Key, list[Tensor]] = {}
    scores = [torch.empty(0)]
    for batch in track(batches, "deleting tokens"):
        batch = batch.to(model.device)
        whole = model.score(batch)
        scores.append(whole.cpu())
        for key, fall in deletion.falls(model, batch, whole):
            falls.setdefault(key, []).append(fall.cpu())
    return {key: torch.cat(parts) for key, parts in falls.items()}, torch.cat(scores)


def _chosen(batch: PairBatch, rows: Tensor) -> PairBatch:
    return PairBatch(
        **{name: value[rows] for name, value in vars(batch).items() if value is not None}
    )


def _score(model: Any, batch: PairBatch, side: str, gone: Tensor) -> Tensor:
    """(B,) scores of pairs without some tokens (B, L) bool of one side."""
    ids, mask = getattr(batch, f"{side}_ids"), getattr(batch, f"{side}_mask")
    ids, mask = without_tokens(ids, mask, gone)
    return model.score(replace(batch, **{f"{side}_ids": ids, f"{side}_mask": mask}))


def deletion_rows(falls: dict[Key, Tensor], scores: Tensor) -> list[Row]:
    """The table: mean falls and their standard errors, raw and in deviations of the scores.

    Args:
        falls: of every choice of tokens, one value a pair.
        scores: (P,) of all whole pairs; if all are equal, deviations are NaN.
    """
    if len(scores) < 2:
        return []
    deviation, rows = float(scores.double().std()) or float("nan"), []
    for (side, name, k), values in falls.items():
        if len(values) < 2:  # a mean without an error
            continue
        values = values.double()
        fall, error = float(values.mean()), float(values.std() / len(values) ** 0.5)
        rows.append(
            {"side": side, "removed": name, "tokens": k, "pairs": len(values)}
            | {"fall": fall, "standard_error": error}
            | {"deviations": fall / deviation, "deviations_error": error / deviation}
        )
    return rows


def _metrics(rows: Sequence[Row]) -> dict[str, float]:
    return {
        f"{PREFIX}{row['side']}/{row['removed']}_{row['tokens']}": row["deviations"]
        for row in rows
        if row["tokens"] == REPORTED[row["side"]] and isfinite(row["deviations"])
    }
