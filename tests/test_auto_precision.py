"""The precision of a run depends on the CPU; both kinds of CPU run to the end."""

from pathlib import Path

import datasets
import pytest
import torch
from hydra import compose, initialize_config_dir

from conf import launch
from train import train

CONF = Path(__file__).parents[1] / "conf"
FLAGS = {"avx512f avx512_bf16": "bf16-mixed", "amx_bf16": "bf16-mixed", "avx2 fma": "32-true"}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without a GPU whose CPU has these flags; None: it does not say."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def with_flags(flags):
        file = tmp_path / "cpuinfo"
        if flags is not None:
            file.write_text(f"flags : fpu {flags} sse\n")
        monkeypatch.setattr(launch, "Path", lambda path: file)

    return with_flags


@pytest.mark.parametrize(("flags", "precision"), [*FLAGS.items(), (None, "32-true")])
def test_the_cpu_decides(machine, flags, precision):
    machine(flags)
    assert launch.choose_precision() == precision


def test_a_cpu_that_multiplies_in_bf16_runs_to_the_end(machine, tmp_path):
    machine(flags := "amx_bf16")
    keys = ["experiment=smoke", "model=t5_colbert", "data.n_documents=50", "logger=none"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", [*keys, "analysis=none", f"output={tmp_path}", "name=run"])
    metrics = train(config).metrics
    assert {"retrieve/mrr@10", "rerank/mrr@10"} <= metrics.keys()
    assert f"precision: {FLAGS.get(flags, '32-true')}" in (tmp_path / "run/config.yaml").read_text()
