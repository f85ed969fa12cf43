from itertools import product

import pytest

from analysis.studies.study import Curves, draw_curves

ROWS = [
    {"gate": gate, "keep": keep, "seed": seed, "mrr@10": keep / 2 + seed / 10, "recall@1": 0.5}
    for gate, keep, seed in product(["lp", "hard"], [1.0, 0.1, 0.4], [1, 3])
]


def lines_of(axes):
    """Line's name → (x, y) of its points."""
    handles, labels = axes.get_legend_handles_labels()
    found = {}
    for handle, label in zip(handles, labels, strict=True):
        x, y = handle.lines[0].get_data()
        found[label] = list(zip(x, y.tolist(), strict=True))
    return found


def test_a_line_for_each_hue_sorted_by_x_and_averaged_over_seeds():
    figure = draw_curves(Curves(x="keep", hue="gate"), ROWS, "title")
    (axes,) = figure.axes
    lines = lines_of(axes)
    assert list(lines) == ["lp", "hard"]
    assert [x for x, _ in lines["lp"]] == [0.1, 0.4, 1.0]
    assert [y for _, y in lines["lp"]] == pytest.approx([0.25, 0.4, 0.7])
    # The sample deviation of 0.1 and 0.3 is 0.2 / √2: a whisker reaches that far to either side.
    (whiskers,) = axes.containers[0].lines[2]
    low, high = whiskers.get_segments()[0][:, 1]
    assert high - low == pytest.approx(2 * 0.2 / 2**0.5)
    assert axes.get_ylabel() == "MRR@10" and axes.get_xlabel() == "keep"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["lp", "hard"]


def test_panels_labels_and_a_logarithmic_axis():
    labels = {"keep": "β_d", "gate": "gate", "hard": "top-k", "1": "first"}
    curves = Curves(x="keep", y="recall@1", hue="seed_", column="gate", log=True, labels=labels)
    rows = [row | {"seed_": row.pop("seed")} for row in map(dict, ROWS)]
    figure = draw_curves(curves, rows, "title")
    assert [axes.get_title() for axes in figure.axes] == ["lp", "top-k"]
    assert all(axes.get_xscale() == "log" for axes in figure.axes)
    assert figure.axes[0].get_xlabel() == "β_d" and figure.axes[0].get_ylabel() == "R@1"
    # A number is named, a label takes the place of both; one legend serves both panels.
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["first", "seed_ = 3"]
    assert list(figure.axes[0].xaxis.get_major_locator().locs) == [0.1, 0.4, 1.0]


def test_words_stand_on_the_axis_in_their_order_and_a_single_line_needs_no_legend():
    rows = [{"m": m, "mrr@10": 0.1} for m in ("last", "none", 0.2)]
    figure = draw_curves(Curves(x="m"), rows, "t")
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["last", "none", "0.2"]
    assert not figure.legends


def test_a_measure_can_be_the_axis():
    rows = [{"pool": p, "cost/index_bytes": b, "mrr@10": m} for p, b, m in
            (("a", 20, 0.2), ("b", 10, 0.1))]  # fmt: skip
    figure = draw_curves(Curves(x="cost/index_bytes"), rows, "t")
    (points,) = (handle.lines[0].get_data() for handle in figure.axes[0].containers)
    assert points[0].tolist() == [10, 20] and points[1].tolist() == [0.1, 0.2]


def test_where_chooses_rows_and_a_missing_setting_is_null():
    rows = [
        {"mode": "gather", "k": 1, "mrr@10": 0.9},
        {"mode": "impute", "k": 1, "m": "last", "mrr@10": 0.8},
        {"mode": "impute", "k": 1, "m": "zero", "mrr@10": 0.1},
    ]
    figure = draw_curves(Curves(x="k", hue=["mode", "m"], where={"m": ["last", None]}), rows, "t")
    assert list(lines_of(figure.axes[0])) == ["gather", "impute, last"]
    figure = draw_curves(Curves(x="k", where={"m": "zero"}), rows, "t")
    assert figure.axes[0].containers[0].lines[0].get_data()[1].tolist() == [0.1]
    with pytest.raises(ValueError, match=r"curves.where=\{'m': 'mean'\}: no row"):
        draw_curves(Curves(x="k", where={"m": "mean"}), rows, "t")


def test_different_settings_are_never_averaged():
    with pytest.raises(ValueError, match=r"several rows have keep=1.0 on one line.*differ in gate"):
        draw_curves(Curves(x="keep"), ROWS, "t")


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("x", {"x": "depth"}),
        ("y", {"y": "ndcg@10"}),
        ("hue", {"hue": ["gate", "depth"]}),
        ("column", {"column": "depth"}),
        ("where", {"where": {"depth": 1}}),
    ],
)
def test_an_unknown_column_is_named(key, changes):
    known = "gate, keep, seed, mrr@10, recall@1"
    with pytest.raises(ValueError, match=f"curves.{key}=.*must be one of {known}"):
        draw_curves(Curves(**({"x": "keep", "hue": "gate"} | changes)), ROWS, "t")
