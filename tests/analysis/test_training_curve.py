import numpy as np
import pytest
from pandas import DataFrame

from analysis.analysis import Subject
from analysis.training_curve import BINS, Training, training_figure
from models.training import CURVES


def curve(steps, **changed):
    numbers = np.arange(1, steps + 1, dtype=float)
    columns = dict(step=numbers, loss=1000 / numbers, gradient_norm=1 + numbers / steps)
    columns |= dict(learning_rate=numbers * 1e-6, validation_loss=np.nan)
    return DataFrame(columns | changed)


def test_a_panel_each_and_a_logarithm_only_where_values_need_it():
    """The learning rate spans a factor of 50, too: its shape is the schedule's."""
    figure = training_figure(curve(50))
    assert [axes.get_title() for axes in figure.axes] == ["loss", "gradient norm", "learning rate"]
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "linear", "linear"]
    assert training_figure(curve(50, loss=0.0)).axes[0].get_yscale() == "linear"


def test_many_steps_are_means_within_the_band_of_their_values():
    values = np.tile([1.0, 3.0], 500 * BINS)
    axes = training_figure(curve(1000 * BINS, gradient_norm=values)).axes[1]
    assert axes.lines[0].get_ydata().tolist() == [2.0] * BINS
    assert axes.lines[0].get_xdata()[0] == pytest.approx(500.5)
    (band,) = axes.collections
    assert set(band.get_paths()[0].vertices[:, 1]) == {1.0, 3.0}


def test_a_skipped_step_and_an_unknown_norm_leave_gaps():
    norms = np.full(50, np.nan)
    assert len(training_figure(curve(50, gradient_norm=norms)).axes) == 2
    norms[:3] = 1.0, np.inf, 2.0
    figure = training_figure(curve(50, gradient_norm=norms))
    assert figure.axes[1].lines[0].get_xdata().tolist() == [1, 3]


def test_the_curve_of_a_run(tmp_path):
    assert not Training.applies(Subject(run=tmp_path))
    path = tmp_path / CURVES
    path.parent.mkdir()
    header = "epoch,step,train/gradient_norm,train/learning_rate,train/loss,validation/loss\n"
    path.write_text(header)
    assert Training(Subject(run=tmp_path)).finish().figures == []
    # A validation has a row of its own; the resumed training has made step 2 once more.
    rows = "0,0,inf,0.1,0.5,\n0,1,2,0.1,0.9,\n0,1,2,0.1,0.4,\n0,1,,,,0.6\n"
    path.write_text(header + rows)
    ((figure, _),) = Training(Subject(run=tmp_path)).finish().figures
    loss, validation = figure.axes[0].lines
    assert loss.get_xydata().tolist() == [[1, 0.5], [2, 0.4]]
    assert validation.get_xydata().tolist() == [[2, 0.6]]
    path.write_text(header + "0,1,half,0.1,1,\n")
    with pytest.raises(ValueError, match=r"metrics.csv: must be a table of numbers"):
        Training(Subject(run=tmp_path)).finish()
