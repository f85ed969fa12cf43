"""How systems train: optimiser, clipping, curves, checkpoints, draws."""

from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from pandas.testing import assert_frame_equal
from torch.nn.utils import get_total_norm

from analysis.training_curve import read_curve
from models.multi_vector import MultiVector
from models.t5_seal import T5SEAL
from models.training import CURVES, CheckpointFile, CurveLogger, TrainingWatch

pytestmark = pytest.mark.filterwarnings("ignore")


def loader(*batches):
    return torch.utils.data.DataLoader(list(batches), batch_size=None)


def trainer(tmp_path, callbacks=(), **options):
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
    return pl.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        callbacks=[TrainingWatch(tmp_path / "last.ckpt"), *callbacks],
        **{**quiet, "enable_checkpointing": False, "max_epochs": 1, **options},
    )


@pytest.mark.parametrize("name", ["multi_vector", "seal"])
def test_a_checkpoint_is_plain_and_gives_the_model_back(tools, tmp_path, name):
    model = {"multi_vector": tools.make_multi_vector, "seal": tools.make_seal}[name]()
    batch, path = tools.make_batch(), tmp_path / "last.ckpt"
    trainer(tmp_path).fit(model, loader(batch, batch))
    kind = {"multi_vector": MultiVector, "seal": T5SEAL}[name]
    loaded = kind.load_from_checkpoint(path, weights_only=True)
    assert loaded.hparams == model.hparams
    with torch.no_grad():
        assert torch.equal(loaded.eval().score(batch), model.eval().score(batch))


def test_a_damaged_checkpoint_is_named_and_what_to_do(tmp_path):
    file = tmp_path / "last.ckpt"
    CheckpointFile().save_checkpoint({"state_dict": {"weight": torch.ones(40, 30)}}, file)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=f"{file}: .*: remove it, and training begins again"):
        CheckpointFile().load_checkpoint(file, weights_only=True)


def fitted(tools, run, batches, checkpoint=None, callbacks=(), **options):
    """The curves of a training over the batches, and the model."""
    model = tools.make_multi_vector(**options.pop("model", {}))
    logging = {"logger": CurveLogger(run), "log_every_n_steps": 1}
    with_trainer = trainer(run, callbacks, **{**logging, "max_epochs": 2, **options})
    with_trainer.fit(model, loader(*batches), ckpt_path=checkpoint, weights_only=True)
    return read_curve(run), model


@pytest.fixture
def batches(tools):
    return [tools.make_batch(seed=seed) for seed in range(4)]


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_the_curve_has_every_step_and_the_norm_before_clipping(tools, tmp_path, batches, algorithm):
    norms = []

    class Norms(pl.Callback):
        def on_train_batch_end(self, trainer, model, *_):
            # Lightning sets the gradients to zero before the next step, not after this one.
            norms.append(float(get_total_norm([p.grad for p in model.parameters()])))

    clipping = {"gradient_clip_val": 0.01, "gradient_clip_algorithm": algorithm}
    curve, _ = fitted(tools, tmp_path, batches, callbacks=[Norms()], **clipping)
    assert curve["step"].tolist() == list(range(1, 9))
    assert set(curve["learning_rate"]) == {tools.OPTIMIZER["learning_rate"]}
    model = tools.make_multi_vector().train()
    torch.manual_seed(hash((0, 0, 0, 0)))
    loss = model.loss(batches[0])
    loss.backward()
    norm = float(get_total_norm([p.grad for p in model.parameters()]))
    assert curve["loss"][0] == pytest.approx(float(loss), rel=1e-5)
    assert curve["gradient_norm"][0] == pytest.approx(norm, rel=1e-5) and norm > 0.02
    if algorithm == "norm":
        assert norms == pytest.approx([0.01] * 8, rel=1e-3)


class Stop(pl.Callback):
    """Ends the process's training in its sixth step, as a kill would: nothing is written after."""

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 6:
            raise RuntimeError("killed")


def test_a_resumed_training_continues_the_curve(tools, tmp_path, batches):
    whole, _ = fitted(tools, tmp_path / "whole", batches)
    save = pl.callbacks.ModelCheckpoint(dirpath=tmp_path, filename="last")
    with pytest.raises(RuntimeError, match="killed"):
        fitted(tools, tmp_path, batches, callbacks=[Stop(), save], enable_checkpointing=True)
    with (tmp_path / CURVES).open("a") as file:
        file.write("1,6,0.")  # a line that the kill cut
    resumed, _ = fitted(tools, tmp_path, batches, checkpoint=tmp_path / "last.ckpt")
    assert_frame_equal(resumed, whole, rtol=1e-3)


def test_the_other_ranks_do_not_read_the_curve_that_the_first_replaces(tmp_path, monkeypatch):
    (tmp_path / CURVES).parent.mkdir()
    (tmp_path / CURVES).write_bytes(b"step\n\xff")  # as a file that is being written
    monkeypatch.setattr("models.training.rank", lambda: 1)
    assert CurveLogger(tmp_path).experiment.metrics == []


def test_dropout_depends_on_seed_and_step_alone(monkeypatch):
    at_step_5 = SimpleNamespace(global_step=5), None, None, 0
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    draws = []
    watch = TrainingWatch(None)
    for _ in range(2):
        watch.on_train_batch_start(*at_step_5)
        draws.append(torch.rand(3))
        torch.rand(7)
    assert torch.equal(*draws)
    monkeypatch.setenv("PL_GLOBAL_SEED", "4")
    watch.on_train_batch_start(*at_step_5)
    assert not torch.equal(torch.rand(3), draws[0])
