"""How much of a generative system's decision the framework explains (gr_as_mvdr §8).

One rule for tokens: every real target token counts, the end token too, since the system predicts
and scores it. The tables have the same without special tokens ("not_special" in column `tokens`).
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

import torch
from torch import Tensor

from analysis.analysis import Findings, Texts
from analysis.figures import GalleryEntry
from analysis.framework import PathShares, head_contributions, path_kind, path_sum_error
from analysis.measurements.framework_figure import CAPTION, share_bars
from analysis.store.alignment_store import AlignmentStore
from analysis.tables import Row
from gr_mvdr.parts import part
from gr_mvdr.relevance import DecoderPaths, Explanation

# Of path kinds with one path a layer, the sum over layers has a row of its own.
SUMMED = ("self_attention", "cross_attention", "feed_forward")
SHARES = ("covariance_share", "absolute_share", "pair_covariance_share", "pair_mean_share", "mean")


class TokenAndPairShares:
    """Shares of P parts in the logits of tokens, and in what pairs sum and average of them.

    - `covariance_share`: cov(part, logit) / var(logit) over the target tokens of all pairs.
    - `absolute_share`: mean over those tokens of |part| / Σ |parts|.
    - `pair_covariance_share`: the first over pairs, of sums over a pair's tokens (Eq. 11). Where
      targets differ in length, so do the sums, and mean contributions decide.
    - `pair_mean_share`: the same of means over a pair's tokens, free of length.
    - `mean`: of the part over tokens.

    All of them add up: a group of paths has the sum of its paths' values.
    """

    def __init__(self, parts: int):
        self.tokens, self.sums, self.means = (PathShares(parts) for _ in range(3))

    def update(self, parts: Tensor, logits: Tensor, mask: Tensor) -> None:
        """Takes in parts (B, P, M) and logits (B, M) where mask (B, M) is True."""
        self.tokens.update(parts.transpose(1, 2)[mask], logits[mask])
        counts = mask.sum(1)
        some = counts > 0
        sums = (parts.double() * mask[:, None]).sum(2)[some]
        totals, counts = (logits.double() * mask).sum(1)[some], counts[some]
        self.sums.update(sums, totals)
        self.means.update(sums / counts.unsqueeze(1), totals / counts)

    def values(self) -> dict[str, Tensor]:
        """Each of `SHARES` → (P,) fp64."""
        tokens = self.tokens
        pairs = self.sums.covariance, self.means.covariance
        found = tokens.covariance, tokens.absolute, *pairs, tokens.mean
        return dict(zip(SHARES, found, strict=True))


def path_rows(names: Sequence[str], values: Mapping[str, Tensor]) -> Iterator[Row]:
    """A row for each path, then one for all layers' paths of each kind of `SUMMED`.

    Args:
        names: P paths; values: column → (P,) what adds up over paths.
    """
    groups = {name: [number] for number, name in enumerate(names)}
    kinds = [path_kind(name) for name in names]
    for kind in SUMMED:
        groups[f"{kind}_all"] = [number for number, found in enumerate(kinds) if found == kind]
    for name, numbers in groups.items():
        yield {"path": name} | {key: float(part[numbers].sum()) for key, part in values.items()}


@part("measurement")
class Framework:
    """Measures what each path of the decoder adds to the target tokens' logits (§8)."""

    def __init__(self, store: AlignmentStore, texts: Texts):
        self.names = tuple(store.path_names)
        self.layers, self.heads = store.layers, store.heads
        self.special = texts.kinds.special
        self.error = 0.0
        self.paths = {name: TokenAndPairShares(len(self.names)) for name in ("all", "not_special")}
        self.by_head = PathShares(self.layers * self.heads)

    def update(self, batch: Explanation, first: int) -> None:
        """Takes in a padded batch; a system without a decoder has nothing to say."""
        if batch.decoder is None:
            return
        paths, real = batch.decoder, batch.layers[-1].document_mask
        error = path_sum_error(paths.contributions * real[:, None], paths.logits * real)
        self.error = max(self.error, float(error.max()))
        counted = real & ~self.special[batch.layers[-1].document_ids]
        for name, mask in (("all", real), ("not_special", counted)):
            self.paths[name].update(paths.contributions, paths.logits, mask)
        self._add_heads(batch, paths, real)

    def _add_heads(self, batch: Explanation, paths: DecoderPaths, real: Tensor) -> None:
        heads = torch.cat([head_contributions(pairs) for pairs in batch.layers], 1)
        self.by_head.update(heads.transpose(1, 2)[real], paths.logits[real])

    def result(self) -> Findings:
        """Metrics and tables of paths and heads, and a figure; nothing without a decoder."""
        if not self.names:
            return Findings()
        rows = [
            {"tokens": tokens} | row
            for tokens, shares in self.paths.items()
            for row in path_rows(self.names, shares.values())
        ]
        shown = [row for row in rows if row["tokens"] == "all" and row["path"] in self.names]
        entry = GalleryEntry("framework", "Where the logits come from", CAPTION)
        return Findings(
            metrics=self._metrics(rows),
            tables={"framework": rows, "framework_heads": list(self._head_rows())},
            figures=[(share_bars(shown), entry)],
        )

    def _head_rows(self) -> Iterator[Row]:
        """`absolute_share` is a head's among all heads, the others are of the logit."""
        found = self.by_head.covariance, self.by_head.absolute, self.by_head.mean
        for number, shares in enumerate(torch.stack(found, 1).tolist()):
            layer, head = divmod(number, self.heads)
            names = ("covariance_share", "absolute_share", "mean")
            yield {"layer": layer + 1, "head": head + 1} | dict(zip(names, shares, strict=True))

    def _metrics(self, rows: list[Row]) -> dict[str, float]:
        """Of all tokens; shares that are not numbers (nothing varies) are left out."""
        by_path = {row["path"]: row for row in rows if row["tokens"] == "all"}
        flat = {"sum_error": self.error}
        paths = {"last_layer": f"cross_attention_{self.layers}"}
        for name, path in (paths | {"cross_attention": "cross_attention_all"}).items():
            flat[f"{name}_share"] = by_path[path]["covariance_share"]
            flat[f"{name}_absolute_share"] = by_path[path]["absolute_share"]
        return {
            f"analysis/framework/{name}": value for name, value in flat.items() if isfinite(value)
        }
