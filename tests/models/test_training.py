"""How systems train: optimiser, clipping, curves, checkpoints, draws."""

import pytest
import pytorch_lightning as pl
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils import get_total_norm

from analysis.questions.learning_curves import read_curve
from models.training import CheckpointFile, CurveLogger, TrainingCosts, training_callbacks

pytestmark = pytest.mark.filterwarnings("ignore")


def loader(*batches):
    return torch.utils.data.DataLoader(list(batches), batch_size=None)


def trainer(tmp_path, callbacks=(), **options):
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
    return pl.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        callbacks=[*training_callbacks(tmp_path / "last.ckpt"), *callbacks],
        **{**quiet, "enable_checkpointing": False, "max_epochs": 1, **options},
    )


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


@pytest.mark.parametrize(
    ("steps", "logged"), [(3, [1, 2, 3]), (41, [*range(2, 41, 2), 41])], ids=["few", "odd"]
)
def test_a_short_training_logs_a_curve_and_its_last_step(tools, tmp_path, batches, steps, logged):
    options = {"max_epochs": -1, "max_steps": steps, "log_every_n_steps": 10}
    curve, _ = fitted(tools, tmp_path, batches, **options)
    assert curve["step"].tolist() == logged and curve.drop(columns="validation_loss").notna().all(
        None
    )


class Attention(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4, bias=False)

    def training_step(self, batch, _):
        states = self.layer(batch)[None, None]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            loss = scaled_dot_product_attention(states, states, states).square().mean()
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_operations_of_both_passes_are_counted_over_resumptions(tmp_path):
    batches, checkpoint = [torch.ones(3, 8)] * 25, None
    for epochs in (1, 2):
        run = trainer(tmp_path, max_epochs=epochs)
        run.fit(Attention(), loader(*batches), ckpt_path=checkpoint, weights_only=True)
        checkpoint = tmp_path / "last.ckpt"
        watch = next(c for c in run.callbacks if isinstance(c, TrainingCosts))
        # Two products for the layer, but its inputs need no gradient; attention has two products
        # and its fused backward pass five, since it computes the weights again.
        attention = 7 * 2 * 3 * 3 * 4
        (counted,) = [r.value for r in watch.measured() if r.metric.name == "train_flops"]
        assert counted == epochs * 25 * (2 * 2 * 3 * 8 * 4 + attention)
