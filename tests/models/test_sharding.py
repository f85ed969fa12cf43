"""Parameters in shards (trainer=fsdp): two processes with half of them each equal one with all."""

import os
from pathlib import Path
from tempfile import mkdtemp

import pytest
import pytorch_lightning as pl
import torch

from data_modules.examples import collate
from gr_mvdr.files import read_checkpoint
from gr_mvdr.ranks import rank, world_size
from models.training import shard, training_callbacks
from tests.models.test_two_ranks import examples, part_of
from tests.two_processes import in_two_processes

NAMES = ["cached", "seal"]


class Steps(torch.utils.data.Dataset):
    """Three times one batch."""

    def __init__(self, batch):
        self.batch = batch

    def __len__(self):
        return 3

    def __getitem__(self, step):
        return self.batch


def systems():
    from tests.models.conftest import make_multi_vector, make_seal

    return {"cached": make_multi_vector(gradient_cache=2), "seal": make_seal()}


def trained():
    """Each system after three clipped steps: its checkpoint's weights, and what the rank kept."""
    os.environ["LOCAL_RANK"] = str(rank())
    found = {}
    for name, system in systems().items():
        strategy = "auto"
        if world_size() > 1:
            strategy = pl.strategies.ModelParallelStrategy(world_size(), 1, False)
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=world_size(),
            strategy=strategy,
            callbacks=(callbacks := training_callbacks(Path(mkdtemp()) / "last.ckpt")),
            max_epochs=1,
            gradient_clip_val=0.1,
            use_distributed_sampler=False,
            **dict(logger=False, enable_checkpointing=False, enable_progress_bar=False),
            enable_model_summary=False,
        )
        batch = collate(part_of(examples(name == "cached"), rank(), world_size()))
        trainer.fit(system, torch.utils.data.DataLoader(Steps(batch), batch_size=None))
        file = Path(trainer.strategy.broadcast(callbacks[-1].checkpoint))
        weights = read_checkpoint(file)["state_dict"]
        layer = next(p for n, p in system.named_parameters() if "SelfAttention" in n)
        kept = layer.to_local().numel() if world_size() > 1 else layer.numel()
        norm = float(trainer.callback_metrics["train/gradient_norm"])
        found[name] = {"weights": weights, "kept": kept, "norm": norm}
    os.environ.pop("LOCAL_RANK")
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return in_two_processes(trained, tmp_path_factory.mktemp("sharding"))


@pytest.fixture(scope="module")
def expected():
    return trained()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_two_halves_train_as_one_process_does(name, found, expected):
    whole = expected[name]["weights"]
    started = systems()[name].state_dict()
    assert found[0][name]["weights"].keys() == whole.keys()
    for key, value in whole.items():
        assert torch.allclose(found[0][name]["weights"][key], value, atol=2e-5), key
    moved = [key for key, value in whole.items() if (value - started[key]).abs().max() > 1e-3]
    assert len(moved) > len(whole) / 2
    norm = expected[name]["norm"]
    assert [one[name]["norm"] for one in found] == 2 * [pytest.approx(norm, rel=1e-3)]
    assert norm > 0.1, "it is that of before clipping"
    assert [2 * one[name]["kept"] for one in found] == 2 * [expected[name]["kept"]]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        ("make_multi_vector", dict(gradient_cache=1), "model.gradient_cache=1: must be ≥ 2"),
        ("make_docid", dict(kind="titles-np"), "NonParametricHead: cannot be trained under"),
    ],
)
def test_what_shards_cannot_do_is_refused(tools, make, options, message):
    with pytest.raises(ValueError, match=message):
        shard(getattr(tools, make)(**options), None)
