"""The alignment after every epoch, and training's curves from its log."""

from types import SimpleNamespace

import pytest
import torch

from analysis.exact_match import exact_match
from analysis.low_rank import low_rank
from analysis.questions.analysis import Findings, Subject
from analysis.questions.learning_curves import AlignmentCurve, Curve, Training
from analysis.viewer.directed_alignment import directed_alignment, own_direction
from models.training import CURVES
from tests.models.conftest import make_multi_vector, make_seal


@pytest.mark.parametrize("make", [make_multi_vector, make_seal])
def test_an_epoch_logs_means_over_heads_and_tokens(make, tiny_data):
    system, logged, modes = make().train(), {}, []
    explain = system.explain
    system.log = lambda name, value, **_: logged.update({name.removeprefix("alignment/"): value})
    system.explain = lambda batch: modes.append(system.training) or explain(batch)
    for pairs in (0, 7):
        AlignmentCurve(pairs).on_train_epoch_end(SimpleNamespace(datamodule=tiny_data), system)
        assert bool(logged) == bool(pairs) and system.training
    assert modes == [False]
    with torch.inference_mode():
        found = explain(tiny_data.evaluation.test_pairs("test", 7)[1][0])
    last, direction = found.layers[-1], own_direction(system.paradigm)
    masks = last.document_mask, last.query_mask
    errors = low_rank(last.alignment, *(mask[:, None] for mask in masks))
    expected = (errors["equal_rows"] / errors["frobenius"]).mean()
    assert logged["relative_error"] == pytest.approx(float(expected), rel=1e-5)
    directed = directed_alignment(last, system.paradigm, direction)
    _, soft = exact_match(directed, last.document_ids, last.query_ids, *masks, direction)
    real = masks[direction == "query_to_document"]
    assert logged["soft"] == pytest.approx(float(soft[real].mean()), rel=1e-5)
    names = {"relative_error", "relative_error_rank_one", "hard", "soft"}
    assert logged.keys() == names | ({"cross_attention"} if found.decoder else set())
    assert all(0 <= value <= 1 for value in logged.values())


def test_a_system_without_alignment_logs_nothing():
    AlignmentCurve(7).on_train_epoch_end(None, SimpleNamespace(alignable=False))


def test_the_curve_is_drawn_from_the_training_curves(tmp_path):
    """Other rows are losses; of a step that a resumed run repeats the last row counts."""
    assert not Curve.applies(Subject(run=tmp_path))
    (tmp_path / "training").mkdir()
    names = "alignment/hard,alignment/relative_error,alignment/soft"
    lines = [f"{names},step,train/loss", ",,,4,6.5", "0.1,0.9,0.2,9,", "0.1,0.7,0.2,19,"]
    lines += [",,,19,6.1", "0.2,0.8,0.3,19,"]
    (tmp_path / "training/metrics.csv").write_text("\n".join(lines))
    subject = Subject(run=tmp_path)
    ((figure, entry),) = Curve(subject).finish().figures
    assert entry.name == "alignment_curve" and len(figure.axes) == 3
    line = figure.axes[0].lines[0]
    assert line.get_xdata().tolist() == [10, 20] and line.get_ydata().tolist() == [0.9, 0.8]
    (tmp_path / "training/metrics.csv").write_text("step,train/loss\n4,6.5")
    assert Curve(subject).finish() == Findings()


def test_the_curve_of_a_run(tmp_path):
    assert not Training.applies(Subject(run=tmp_path))
    path = tmp_path / CURVES
    path.parent.mkdir()
    header = "epoch,step,train/gradient_norm,train/learning_rate,train/loss,validation/loss\n"
    # No step was logged, or only the alignment after an epoch, or no loss is finite.
    for lines in (header, "step,alignment/soft\n1,0.2\n", f"{header}0,0,nan,,inf,\n"):
        path.write_text(lines)
        assert Training(Subject(run=tmp_path)).finish() == Findings()
    # A validation has a row of its own; the resumed training has made step 2 once more.
    rows = "0,0,inf,0.1,0.5,\n0,1,2,0.1,0.9,\n0,1,2,0.1,0.4,\n0,1,,,,0.6\n"
    path.write_text(header + rows)
    ((figure, _),) = Training(Subject(run=tmp_path)).finish().figures
    loss, validation = (line for line in figure.axes[0].lines if len(line.get_xdata()))
    assert loss.get_xydata().tolist() == [[1, 0.5], [2, 0.4]]
    assert validation.get_xydata().tolist() == [[2, 0.6]] and validation.get_marker() == "o"
    path.write_text(header + "0,1,half,0.1,1,\n")
    with pytest.raises(ValueError, match=r"metrics.csv: must be a table of numbers"):
        Training(Subject(run=tmp_path)).finish()
