import math

import numpy as np
import pytest

from analysis.analysis import Subject
from analysis.tables import metric_names
from analysis.training_curve import BINS, Training, is_wide, training_figure
from models.training import CURVES


def curve(steps, **changed):
    numbers = np.arange(1, steps + 1, dtype=float)
    nothing = np.full(steps, np.nan)
    found = dict(step=numbers, loss=1000 / numbers, gradient_norm=1 + numbers / steps)
    return found | dict(learning_rate=numbers * 1e-6, validation_loss=nothing) | changed


def test_a_panel_each_and_a_logarithm_only_where_values_need_it():
    figure = training_figure(curve(50))
    assert [axes.get_title() for axes in figure.axes] == ["loss", "gradient norm", "learning rate"]
    # The learning rate spans a factor of 50, too: its shape is the schedule's.
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "linear", "linear"]
    loss = figure.axes[0].lines[0]
    assert loss.get_xdata().tolist() == list(range(1, 51))
    assert loss.get_ydata() == pytest.approx([1000 / step for step in range(1, 51)])
    assert not figure.legends


def test_many_steps_are_means_within_the_band_of_their_values():
    values = np.tile([1.0, 3.0], 500 * BINS)
    figure = training_figure(curve(1000 * BINS, gradient_norm=values))
    axes = figure.axes[1]
    assert axes.lines[0].get_ydata().tolist() == [2.0] * BINS
    assert axes.lines[0].get_xdata()[0] == pytest.approx(500.5)
    (band,) = axes.collections
    assert set(band.get_paths()[0].vertices[:, 1]) == {1.0, 3.0}


def test_a_validation_is_drawn_where_it_was():
    validation = np.full(50, np.nan)
    validation[[24, 49]] = 700.0, 600.0
    figure = training_figure(curve(50, validation_loss=validation))
    line = figure.axes[0].lines[1]
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([25, 50], [700, 600])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["validation loss"]


def test_a_step_that_fp16_skipped_and_a_norm_that_nobody_knows_leave_gaps():
    norms = np.full(50, np.nan)
    assert len(training_figure(curve(50, gradient_norm=norms)).axes) == 2
    norms[:3] = 1.0, math.inf, 2.0
    figure = training_figure(curve(50, gradient_norm=norms))
    assert figure.axes[1].lines[0].get_xdata().tolist() == [1, 3]


def test_only_positive_values_far_apart_are_wide():
    assert is_wide([1.0, 11.0]) and not is_wide([1.0, 9.0])
    assert not is_wide([0.0, 11.0]) and not is_wide([-1.0, 11.0])


def test_a_run_that_was_not_trained_has_no_figure(tmp_path):
    assert not Training.applies(Subject(run=tmp_path))
    path = tmp_path / CURVES
    path.parent.mkdir()
    header = "epoch,step,train/gradient_norm,train/learning_rate,train/loss,validation/loss\n"
    path.write_text(header)
    assert Training.applies(Subject(run=tmp_path))
    assert Training(Subject(run=tmp_path)).finish().figures == []
    # A validation has a row of its own; the resumed training has made step 2 once more.
    rows = "0,0,inf,0.1,0.5,\n0,1,2,0.1,0.9,\n0,1,2,0.1,0.4,\n0,1,,,,0.6\n"
    path.write_text(header + rows)
    ((figure, entry),) = Training(Subject(run=tmp_path)).finish().figures
    assert (
        entry.name == "training"
        and metric_names.find_figures_chapter(entry.name).title == "Training"
    )
    loss, validation = figure.axes[0].lines
    assert loss.get_xydata().tolist() == [[1, 0.5], [2, 0.4]]
    assert validation.get_xydata().tolist() == [[2, 0.6]]
    path.write_text(header + "0,1,half,0.1,1,\n")
    with pytest.raises(ValueError, match=r"metrics.csv: must be a table of numbers"):
        Training(Subject(run=tmp_path)).finish()
