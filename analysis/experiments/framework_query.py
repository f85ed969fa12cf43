"""Through which paths a query changes the logits (gr_as_mvdr §8).

Most of a logit says how well a token follows the tokens before it, whatever the query. The same
targets after another query tell the rest: the difference of a token's logits is the sum of the
differences of its paths, each with the final layer norm's scale of its own pass.
"""

from dataclasses import replace
from math import isfinite
from typing import Any

import torch

from analysis.analysis import Findings
from analysis.figures import GalleryEntry
from analysis.measurements.framework_figure import share_bars
from analysis.measurements.framework_report import TokenAndPairShares, path_rows
from analysis.tables import Row
from gr_mvdr.batch import PairBatch
from gr_mvdr.parts import part
from gr_mvdr.progress import track
from gr_mvdr.relevance import DecoderPaths

CAPTION = (
    "The logits of the same target tokens after their own query and after another one: what of the "
    "change comes through each path of the decoder, as shares that sum to 1 in every panel. Left "
    "and middle: covariance with the change, over tokens and over the means of pairs. Right: the "
    "mean size. Cross-attentions read the query; what the other paths add they got from an earlier "
    "cross-attention, which Eq. 14 leaves out."
)
_BATCH = 16


@part("experiment")
def measure_query_paths(model: Any, data: Any, pairs: int) -> Findings:
    """Shares of the paths in what the query changes; generative systems only.

    Args:
        model: a system with `explain`; data: a `RetrievalDataModule`.
        pairs: how many test pairs of the first test split. Each gets the query of the pair half a
            batch further as its other one; a batch of one pair has none.
    """
    if model.paradigm != "generative" or pairs < 1:
        return Findings()
    names, shares = _shares(model, data, pairs)
    if shares is None:
        return Findings()
    rows = list(path_rows(names, shares.values()))
    entry = GalleryEntry("framework_query", "How a query changes the logits", CAPTION)
    figure = share_bars(rows[: len(names)], "change of logit")
    return Findings(_metrics(rows, names), {"framework_query": rows}, [(figure, entry)])


@torch.inference_mode()
def _shares(model: Any, data: Any, pairs: int) -> tuple[tuple[str, ...], TokenAndPairShares | None]:
    model.eval()
    split, names, shares = data.test_splits[0], (), None
    _, batches = data.test_pairs(split, pairs, batch_size=_BATCH, covers=model.covers)
    for batch in track([batch for batch in batches if len(batch) > 1], "changing queries"):
        explanation = model.explain(batch.to(model.device))
        own, other = explanation.decoder, _other(model, batch)
        names = own.names
        shares = shares or TokenAndPairShares(len(names))
        parts, logits = own.contributions - other.contributions, own.logits - other.logits
        # Questions about one document stand side by side; a text may be asked twice.
        changed = (batch.query_ids != batch.query_ids.roll(len(batch) // 2, 0)).any(1)
        mask = explanation.layers[-1].document_mask & changed[:, None].to(logits.device)
        shares.update(parts, logits, mask)
    return names, shares


def _other(model: Any, batch: PairBatch) -> DecoderPaths:
    """The paths of the same targets after other queries."""
    half = len(batch) // 2
    sides = {name: getattr(batch, name).roll(half, 0) for name in ("query_ids", "query_mask")}
    return model.explain(replace(batch, **sides).to(model.device)).decoder


def _metrics(rows: list[Row], names: tuple[str, ...]) -> dict[str, float]:
    by_path = {row["path"]: row["covariance_share"] for row in rows}
    last = [name for name in names if name.startswith("cross_attention")][-1]
    flat = {"query_last_layer_share": by_path[last]}
    flat["query_cross_attention_share"] = by_path["cross_attention_all"]
    return {f"analysis/framework/{name}": value for name, value in flat.items() if isfinite(value)}
