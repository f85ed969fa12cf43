from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch

from models.bm25 import BM25
from models.multi_vector import MultiVector
from models.t5_seal import T5SEAL
from models.training import TrainingWatch


class Steps(torch.utils.data.Dataset):
    """Two training steps over one batch."""

    def __init__(self, batch):
        self.batch = batch

    def __len__(self):
        return 2

    def __getitem__(self, step):
        return self.batch


def loader(batch):
    return torch.utils.data.DataLoader(Steps(batch), batch_size=None)


def trainer(tmp_path, **options):
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
    return pl.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        **{**quiet, "enable_checkpointing": False, "max_epochs": 1, **options},
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["multi_vector", "seal"])
def test_a_checkpoint_is_plain_and_gives_the_model_back(tools, tmp_path, name):
    model = {"multi_vector": tools.make_multi_vector, "seal": tools.make_seal}[name]()
    batch = tools.make_batch()
    fitted = trainer(tmp_path)
    fitted.fit(model, loader(batch))
    path = tmp_path / "model.ckpt"
    fitted.save_checkpoint(path)

    hyper_parameters = torch.load(path, weights_only=True)["hyper_parameters"]
    assert plain(dict(hyper_parameters)) and "optimizer" in hyper_parameters
    kind = {"multi_vector": MultiVector, "seal": T5SEAL}[name]
    loaded = kind.load_from_checkpoint(path, weights_only=True)
    assert loaded.hparams == model.hparams
    with torch.no_grad():
        assert torch.equal(loaded.eval().score(batch), model.eval().score(batch))


def plain(value):
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(plain, value))
    return value is None or type(value) in (str, int, float, bool)


@pytest.mark.filterwarnings("ignore")
def test_the_one_cycle_schedule_rises_and_ends_near_zero(tools, tmp_path):
    rates = []

    class Rates(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    settings = {"learning_rate": 0.01, "weight_decay": 0.0, "schedule": "one_cycle"}
    model = tools.make_multi_vector(optimizer=settings)
    fitted = trainer(tmp_path, max_steps=10, callbacks=[Rates()])
    fitted.fit_loop.max_epochs = 5
    fitted.fit(model, loader(tools.make_batch()))
    assert len(rates) == 10
    assert max(rates) == pytest.approx(0.01, rel=0.05) and rates[-1] < 1e-3
    assert rates.index(max(rates)) in (1, 2, 3)


def test_the_constant_schedule_is_plain_adamw(tools):
    optimizer = tools.make_seal().configure_optimizers()
    assert isinstance(optimizer, torch.optim.AdamW)
    assert (optimizer.defaults["lr"], optimizer.defaults["weight_decay"]) == (1e-3, 0.01)


def test_an_unknown_schedule_is_refused(tools):
    with pytest.raises(
        ValueError, match="model.optimizer.schedule=cosine: must be constant or one"
    ):
        tools.make_multi_vector(optimizer={**tools.OPTIMIZER, "schedule": "cosine"})


def test_dropout_depends_on_seed_and_step_alone(monkeypatch):
    at_step_5 = SimpleNamespace(global_step=5), None, None, 0
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    draws = []
    for _ in range(2):
        TrainingWatch().on_train_batch_start(*at_step_5)
        draws.append(torch.rand(3))
        torch.rand(7)
    assert torch.equal(*draws)
    monkeypatch.setenv("PL_GLOBAL_SEED", "4")
    TrainingWatch().on_train_batch_start(*at_step_5)
    assert not torch.equal(torch.rand(3), draws[0])


def test_every_system_names_its_paradigm():
    found = {(kind.paradigm, kind.trainable) for kind in (BM25, MultiVector, T5SEAL)}
    assert found == {("lexical", False), ("multi_vector", True), ("generative", True)}
