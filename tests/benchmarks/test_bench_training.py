"""The training benchmark runs small, its figures are those of a GPU; base size fits into memory."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate

import train
from gr_mvdr.tokenizers import build_word_tokenizer
from tests.benchmarks import bench_training
from tests.runs import ROOT, beir, compose_config

BASE = ("t5_colbert", "t5_seal", "dsi_semantic", "genre")


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


@pytest.mark.slow
def test_systems_of_base_size_train_and_search_in_12_gib(tmp_path):
    command = "from tests.benchmarks.test_bench_training import use_base; use_base()"
    found = subprocess.run(
        [sys.executable, "-c", command],
        cwd=ROOT,
        env={**os.environ, "PLACE": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert 0 < int(found.stdout.split()[-1]) < bench_training.MOST_BYTES


def use_base():
    """In a process of its own: four systems one after the other, and the most that it held."""
    place = Path(os.environ["PLACE"])
    texts = [json.loads(line)["text"] for line in (beir(place / "beir") / "corpus.jsonl").open()]
    folder = bench_training.save_backbone(place / "t5", "base", build_word_tokenizer(texts))
    for name in BASE:
        use(name, place, folder)
    print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def use(name, place, backbone):
    """Two steps of training, then index, search and alignment."""
    keys = [f"data.path={place}/beir", f"backbone.name={backbone}", f"output={place}"]
    keys += ["data=files", "backbone=pretrained", "model.optimizer.schedule=constant"]
    config = compose_config(
        "train", f"model={name}", "logger=none", "data.batch_size=4", f"name={name}", *keys
    )
    data = instantiate(config.data)
    system = train.prepare_model(config, data, place / name)
    optimizer, batches = system.configure_optimizers(), iter(data.train_dataloader())
    for _ in range(2):
        system.training_step(next(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
    system.eval().index(data.documents, place / name / "index")
    queries = data.test_queries("test").select(range(2))
    assert system.retrieve(queries, 5).query_ids == queries["id"][:]
    _, (pairs, *_) = data.test_pairs("test", 2, covers=system.covers)
    with torch.no_grad():
        assert system.align(pairs).relevance.isfinite().all()
