"""The low rank of a whole store's alignments, layer by layer and head by head (§5.2.4, §7.4)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from analysis.analysis import Findings, Texts
from analysis.figures import GalleryEntry
from analysis.low_rank import (
    composite_norm,
    equal_rows_residual,
    normalised_values,
    rank_measures,
    singular_values,
)
from analysis.low_rank_bound import lemma_terms
from analysis.measurements.low_rank_figure import ERRORS, NORMS, RANKS, norm_figure, rank_figure
from analysis.statistics import HeadSample, select
from analysis.tables import Row
from gr_mvdr.parts import part
from gr_mvdr.relevance import Explanation, PairAlignment

PREFIX = "analysis/low_rank/"
OWN, PAIRWISE = "own", "without_salience"
MEANS = ("relative_error", "relative_error_rank_one", "effective_rank")
# The smallest weight that a store's precision can tell from zero.
SMALLEST = {"float32": torch.finfo(torch.float32).tiny, "float16": 2.0**-24}


@part("measurement")
class LowRank:
    """How close are alignments to rank one, and what does Lemma 5.1 promise?

    The system's own A is measured, and of a system with salience also Ã, the alignment before it.
    Of stores with many layers and heads an even sample of the pairs (`HeadSample`). A matrix of
    zeros has neither relative errors nor a rank nor a spectrum, and is left out of their means.

    Args:
        store: the alignments, an `AlignmentStore`. texts: unused here.
    """

    def __init__(self, store: Any, texts: Texts):
        self._description = store.description
        self._generative = store.description.paradigm == "generative"
        self._sample = HeadSample(len(store), store.layers * store.heads)
        self._values: dict[str, list[dict[str, Tensor]]] = {OWN: [], PAIRWISE: []}  # (n, L, H)
        self._spectra: dict[str, Tensor] = {}  # (L, K) sums over pairs and heads
        self._projections: Tensor | None = None

    def update(self, batch: Explanation, first: int) -> None:
        """Takes in a padded batch of pairs."""
        rows = self._sample.rows(first, len(batch))
        if not len(rows):
            return
        layers = [select(pairs, rows) for pairs in batch.layers]
        self._add(OWN, layers, [pairs.alignment for pairs in layers], batch, rows)
        if batch.pairwise is not None:
            self._add(PAIRWISE, layers[-1:], [batch.pairwise[rows]], batch, rows)

    def result(self) -> Findings:
        """Metrics of the last layer, the tables `low_rank` and `spectrum`, and Figure 4."""
        if not self._values[OWN]:
            return Findings()
        values = {name: _joined(parts) for name, parts in self._values.items() if parts}
        metrics = {}
        for name, found in values.items():
            prefix = PREFIX if name == OWN else f"{PREFIX}{name}/"
            metrics |= {prefix + key: float(found[key][:, -1].nanmean()) for key in MEANS}
        metrics = {key: value for key, value in metrics.items() if value == value}
        rows = [row for name, found in values.items() for row in self._rows(name, found)]
        tables = {"low_rank": rows, "spectrum": list(self._spectrum_rows(values))}
        return Findings(metrics, tables, self._figures(values, rows))

    def _add(
        self,
        name: str,
        layers: list[PairAlignment],
        alignments: list[Tensor],
        batch: Explanation,
        rows: Tensor,
    ) -> None:
        found, spectra = [], []
        for pairs, alignment in zip(layers, alignments, strict=True):
            part, spectrum = self._measured(pairs, alignment)
            found.append(part)
            spectra.append(spectrum)
        measures = {key: torch.stack([part[key] for part in found], 1) for key in found[0]}
        if self._generative:
            measures |= self._bounds(measures, batch, rows)
        self._values[name].append(measures)  # in float32 a bound could be infinite
        self._spectra[name] = _added(self._spectra.get(name), torch.stack(spectra))

    def _measured(self, pairs: PairAlignment, alignment: Tensor) -> tuple[dict, Tensor]:
        """Measures (n, H) of one layer, and the sum of its normalised spectra (K,)."""
        heads = alignment.shape[1]
        masks = [
            mask.repeat_interleave(heads, 0) for mask in (pairs.document_mask, pairs.query_mask)
        ]
        matrices = alignment.flatten(0, 1)
        values = singular_values(matrices, *masks)
        residual = equal_rows_residual(matrices, *masks)
        found = rank_measures(values, residual) | {"residual": composite_norm(residual)}
        found["relative_error"] = found["equal_rows"] / found["frobenius"]
        found["relative_error_rank_one"] = found["best_rank_one"] / found["frobenius"]
        found["effective_rank"] = found["effective_rank"].where(found["frobenius"] > 0, torch.nan)
        if self._generative:
            terms = lemma_terms(matrices, *masks, SMALLEST[self._description.precision])
            found |= {
                "residual_lemma": terms.residual,
                "logits_norm": terms.logits_norm,
                "gamma_squared": terms.gamma_squared,
                "bound_entries": terms.bound,
                "trivial": terms.trivial,
                "small_spread": terms.small_spread,
            }
        found = {key: value.unflatten(0, (-1, heads)) for key, value in found.items()}
        return found, normalised_values(values).sum(0)

    def _bounds(self, measures: dict, batch: Explanation, rows: Tensor) -> dict[str, Tensor]:
        """γ and the lemma's 4γ‖W‖, (n, L, H)."""
        decoder = batch.decoder
        self._projections = decoder.projection_norms.double()
        residuals = decoder.document_norms[rows].double() * decoder.query_norms[rows, None].double()
        gamma = measures["gamma_squared"] * residuals[..., None]
        trivial = measures.pop("trivial")
        bound = 4 * gamma * self._projections
        return {
            "gamma": gamma,
            "bound": bound,
            "vacuous_entries": (measures["bound_entries"] >= trivial).double(),
            "vacuous": (bound >= trivial).double(),
        }

    def _rows(self, name: str, values: dict[str, Tensor]) -> Iterator[Row]:
        """For each layer and head means over pairs; of the norms, which span orders, medians."""
        pairs, layers, heads = values["frobenius"].shape
        means = {key: value.nanmean(0) for key, value in values.items() if key in AVERAGED}
        medians = {
            key: value.nanmedian(0).values for key, value in values.items() if key not in AVERAGED
        }
        for layer in range(layers):
            for head in range(heads):
                row: Row = {"alignment": name, "layer": layer + 1, "head": head + 1}
                row |= {key: float(value[layer, head]) for key, value in (means | medians).items()}
                if self._projections is not None:
                    row["projection_norm"] = float(self._projections[layer, head])
                yield row | {"pairs": pairs}

    def _spectrum(self, name: str, values: dict[str, Tensor]) -> Tensor:
        """(L, K) the mean of the normalised singular values; NaN where all matrices are zeros."""
        measured = (values["frobenius"] > 0).sum((0, 2))  # of each layer
        return self._spectra[name] / measured[:, None]

    def _spectrum_rows(self, values: dict[str, dict[str, Tensor]]) -> Iterator[Row]:
        for name, found in values.items():
            for layer, shares in enumerate(self._spectrum(name, found).tolist(), start=1):
                for number, share in enumerate(shares, start=1):
                    yield {"alignment": name, "layer": layer, "number": number, "share": share}

    def _figures(self, values: dict[str, dict[str, Tensor]], rows: list[Row]) -> list:
        title = self._description.title
        errors, spectra = {measure: {} for measure in ERRORS}, {}
        for name, found in values.items():
            for layer, spectrum in enumerate(self._spectrum(name, found)):
                label = str(layer + 1) if self._generative else LABELS[name, PAIRWISE in values]
                for measure, boxes in errors.items():
                    boxes[label] = found[measure][:, layer].flatten()
                spectra[label] = spectrum
        entry = GalleryEntry("low_rank", "Distance from rank one (the paper's Figure 4b)", RANKS)
        axis = "decoder layer" if self._generative else ""
        figures = [(rank_figure(errors, spectra, axis, title), entry)]
        if self._generative:
            entry = GalleryEntry("low_rank_bound", "Lemma 5.1 (the paper's Figure 4a)", NORMS)
            figures.insert(0, (norm_figure(rows, title), entry))
        return figures


# What a box is called, by whether the system has salience.
LABELS = {
    (OWN, False): "alignment",
    (OWN, True): "with salience",
    (PAIRWISE, True): "without salience",
}
AVERAGED = (
    *("frobenius", "equal_rows", "best_rank_one", *MEANS),
    *("small_spread", "vacuous_entries", "vacuous"),
)


def _joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def _added(total: Tensor | None, part: Tensor) -> Tensor:
    """Adds spectra of different lengths; the shorter one ends in zeros."""
    if total is None:
        return part
    longer, shorter = (total, part) if total.shape[-1] >= part.shape[-1] else (part, total)
    longer = longer.clone()
    longer[:, : shorter.shape[-1]] += shorter
    return longer
