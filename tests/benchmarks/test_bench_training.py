"""The training benchmark runs small; its figures are those of a GPU."""

import pytest
import torch

from tests.benchmarks import bench_training


@pytest.fixture(scope="module")
def printed():
    arguments = ["--size", "tiny", "--steps", "1", "--batch", "4", "--no-compile"]
    with pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr("builtins.print", lambda line, **_: said.append(line))
        patch.setattr(bench_training, "peak_of", lambda device: 1e12)
        bench_training.main(arguments)
    return said


def test_every_system_is_measured(printed):
    names = [line.split(":")[0] for line in printed]
    assert names == ["T5-ColBERT", "T5-ColBERT, corpus", "T5-SEAL", "DSI"]
    for line in (printed[0], *printed[2:]):
        assert all(
            part in line for part in ("pairs/s", "tokens/s", "peak", "utilisation", " h for")
        )


def test_a_step_is_counted_token_by_token():
    case = bench_training.colbert(dict(name=None, shape=bench_training.SHAPES["tiny"]), 4, None)
    layer = 4 * 32 * 32 + 2 * 32 * 64  # four projections of attention, two matrices
    positions = 32 * 4  # of relative attention, in the first layer
    assert case.tokens == 4 * (64 + 256)
    assert case.flops == 6 * (2 * layer + positions) * case.tokens


def test_hours_are_operations_by_what_a_device_reaches():
    case = bench_training.Case("x", None, None, [(torch.nn.Linear(5, 2), 10**12)])
    found = {"pairs/s": 1, "tokens/s": 1, "peak bytes": 1, "flops/s": 0.5e12}
    hours = 6 * 10 * 1e12 * bench_training.PAPER_STEPS / 0.5e12 / 3600
    assert f" {hours:.1f} h for" in bench_training.described(found, case, 1e12)


def test_only_known_devices_have_a_peak():
    assert bench_training.peak_of(torch.device("cpu")) is None
