"""The deletion test: how much does the score fall without the most aligned tokens?

If the alignment explains the score, deleting the tokens that contribute most to the relevance
(Eq. 1; for generative systems Eq. 14, their last layer) lowers the score more than deleting as many
random tokens. Every shortened text is encoded and scored again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.contribution import SIDES, contributions
from analysis.figures import COLOURS, GalleryEntry, legend_below, page_panels, styled
from analysis.statistics import NORMAL
from analysis.tables.metric_names import Metric
from analysis.tokens import find_special
from gr_mvdr.batch import PairBatch, length_mask
from gr_mvdr.options import Count, Size, part
from gr_mvdr.progress import track
from gr_mvdr.relevance import PairAlignment

REPORTED = {"document": 4, "query": 1}  # how many tokens are removed in the metrics
_BATCH = 32  # pairs
LABELS = {"aligned": "the most aligned tokens", "random": "random tokens"}


def without_tokens(ids: Tensor, mask: Tensor, removed: Tensor) -> tuple[Tensor, Tensor]:
    """Removes tokens from texts and pads the texts again.

    Args:
        ids: (B, L) int64.
        mask, removed: (B, L) bool.

    Returns:
        ids and mask (B, L'), where L' ≤ L is the length of the longest remaining text.
    """
    kept = mask & ~removed
    order = (~kept).long().argsort(dim=1, stable=True)
    left = length_mask(kept.sum(1).cpu()).to(ids.device)
    return ids.gather(1, order)[:, : left.shape[1]] * left, left


def strongest(values: Tensor, candidates: Tensor, k: int) -> Tensor:
    """(B, L) bool: the k candidates with the largest values; ties go to the lowest index.

    Args:
        values: (B, L); candidates: (B, L) bool.
    """
    order = values.masked_fill(~candidates, -torch.inf).argsort(dim=1, descending=True, stable=True)
    chosen = torch.zeros_like(candidates).scatter_(1, order[:, :k], True)
    return chosen & candidates


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

    name, title = "deletion", "Deleting tokens"
    reading = (
        "How much the score of a query and its relevant document falls when tokens are removed "
        "and the pair is scored again, in standard deviations of the score over pairs."
    )
    metrics = (
        Metric("aligned_#", "The fall without this number of the most aligned tokens."),
        Metric("random_#", "The fall without this number of random tokens."),
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return subject.model.alignable

    def __init__(
        self,
        subject: Subject,
        pairs: Count,
        removed: Sequence[Size] = (1, 2, 4, 8),
        draws: Size = 3,
    ):
        self.model, self.data, self.pairs = subject.model, subject.data, pairs
        self.removed, self.draws = removed, draws
        self.generator = torch.Generator().manual_seed(0)

    @torch.inference_mode()
    def finish(self) -> Findings:
        """Returns metrics such as "document/aligned_4" and "query/random_1", the mean fall in
        standard deviations of the score over pairs; the table `deletion` and its figure.
        """
        model, data = self.model.eval(), self.data
        _, batches = data.test_pairs(data.test_splits[0], self.pairs, _BATCH, covers=model.covers)
        special = torch.tensor(find_special(data), device=model.device)
        falls, scores = [], []
        for batch in track(batches, "deleting tokens"):
            batch = batch.to(model.device)
            whole = model.score(batch)
            scores += whole.tolist()
            for (side, name, k), fall in self._falls(batch, whole, special):
                place = {"side": side, "removed": name, "tokens": k}
                falls += [place | {"fall": value} for value in fall.tolist()]
        table = deletion_table(falls, scores)
        if table.empty:
            return Findings()
        reported = table[table["tokens"] == table["side"].map(REPORTED)]
        flat = {f"{r.side}/{r.removed}_{r.tokens}": r.deviations for r in reported.itertuples()}
        title = f"{data.collection.name}: scores of {len(scores):,} pairs without some tokens"
        entry = GalleryEntry("deletion", "Scores without the most aligned tokens", CAPTION)
        figures = [(deletion_figure(table, title), entry)]
        tables = {"deletion": table.to_dict("records")}
        return Findings(named(self.name, flat), tables, figures)

    def _falls(
        self, batch: PairBatch, scores: Tensor, special: Tensor
    ) -> Iterator[tuple[tuple[str, str, int], Tensor]]:
        """Yields (side, choice, number of tokens) and the fall of the score, for the pairs that
        keep a removable token.
        """
        pairs = self.model.align(batch)
        for side, contribution in zip(SIDES, contributions(pairs), strict=True):
            words = removable(batch, pairs, side, special)
            if words is None:
                continue
            own = contribution[:, : words.shape[1]]
            draw = [torch.rand(own.shape, generator=self.generator) for _ in range(self.draws)]
            values = {"aligned": [own], "random": [one.to(own.device) for one in draw]}
            for k in self.removed:
                rows = (words.sum(1) > k).nonzero()[:, 0]
                if not len(rows):
                    continue
                fields = {name: field for name, field in vars(batch).items() if field is not None}
                part = PairBatch(**{name: field[rows] for name, field in fields.items()})
                for name, drawn in values.items():
                    gone = [strongest(value[rows], words[rows], k) for value in drawn]
                    left = torch.stack([self._score(part, side, tokens) for tokens in gone])
                    yield (side, name, k), scores[rows] - left.mean(0)

    def _score(self, batch: PairBatch, side: str, gone: Tensor) -> Tensor:
        """(B,) scores of the pairs without the tokens `gone` (B, L) bool of one side."""
        ids, mask = f"{side}_ids", f"{side}_mask"
        left = without_tokens(getattr(batch, ids), getattr(batch, mask), gone)
        return self.model.score(replace(batch, **dict(zip((ids, mask), left, strict=True))))


def deletion_table(falls: Sequence[dict], scores: Sequence[float]) -> DataFrame:
    """Averages the falls, with standard errors, raw and in standard deviations of the scores.

    Args:
        falls: rows of side, removed, tokens and fall, one per pair.
        scores: of all unshortened pairs; if all are equal, the deviations are NaN.

    Returns:
        One row for each choice of tokens with at least two pairs.
    """
    places, keys = ["side", "removed", "tokens"], ["fall", "standard_error", "pairs"]
    groups = DataFrame(falls, columns=[*places, "fall"]).groupby(places, sort=False)["fall"]
    table = groups.agg(["mean", "sem", "count"]).set_axis(keys, axis=1).reset_index()
    deviation = DataFrame(scores, dtype=float)[0].std() if len(scores) else 0
    for name, column in (("deviations", "fall"), ("deviations_error", "standard_error")):
        table[name] = table[column] / (deviation or float("nan"))
    return table[table["pairs"] > 1]


CAPTION = (
    "Bars are 95 % intervals of the mean. If the alignment shows what the score is made of, the "
    "most aligned tokens cost more than random ones. A generative system reads each token in the "
    "context of those before it, which any gap breaks. Special tokens stay."
)


@styled
def deletion_figure(table: DataFrame, title: str) -> Figure:
    """Plots a panel for each side, with a curve for each choice of tokens."""
    sides = table.groupby("side", sort=False)
    figure, panels = page_panels(title, len(sides))
    for axes, (side, rows) in zip(panels, sides, strict=True):
        for (name, label), colour, marker in zip(LABELS.items(), COLOURS, "os", strict=False):
            drawn = rows[rows["removed"] == name]
            error = NORMAL * drawn["deviations_error"]
            look = {"color": colour, "marker": marker, "capsize": 2, "label": label}
            axes.errorbar(drawn["tokens"], drawn["deviations"], yerr=error, **look)
        axes.axhline(0, color="#666666", linewidth=0.8)
        axes.set_xscale("log", base=2)
        counts = rows["tokens"].unique()
        axes.set_xticks(counts, counts.astype(str))
        axes.set(xlabel="tokens removed", title=f"tokens of the {side}")
        axes.grid(visible=True)
    panels[0].set_ylabel("fall of the score\n(standard deviations)")
    legend_below(figure, 2)
    return figure
