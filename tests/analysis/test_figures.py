"""No two texts of a figure lie on each other, with the values that large runs draw."""

from itertools import combinations, product
from math import sin
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from pandas import DataFrame, concat

from analysis.alignment_curve import PANELS as CURVE_PANELS
from analysis.alignment_curve import curve_figure
from analysis.axioms import NAMES, draw_shifts
from analysis.claims import Finding, draw_claims
from analysis.deletion import deletion_figure
from analysis.exact_match import DEFINITIONS, DIRECTIONS, MEASURES, OF_A, head_map, match_boxes
from analysis.figures import turn_crowded_labels
from analysis.framework import share_bars
from analysis.gold import gold_figure
from analysis.kernel import kernel_curves
from analysis.low_rank import ERRORS, MARKS, norm_figure, rank_figure
from analysis.patching import patching_figure
from analysis.search_diagnostics import search_figure
from analysis.shape import shape_figure
from analysis.studies.study import Curves, draw_curves
from analysis.tables.page import IDF_KEY, draw_effectiveness, draw_exact_match
from analysis.token_retrieval import retrieval_figure
from analysis.tokens import BIN_NAMES
from analysis.training_curve import training_figure

SYSTEMS = ("BM25", "T5-ColBERT", "T5-SEAL, 10 spans", "DSI-semantic")
SETTINGS = ("almanac (test, test_unseen)", "squad2k (dev)", "wikitablequestions (dev, test)", "nq")
TITLE = "T5-ColBERT on wikitablequestions (dev, test)"


def wave(n, scale=1.0):
    """Values from 0 to `scale`."""
    return scale * (1 + sin(7 * n)) / 2


def exact_match(measures):
    sizes = zip(BIN_NAMES, (154, 3_372, 10_586, 5_209, 8_372), strict=True)
    bins = [name for name, size in sizes for _ in range(size)]
    types = {measure: np.random.default_rng(0).random(len(bins)) for measure in measures}
    types = [DataFrame(types).assign(idf_bin=bins, counted=text) for text in DEFINITIONS.values()]
    return match_boxes(concat(types), "document_to_query", TITLE)


def training():
    steps, low = np.arange(1, 400_001, 1000.0), np.full(400, np.nan)
    scales = {"loss": 9, "gradient_norm": 9, "learning_rate": 1}
    values = {name: 0.1 + np.sin(steps / 9e4) ** 2 * scale for name, scale in scales.items()}
    return training_figure(DataFrame({"step": steps, "validation_loss": low} | values))


def curve():
    rows = [{"step": 50_000 * n} | {p: wave(n) for p in CURVE_PANELS} for n in range(1, 9)]
    return curve_figure(DataFrame(rows))


def kernel():
    names = [*(str(2**n) for n in range(4, 13)), "elu", "uniform", "exact"]
    measures = ("error", "rank_correlation", "mrr@10")
    return kernel_curves({n: {m: wave(len(n)) for m in measures} for n in names})


def paths():
    kinds = ("self_attention", "cross_attention", "feed_forward")
    names = ["embedding", *(f"{kind}_{layer}" for layer in range(1, 13) for kind in kinds)]
    shares = ("covariance_share", "pair_mean_share", "absolute_share")
    rows = [{s: wave(n, 0.3) - 0.1 for s in shares} for n in range(len(names))]
    return share_bars(DataFrame(rows, index=names), "change of logit")


def ranks(alignments, layers):
    every = list(product(alignments, range(1, layers + 1), range(1, 31)))
    frame = DataFrame(every, columns=["alignment", "layer", "number"])
    values = {name: np.random.default_rng(0).random(len(frame)) for name in (*ERRORS, "share")}
    frame = frame.assign(**values)
    return rank_figure(frame, frame, layers > 1, TITLE)


def norms():
    every = product(range(1, 13), range(1, 13))
    rows = [
        {"layer": layer, "projection_norm": head + layer / 20}
        | {m: 10**n for n, m in enumerate(MARKS)}
        for layer, head in every
    ]
    return norm_figure(DataFrame(rows), TITLE)


def heads():
    every = product(range(1, 25), range(1, 17), DIRECTIONS)
    table = DataFrame(every, columns=["layer", "head", "direction"])
    return head_map(table.assign(soft=table["head"] / 99), TITLE)


def gold():
    names = ("recall", "precision", "possible_recall", "possible_precision")
    every = [("own", layer, d) for d in DIRECTIONS for layer in range(1, 13)] + [("random", 0, "")]
    rows = [
        {"selection": "top", "alignment": a, "layer": layer, "direction": d}
        | {name: wave(n) for name in names}
        for (a, layer, d), n in product(every, range(6))
    ]
    return gold_figure(DataFrame(rows), TITLE)


def shape():
    keys = [("directed", 1, d) for d in DIRECTIONS]
    keys += [("own", head, d) for head in range(1, 13) for d in DIRECTIONS]
    values = ("relative_entropy", "top_1", "top_2", "top_5")
    rows = [
        {"alignment": a, "head": head, "direction": d, "layer": layer}
        | {value: wave(layer) for value in values}
        for (a, head, d), layer in product(keys, range(1, 25))
    ]
    return shape_figure(DataFrame(rows), TITLE)


