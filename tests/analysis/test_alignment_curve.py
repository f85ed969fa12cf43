import csv
from types import SimpleNamespace

import pytest
import torch

from analysis.alignment_curve import FILE, AlignmentCurve, Curve
from analysis.analysis import Subject


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


def trainer_of(batches, epoch=0, first=True):
    def test_pairs(split, pairs, covers):
        assert (split, pairs, covers(0)) == ("test", 7, True)
        return ["pair"] * batches, [Batch(number) for number in range(batches)]

    data = SimpleNamespace(test_splits=["test"], test_pairs=test_pairs)
    place = dict(current_epoch=epoch, global_step=10 * (epoch + 1), is_global_zero=first)
    return SimpleNamespace(datamodule=data, **place)


def rows_of(folder):
    with (folder / FILE).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("paradigm", ["generative", "multi_vector"])
def test_a_row_an_epoch_without_training_mode(tmp_path, make_explanation, paradigm):
    model = Learner([make_explanation(n, seed=n, paradigm=paradigm) for n in (3, 2)], paradigm)
    curve = AlignmentCurve(7, str(tmp_path))
    for epoch in range(2):
        curve.on_train_epoch_end(trainer_of(2, epoch), model)
    assert model.modes == [(False, False)] * 4 and model.training
    rows = rows_of(tmp_path)
    assert [(row["epoch"], row["step"]) for row in rows] == [("1", "10"), ("2", "20")]
    names = {"relative_error", "relative_error_rank_one", "hard", "soft"}
    names |= {"cross_attention"} if paradigm == "generative" else set()
    assert set(rows[0]) == {"epoch", "step"} | names
    assert {name for name, _ in model.logged} == {f"alignment/{name}" for name in names}
    assert all(0 <= float(rows[0][name]) <= 1 for name in names)


def test_rank_one_attention_has_no_error(tmp_path, make_explanation):
    explanation = make_explanation(4)
    pairs = explanation.layers[-1]
    rows = pairs.query_mask.float() / pairs.query_mask.sum(1, keepdim=True)
    pairs.alignment = (rows[:, None, None] * pairs.document_mask[:, None, :, None]).expand_as(
        pairs.alignment
    )
    sizes = torch.arange(1, 1 + pairs.document_mask.shape[1])[:, None]
    for scaled in (1, sizes):  # rank one still, with unequal rows
        pairs.alignment = pairs.alignment * scaled
        curve = AlignmentCurve(7, str(tmp_path))
        curve.on_train_epoch_end(trainer_of(1), Learner([explanation]))
        (row,) = rows_of(tmp_path)
        assert float(row["relative_error_rank_one"]) < 1e-6
        assert (float(row["relative_error"]) < 1e-6) == (scaled is not sizes)


def test_one_process_alone_writes(tmp_path, make_explanation):
    model = Learner([make_explanation(3)])
    curve = AlignmentCurve(7, str(tmp_path))
    curve.on_train_epoch_end(trainer_of(1, first=False), model)
    assert not list(tmp_path.iterdir()) and len(curve.rows) == 1 and model.logged


def test_a_resumed_run_goes_on_with_its_curve(tmp_path, make_explanation):
    model = Learner([make_explanation(3)])
    first, second = (AlignmentCurve(7, str(tmp_path)) for _ in range(2))
    first.on_train_epoch_end(trainer_of(1, 0), model)
    second.load_state_dict(first.state_dict())
    second.on_train_epoch_end(trainer_of(1, 1), model)
    assert [row["epoch"] for row in rows_of(tmp_path)] == ["1", "2"]


def test_nothing_is_measured_where_nothing_is_asked_or_aligned(tmp_path, make_explanation):
    model = Learner([make_explanation(3)])
    AlignmentCurve(0, str(tmp_path)).on_train_epoch_end(trainer_of(1), model)
    model.alignable = False
    AlignmentCurve(7, str(tmp_path)).on_train_epoch_end(trainer_of(1), model)
    assert not list(tmp_path.iterdir()) and Curve(Subject(run=tmp_path)).finish().figures == []


@pytest.mark.parametrize("paradigm", ["generative", "multi_vector"])
def test_the_curve_is_drawn_with_a_panel_a_measure(tmp_path, make_explanation, paradigm):
    model = Learner([make_explanation(3, paradigm=paradigm)], paradigm)
    curve = AlignmentCurve(7, str(tmp_path))
    for epoch in range(3):
        curve.on_train_epoch_end(trainer_of(1, epoch), model)
    ((figure, entry),) = Curve(Subject(run=tmp_path)).finish().figures
    assert len(figure.axes) == (4 if paradigm == "generative" else 3)
    assert figure.axes[0].lines[0].get_xdata().tolist() == [10, 20, 30]
    assert ("cross-attention" in entry.caption) == (paradigm == "generative")
