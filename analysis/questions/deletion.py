"""The deletion test: how much does the score fall without the most aligned tokens?

If the alignment explains the score, deleting the tokens that contribute most to the relevance
(Eq. 1; for generative systems Eq. 14, their last layer) lowers the score more than deleting as many
random tokens. Every shortened text is encoded and scored again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import pandas
import torch
from matplotlib.figure import Figure
from pandas import DataFrame, Series
from torch import Tensor

from analysis.figures import GalleryEntry, draw_lines, scale_by_doubling
from analysis.questions.analysis import Analysis, Findings, Subject
from analysis.questions.contribution import SIDES, contributions
from analysis.questions.tokens import find_special
from analysis.statistics import NORMAL
from gr_mvdr.batch import PairBatch, pad, unpad
from gr_mvdr.measures import Metric
from gr_mvdr.options import Count, Size, part
from gr_mvdr.relevance import PairAlignment
from gr_mvdr.salience import strongest

PLACES = ["side", "removed", "tokens"]
REPORTED = {"document": 4, "query": 1}  # how many tokens are removed in the metrics
_BATCH = 32  # pairs
LABELS = {"aligned": "the most aligned tokens", "random": "random tokens"}


def removable(batch: PairBatch, pairs: PairAlignment, side: str, special: Tensor) -> Tensor | None:
    """(B, L) bool: the tokens that can be removed, which are all but the special tokens.

    Returns None if the system does not read this side token by token, as with pooled texts and with
    identifiers instead of documents.

    Args:
        batch: the pairs.
        pairs: their alignment.
        side: "document" or "query".
        special: ids of special tokens.
    """
    ids, mask = getattr(batch, f"{side}_ids"), getattr(batch, f"{side}_mask")
    # Sentinels and other special tokens may follow the text's own tokens.
    length = ids.shape[1]
    read, real = (getattr(pairs, f"{side}_{part}")[:, :length] for part in ("ids", "mask"))
    words = mask & ~torch.isin(ids, special)
    if read.shape != ids.shape or bool((words & ~(real & (read == ids))).any()):
        return None
    return words


@part("analysis")
@dataclass
class Deletion(Analysis):
    """Deletes tokens of test queries and of their relevant documents.

    A pair counts if at least one removable token remains; aligned and random tokens are removed
    from the same pairs. Documents are not shortened if the system does not read them token by
    token.

    Args:
        pairs: the maximum number of pairs of a test query and a relevant document.
        removed: how many tokens are removed.
        draws: random choices per pair.
    """

    pairs: Count
    removed: Sequence[Size] = (1, 2, 4, 8)
    draws: Size = 3

    name, title = "deletion", "Deleting tokens"
    reading = (
        "How much the score of a query and its relevant document falls when tokens are removed "
        "and the pair is scored again, in standard deviations of the score over pairs."
    )
    metrics = tuple(
        Metric(f"{kind}_#", f"The fall of the score after removing # {words}.").at(k)
        for kind, words in LABELS.items()
        for k in REPORTED.values()
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return subject.model.alignable

    def finish(self) -> Findings:
        """Returns metrics such as "document/aligned_4" and "query/random_1", the mean fall in
        standard deviations of the score over pairs; the table `deletion` and its figure.
        """
        model, data = self.subject.model, self.subject.data
        special = torch.tensor(find_special(data), device=model.device)
        generator, falls, scores = torch.Generator().manual_seed(0), [], []
        for batch in self.subject.pairs(self.pairs, _BATCH, "deleting tokens"):
            scores.append(model.score(batch))
            falls += self._falls(batch, scores[-1], special, generator)
        if not falls:
            return Findings()
        falls = pandas.concat(falls)
        falls = falls[falls.groupby(PLACES)["fall"].transform("count") > 1]
        if falls.empty:
            return Findings()
        scores = Series(torch.cat(scores).tolist())
        falls = falls.assign(deviations=falls["fall"] / (scores.std() or float("nan")))
        groups = falls.groupby(PLACES, sort=False)
        table = groups["fall"].agg(fall="mean", standard_error="sem", pairs="count")
        errors = groups["deviations"].agg(deviations="mean", deviations_error="sem")
        table = table.join(errors).reset_index()
        reported = table[table["tokens"] == table["side"].map(REPORTED)]
        rows = []
        for r in reported.itertuples():
            rows += self.rows({f"{r.removed}_{r.tokens}": r.deviations}, r.side)
        title = f"{data.collection.name}: scores of {len(scores):,} pairs without some tokens"
        entry = GalleryEntry("deletion", "Scores without the most aligned tokens", CAPTION)
        figures = [(deletion_figure(falls, title), entry)]
        tables = {"deletion": table.to_dict("records")}
        return self.findings(rows, tables, figures)

    def _falls(
        self, batch: PairBatch, scores: Tensor, special: Tensor, generator: torch.Generator
    ) -> Iterator[DataFrame]:
        """Yields the fall of each pair's score by side, choice and number of removed tokens, for
        the pairs that keep a removable token.
        """
        pairs, model = self.subject.model.align(batch), self.subject.model
        for side, contribution in zip(SIDES, contributions(pairs), strict=True):
            words = removable(batch, pairs, side, special)
            if words is None:
                continue
            own = contribution[:, : words.shape[1]]
            draws = [torch.rand(own.shape, generator=generator) for _ in range(self.draws)]
            values = {"aligned": [own], "random": [draw.to(own.device) for draw in draws]}
            for k, (name, drawn) in product(self.removed, values.items()):
                rows = words.sum(1) > k
                if not rows.any():
                    continue
                kept = {key: tokens[rows] for key, tokens in batch.sides.items()}
                part, left = PairBatch(**kept, document_index=batch.document_index[rows]), []
                for value in drawn:
                    gone = strongest(value[rows], words[rows], k)
                    texts = unpad(kept[f"{side}_ids"], kept[f"{side}_mask"] & ~gone)
                    ids, mask = (one.to(own.device) for one in pad(texts))
                    shorter = replace(part, **{f"{side}_ids": ids, f"{side}_mask": mask})
                    left.append(model.score(shorter))
                fall = (scores[rows] - torch.stack(left).mean(0)).cpu().double()
                yield DataFrame({"side": side, "removed": name, "tokens": k, "fall": fall})


CAPTION = (
    "Bars are 95 % intervals of the mean. If the alignment shows what the score is made of, the "
    "most aligned tokens cost more than random ones. A generative system reads each token in the "
    "context of those before it, which any gap breaks. Special tokens stay."
)


def deletion_figure(falls: DataFrame, title: str) -> Figure:
    """Plots a panel for each side, with a curve for each choice of tokens."""
    points = falls.rename(columns={"tokens": "x", "deviations": "y"})
    points = points.assign(
        line=falls["removed"].map(LABELS), panel="tokens of the " + falls["side"]
    )
    label = "fall of the score\n(standard deviations)"
    figure = draw_lines(points, title, "tokens removed", label, ("se", NORMAL))
    for axes in figure.axes:
        axes.axhline(0, color="#666666", linewidth=0.8)
        scale_by_doubling(axes, falls["tokens"])
    return figure
