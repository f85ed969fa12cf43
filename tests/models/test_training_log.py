"""`loss.csv` has one line a step, of that step; progress is that of the whole training."""

import pytest
import pytorch_lightning as pl
import torch

from analysis.tables import read_rows
from models import training_log
from models.training_log import COLUMNS, LossFile, TrainingProgress, read_lines
from tests.models.test_base import trainer

pytestmark = pytest.mark.filterwarnings("ignore")


class Batches(torch.utils.data.Dataset):
    """The batches of an epoch."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, number):
        return self.batches[number]


@pytest.fixture
def batches(tools):
    return [tools.make_batch(seed=seed) for seed in range(4)]


def loader(batches):
    return torch.utils.data.DataLoader(Batches(batches), batch_size=None)


def fitted(tools, tmp_path, batches, checkpoint=None, validation=None, **options):
    """The rows of a training over the batches, and its trainer."""
    model = tools.make_multi_vector()
    options = {"max_epochs": 2, "callbacks": [LossFile(str(tmp_path))], **options}
    with_trainer = trainer(tmp_path, **options)
    sides = [loader(batches), loader(validation)] if validation else [loader(batches)]
    with_trainer.fit(model, *sides, ckpt_path=checkpoint, weights_only=True)
    return read_rows(tmp_path / "loss.csv"), with_trainer


def first_step(tools, batches):
    """Loss, and norm of the gradients of the mean loss of some batches, computed apart."""
    model = tools.make_multi_vector()
    model.train()
    losses = []
    for number, batch in enumerate(batches):
        torch.manual_seed(hash((0, 0, number, 0)))
        losses.append(model.loss(batch))
    loss = sum(losses) / len(losses)
    loss.backward()
    norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
    return float(loss), float(torch.stack(norms).norm())


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_a_line_a_step_with_the_norm_before_clipping(tools, tmp_path, batches, clip, algorithm):
    clipping = {"gradient_clip_val": clip, "gradient_clip_algorithm": algorithm}
    rows, _ = fitted(tools, tmp_path, batches, **clipping)
    assert [(row["step"], row["epoch"]) for row in rows] == [
        *((step, 1) for step in range(1, 5)),
        *((step, 2) for step in range(5, 9)),
    ]
    loss, norm = first_step(tools, batches[:1])
    assert rows[0]["loss"] == pytest.approx(loss, rel=1e-5)
    assert rows[0]["gradient_norm"] == pytest.approx(norm, rel=1e-5) and norm > 0.02
    assert {row["learning_rate"] for row in rows} == {tools.OPTIMIZER["learning_rate"]}
    header = (tmp_path / "loss.csv").read_text().splitlines()[0]
    assert tuple(header.split(",")) == COLUMNS


def test_clipping_by_norm_leaves_gradients_of_that_norm(tools, tmp_path, batches):
    norms = []

    class Norms(pl.Callback):
        def on_train_batch_end(self, trainer, model, *_):
            gradients = [p.grad.norm() for p in model.parameters() if p.grad is not None]
            norms.append(float(torch.stack(gradients).norm()))

    def watched(clip):
        norms.clear()
        model = tools.make_multi_vector()
        # Lightning sets the gradients to zero before the next step, not after this one.
        options = {"callbacks": [Norms()], "gradient_clip_val": clip}
        trainer(tmp_path, **options).fit(model, loader(batches))
        return list(norms)

    assert watched(0.01) == pytest.approx([0.01] * 4, rel=1e-3)
    assert min(watched(None)) > 0.02


def test_a_step_of_several_batches_has_their_mean(tools, tmp_path, batches):
    rows, _ = fitted(tools, tmp_path, batches, accumulate_grad_batches=2)
    assert [(row["step"], row["epoch"]) for row in rows] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    loss, norm = first_step(tools, batches[:2])
    assert rows[0]["loss"] == pytest.approx(loss, rel=1e-5)
    assert rows[0]["gradient_norm"] == pytest.approx(norm, rel=1e-5)


def test_a_validation_belongs_to_the_step_before_it(tools, tmp_path, batches):
    rows, done = fitted(tools, tmp_path, batches, validation=batches[:1])
    assert [row["step"] for row in rows if "validation_loss" in row] == [4, 8]
    last = float(done.callback_metrics["validation/loss"])
    assert rows[-1]["validation_loss"] == pytest.approx(last, rel=1e-5)


def test_mixed_precision_knows_its_norm(tools, tmp_path, batches):
    rows, _ = fitted(tools, tmp_path, batches, precision="bf16-mixed")
    _, norm = first_step(tools, batches[:1])
    assert rows[0]["gradient_norm"] == pytest.approx(norm, rel=0.1)


class Stop(pl.Callback):
    """Ends the process's training in its sixth step, as a kill would: nothing is written after."""

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 6:
            raise RuntimeError("killed")


def test_a_resumed_training_has_every_step_once(tools, tmp_path, batches, monkeypatch):
    whole, _ = fitted(tools, tmp_path, batches)
    save = pl.callbacks.ModelCheckpoint(dirpath=tmp_path, filename="last")
    with pytest.raises(RuntimeError, match="killed"):
        fitted(
            tools,
            tmp_path,
            batches,
            enable_checkpointing=True,
            callbacks=[LossFile(str(tmp_path)), Stop(), save],
        )
    path = tmp_path / "loss.csv"
    assert [row["step"] for row in read_rows(path)] == [1, 2, 3, 4, 5, 6], "as they were made"
    for damage in ("", "7,2,0.", "7,2,0.5,0.1,,\n7,2"):  # cut by a kill
        path.write_text(path.read_text() + damage)
        rows, _ = fitted(tools, tmp_path, batches, checkpoint=tmp_path / "last.ckpt")
        assert [row["step"] for row in rows] == list(range(1, 9))
        assert rows == [pytest.approx(row, rel=1e-3) for row in whole]


def test_a_new_training_begins_the_file_again(tmp_path):
    path = tmp_path / "loss.csv"
    assert read_lines(path, 3) == []
    path.write_text("step\n1,1,2,3,4,\n2,1,2,3,4,5\nx,1,2,3,4,\n3,1\n3,1,2,3,4,\n4,1,2,3,4,\n5,1")
    assert read_lines(path, 3) == ["1,1,2,3,4,", "2,1,2,3,4,5", "3,1,2,3,4,"]
    assert read_lines(path, 0) == []


def test_the_bar_is_of_all_epochs(tools, tmp_path, batches):
    progress = TrainingProgress()
    callbacks = [LossFile(str(tmp_path)), progress]
    fitted(tools, tmp_path, batches, enable_progress_bar=True, callbacks=callbacks)
    assert (progress.bar.n, progress.bar.total) == (8, 8)


def test_the_columns_are_those_that_training_logs(tools, tmp_path, batches):
    rows, done = fitted(tools, tmp_path, batches)
    logged = {name.partition("/")[2] for name in done.callback_metrics}
    assert (
        logged == {"loss", "learning_rate", "gradient_norm"} and training_log.LOSSES == "loss.csv"
    )
    assert set(rows[0]) == {"step", "epoch", *logged}
