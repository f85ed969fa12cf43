import pytest

from analysis.analysis import Subject
from analysis.training_curve import Training
from models.training import CURVES


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
