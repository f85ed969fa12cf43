"""Benchmark of runs at the papers' size: the peak memory of each run's own process.

    python -m tests.benchmarks.bench_training t5_colbert t5_seal dsi_semantic genre

Two steps and all that a run does after them, on 50 generated documents, from a pretrained folder of
T5 v1.1 base's shape with random weights.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from data_modules.sources import AlmanacDataModule

BASE = dict(d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_heads=12, vocab_size=32128)
BASE |= dict(feed_forward_proj="gated-gelu")
DOCUMENTS, MOST_BYTES = 50, 12 * 2**30
FEW = ("data.batch_size=16", "data.max_test_queries=4", "data.max_rerank_queries=1")
FEW += ("analysis=none",)
ROOT = Path(__file__).parents[2]


def save_backbone(folder: Path, tokenizer: Any) -> Path:
    """An untied T5 v1.1 with random weights, in a folder as from the hub."""
    torch.manual_seed(0)
    config = T5Config(**BASE, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    model.lm_head.weight = nn.Parameter(torch.randn_like(model.shared.weight))
    model.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"tie_word_embeddings": False}))
    tokenizer.save_pretrained(folder)
    return folder


def almanac_tokenizer() -> Any:
    """Of word pieces, trained on the documents of the runs."""
    pieces = dict(backbone=None, path=None, unit="piece", vocab_size=2000, lowercase=True)
    drawn = dict(train_questions=1, collection_seed=1, test_split="test")
    return AlmanacDataModule(n_documents=DOCUMENTS, **drawn, tokenizer_options=pieces).tokenizer


def main(systems: list[str]) -> None:
    """Prints a line for the run of every system, and exits if one takes more than its bar."""
    missed = []
    with TemporaryDirectory(prefix="base-") as place:
        name = save_backbone(Path(place) / "base", almanac_tokenizer())
        for system in systems:
            options = f"model={system} backbone.name={name} output={place} name={system}"
            command = [sys.executable, "train.py", "experiment=smoke", "backbone=pretrained"]
            command += ["logger=none", f"data.n_documents={DOCUMENTS}", *FEW, *options.split()]
            started = time.perf_counter()
            subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
            found = json.loads((Path(place) / system / "metrics.json").read_text())
            taken, peak = time.perf_counter() - started, found["cost/peak_memory_bytes"]
            missed += [system] if peak > MOST_BYTES else []
            print(f"{system}: peak {peak / 2**30:.2f} GiB, {taken:.0f} s", flush=True)
    if missed:
        sys.exit(f"more than {MOST_BYTES / 2**30:.0f} GiB: {', '.join(missed)}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["t5_colbert", "t5_seal", "dsi_semantic", "genre"])
