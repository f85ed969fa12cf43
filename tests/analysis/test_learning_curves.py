from types import SimpleNamespace

import pytest
import torch

from analysis.analysis import Findings, Subject
from analysis.learning_curves import AlignmentCurve, Curve, Training
from models.training import CURVES


class Learner(torch.nn.Module):
    """Its alignments are known beforehand; it notes how it was asked and what it logged."""

    alignable = True
    device = torch.device("cpu")

    def __init__(self, explanations, paradigm="generative"):
        super().__init__()
        self.explanations, self.paradigm = explanations, paradigm
        self.modes, self.logged = [], []

    def covers(self, row):
        return True

    def explain(self, batch):
        self.modes.append((self.training, torch.is_grad_enabled()))
        return self.explanations[batch.number]

    def log(self, name, value, **options):
        self.logged.append((name, value))


class Batch(SimpleNamespace):
    def __init__(self, number):
        super().__init__(number=number)

    def to(self, device):
        return self


def measured(model, batches=1):
    """What an epoch's end logs of a model."""

    def test_pairs(split, pairs, covers):
        assert (split, pairs, covers(0)) == ("test", 7, True)
        return ["pair"] * batches, [Batch(number) for number in range(batches)]

    data = SimpleNamespace(test_splits=["test"], test_pairs=test_pairs)
    AlignmentCurve(7).on_train_epoch_end(SimpleNamespace(datamodule=data), model)
    return {name.removeprefix("alignment/"): value for name, value in model.logged}


@pytest.mark.parametrize("paradigm", ["generative", "multi_vector"])
def test_pairs_are_measured_without_training_mode(make_explanation, paradigm):
    model = Learner([make_explanation(n, seed=n, paradigm=paradigm) for n in (3, 2)], paradigm)
    found = measured(model, 2)
    assert model.modes == [(False, False)] * 2 and model.training
    names = {"relative_error", "relative_error_rank_one", "hard", "soft"}
    assert set(found) == names | ({"cross_attention"} if paradigm == "generative" else set())
    assert all(0 <= value <= 1 for value in found.values())


def test_rank_one_attention_has_no_error(make_explanation):
    explanation = make_explanation(4)
    pairs = explanation.layers[-1]
    rows = pairs.query_mask.float() / pairs.query_mask.sum(1, keepdim=True)
    pairs.alignment = (rows[:, None, None] * pairs.document_mask[:, None, :, None]).expand_as(
        pairs.alignment
    )
    sizes = torch.arange(1, 1 + pairs.document_mask.shape[1])[:, None]
    for scaled in (1, sizes):  # rank one still, with unequal rows
        pairs.alignment = pairs.alignment * scaled
        found = measured(Learner([explanation]))
        assert found["relative_error_rank_one"] < 1e-6
        assert (found["relative_error"] < 1e-6) == (scaled is not sizes)


def test_nothing_is_measured_if_nothing_is_asked_or_aligned(make_explanation):
    model = Learner([make_explanation(3)])
    AlignmentCurve(0).on_train_epoch_end(None, model)
    model.alignable = False
    AlignmentCurve(7).on_train_epoch_end(None, model)
    assert not model.logged


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