def search(steps):
    metrics = {f"gold_alive/step_{n}": 1 - n / 20 for n in range(1, steps + 1)}
    metrics |= {f"lost_rank/step_{n}": 10_000.0 + n for n in range(1, steps + 1)}
    for k in (1, 10):
        metrics |= {f"recall@{k}": 0.5, f"luck@{k}": 0.1, f"search_error@{k}": 0.3}
        metrics |= {f"model_error@{k}": 0.2}
    return search_figure(metrics, TITLE)


def deletion():
    every = product(("document", "query"), ("aligned", "random"), (1, 2, 4, 8, 16, 32))
    numbers = dict(deviations=0.5, deviations_error=0.1)
    rows = [dict(side=s, removed=r, tokens=k, **numbers) for s, r, k in every]
    return deletion_figure(DataFrame(rows), TITLE)


def shifts():
    every = product(("test", "test_unseen", "dev"), SYSTEMS, NAMES)
    numbers = dict(measure="shift", value=-0.123, low=-0.2, high=0.1)
    return draw_shifts(
        [dict(split=s, system=y, perturbation=n, **numbers) for s, y, n in every], ""
    )


def claims():
    found = SimpleNamespace(effect=-0.123, low=-0.2, high=0.1)
    names = ("MVDR finds more than BM25", "XTR keeps up with T5-ColBERT on its own collection")
    every = product((SimpleNamespace(name=name, sign=1, bound=0.0) for name in names), SETTINGS)
    return draw_claims([Finding(claim, place, found=found) for claim, place in every], "outputs")


def patching():
    parts = ("residual", "self_attention", "cross_attention", "feed_forward")
    groups = ("exchanged", "before", "after", "special")
    keys = [(stack, part, layer, 0, tokens) for stack in ("encoder", "decoder")
            for part in parts for layer in range(1, 13) for tokens in groups]  # fmt: skip
    keys += [(stack, part, layer, head, "all") for stack in ("encoder", "decoder")
             for part in parts[1:3] for layer in range(1, 13) for head in range(1, 13)]  # fmt: skip
    names = ("stack", "part", "layer", "head", "tokens")
    rows = [dict(zip(names, key, strict=True), restored=0.5) for key in keys]
    return patching_figure(DataFrame(rows), TITLE)


def study():
    every = product(SETTINGS, ("last", "mean", "minimum"), (10, 40, 100, 1000, 10_000, 40_000))
    rows = [{"collection": c, "imputation": i, "k": k, "mrr@10": wave(k)} for c, i, k in every]
    return draw_curves(Curves(x="k", hue="imputation", column="collection", log=True), rows, TITLE)


def rankings():
    keys = ["retrieve/mrr@10", "retrieve/test_unseen/mrr@10", "rerank/mrr@10"]
    keys += [f"rerank/{f}/mrr@10" for f in ("document_to_query", "leak_free_max", "leak_free_mean")]
    keys += [f"{key.removesuffix('/mrr@10')}/test_unseen/mrr@10" for key in keys[3:]]
    rows = [(label, key, wave(n)) for label in SYSTEMS for n, key in enumerate(keys)]
    return draw_effectiveness(DataFrame(rows, columns=["system", "key", "value"]), SETTINGS[0])


def matches():
    bins = product(DIRECTIONS, ("hard", "soft"), [name.replace("-", "_") for name in BIN_NAMES])
    keys = [f"analysis/exact_match/{d}/{m}/idf_{b}" for d, m, b in bins]
    rows = [(label, key, wave(n)) for label in SYSTEMS for n, key in enumerate(keys)]
    table = DataFrame(rows, columns=["system", "key", "value"])
    return draw_exact_match(table.join(table["key"].str.extract(IDF_KEY)), SETTINGS[0])


FIGURES = {
    "exact match of a sparse system": lambda: exact_match((*MEASURES, OF_A)),
    "exact match": lambda: exact_match(MEASURES),
    "training": training,
    "alignment curve": curve,
    "kernel": kernel,
    "framework": paths,
    "ranks by layer": lambda: ranks(["own"], 24),
    "ranks": lambda: ranks(["own", "without_salience"], 1),
    "norms": norms,
    "gold alignment": gold,
    "shape": shape,
    "short search": lambda: search(4),
    "search": lambda: search(16),
    "deletion": deletion,
    "axioms": shifts,
    "claims": claims,
    "patching": patching,
    "study": study,
    "heads": heads,
    "retrieved tokens": lambda: retrieval_figure(
        [dict(rank=n, gold=0.5, lexical=0.2) for n in range(1, 101)],
        [dict(similarity=n / 40, gold=wave(n), other=wave(2 * n)) for n in range(40)],
        TITLE,
    ),
    "effectiveness": rankings,
    "exact match of all systems": matches,
}


def overlaps(figure: Figure, monkeypatch) -> list[tuple[str, str]]:
    """Pairs of drawn texts whose boxes share more than a pixel's edge."""
    drawn, draw = [], Text.draw
    monkeypatch.setattr(Text, "draw", lambda text, *given: drawn.append(text) or draw(text, *given))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [
        (text.get_text(), text.get_window_extent(canvas.get_renderer()).padded(-0.5))
        for text in drawn
        if text.get_visible() and text.get_text().strip()
    ]
    return [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)]


@pytest.mark.parametrize("name", FIGURES)
def test_no_text_lies_on_another(name, monkeypatch):
    torch.manual_seed(0)
    figure = FIGURES[name]()
    turn_crowded_labels(figure)  # as `save_figure` does
    assert overlaps(figure, monkeypatch) == []
