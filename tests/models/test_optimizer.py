"""AdamW's groups, and the schedules of the learning rate."""

import math

import pytest

from models.training import make_optimizer


class Trainer:
    estimated_stepping_batches = 20


def rates(system, monkeypatch, **options):
    """The learning rate of each of 20 steps."""
    monkeypatch.setattr(type(system), "trainer", Trainer)
    made = make_optimizer(system, 1.0, 0.0, **options)
    optimizer, scheduler, found = made["optimizer"], made["lr_scheduler"]["scheduler"], []
    for _ in range(20):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("warmup", [5, 0.25])
@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        ("constant", lambda t: 1.0),
        ("linear", lambda t: 1 - t),
        ("cosine", lambda t: (1 + math.cos(math.pi * t)) / 2),
    ],
)
def test_a_rate_rises_for_the_warm_up_and_then_follows_its_schedule(
    tools, monkeypatch, schedule, after, warmup
):
    found = rates(tools.make_multi_vector(), monkeypatch, schedule=schedule, warmup=warmup)
    expected = [step / 5 for step in range(5)] + [after((step - 5) / 15) for step in range(5, 20)]
    assert found == pytest.approx(expected)


def test_one_cycle_rises_for_its_warm_up(tools, monkeypatch):
    system = tools.make_multi_vector()
    for options, peak in (({}, 5), ({"warmup": 11}, 10)):
        found = rates(system, monkeypatch, schedule="one_cycle", **options)
        assert found.index(max(found)) == peak and max(found) == pytest.approx(1.0)


def test_parts_have_their_own_rates_and_vectors_no_decay(tools):
    system = tools.make_multi_vector("aligner")
    own = {"encoder": 2.0, "values": 3.0}  # the projection is within the encoder
    optimizer = make_optimizer(system, 1.0, 0.1, "constant", decay="matrices", rates=own)
    found = {
        id(tensor): (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for tensor in group["params"]
    }
    for name, tensor in system.named_parameters():
        rate = 3.0 if ".values." in name else 2.0
        assert found[id(tensor)] == (rate, 0.1 if tensor.ndim > 1 else 0.0), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rates": {"hed": 0.1}}, r"rates.hed=0.1: trains no parameter, .* as backbone, encoder"),
        ({"warmup": 20}, "warmup=20: must be below the 20 steps"),
    ],
)
def test_what_cannot_be_is_named(tools, monkeypatch, options, message):
    with pytest.raises(ValueError, match=f"model.optimizer.{message}"):
        rates(tools.make_multi_vector(), monkeypatch, schedule="linear", **options)
