"""Benchmark of training at the papers' size: pairs and tokens a second, utilisation, peak memory.

    python -m tests.benchmarks.bench_training                 T5 v1.1 base, a GPU
    python -m tests.benchmarks.bench_training --size tiny     seconds on a CPU
    python -m tests.benchmarks.bench_training --runs t5_colbert t5_seal dsi_semantic genre

Random weights and tokens, every text as long as its limit. Needs no more than gr_mvdr and models.
With `--runs`: two steps and all that a run does after them, on 50 generated documents, from a
pretrained folder of that size with random weights; the memory of each run's own process.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

from gr_mvdr.batch import PairBatch
from gr_mvdr.texts import TextTable
from models.docid import Docid
from models.multi_vector import MultiVector
from models.t5_seal import T5SEAL

_V1_1 = dict(d_kv=64, vocab_size=32128, feed_forward_proj="gated-gelu")
SHAPES = {
    "tiny": dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=512),
    "base": dict(d_model=768, d_ff=2048, num_layers=12, num_heads=12, **_V1_1),
    "large": dict(d_model=1024, d_ff=2816, num_layers=24, num_heads=16, **_V1_1),
}
# Dense bf16, by the data sheets.
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "V100": 125e12}
OPTIMIZER = {"learning_rate": 1e-3, "weight_decay": 0.01, "schedule": "constant"}
EVIDENCE = {"alpha": 2.0, "beta": 0.8, "smoothing": 5.0}
# Tokens of the papers' texts and targets (Wu: 64 and 256, five spans of ten words; DSI: 32).
QUERY, DOCUMENT, SPAN, N_SPANS, DSI_QUERY, DOCIDS = 64, 256, 14, 5, 32, 1000
PAPER_STEPS = 25_000
DOCUMENTS, MOST_BYTES = 50, 12 * 2**30  # of a run at base size
FEW = ("data.batch_size=16", "data.max_test_queries=4", "data.max_rerank_queries=1")
FEW += ("analysis=none",)  # the pairs of `analysis.pairs` are aligned all the same
ROOT = Path(__file__).parents[2]


class Case(NamedTuple):
    """A system, its batch, and the parameters that source and target tokens pass."""

    name: str
    system: Any
    batch: PairBatch
    matrices: list[tuple[nn.Module, int]]

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.matrices)

    @property
    def flops(self) -> float:
        """Of one step: 2 operations a parameter and token there, 4 back.

        Not counted: QKᵀ and AV, which grow with the length (below 5 % for T5-base and 256 tokens),
        the optimizer's, and what a gradient cache computes twice.
        """
        return 6.0 * sum(count(part) * tokens for part, tokens in self.matrices)


def count(module: nn.Module) -> int:
    """Parameters of a module's matrices."""
    return sum(weight.numel() for weight in module.parameters() if weight.dim() > 1)


def batch_of(sources: int, source: int, targets: int, target: int, vocabulary: int) -> PairBatch:
    """Random pairs; with more targets than sources every source has as many."""
    sides = torch.randint(5, vocabulary, (sources, source)), torch.ones(sources, source).bool()
    ids, mask = torch.randint(5, vocabulary, (targets, target)), torch.ones(targets, target).bool()
    return PairBatch(*sides, ids, mask, torch.arange(sources))


def colbert(backbone: dict[str, Any], batch: int, cache: int | None) -> Case:
    system = MultiVector(
        backbone,
        dimension=128,
        query_length=QUERY,
        document_length=DOCUMENT,
        alignment={"_target_": "gr_mvdr.alignment.MaxSim"},
        loss={"_target_": "gr_mvdr.losses.InBatchCrossEntropy"},
        search={},
        optimizer=OPTIMIZER,
        gradient_cache=cache,
    )
    pairs = batch_of(batch, QUERY, batch, DOCUMENT, backbone["shape"]["vocab_size"])
    return Case(
        "T5-ColBERT",
        system,
        pairs,
        [(system.encoder.backbone.encoder.block, batch * (QUERY + DOCUMENT))],
    )


def seal(backbone: dict[str, Any], batch: int, cache: int | None) -> Case:
    options = dict(query_length=QUERY, document_length=DOCUMENT, key_length=10, beam_size=15)
    system = T5SEAL(backbone, evidence=EVIDENCE, optimizer=OPTIMIZER, **options)
    spans = batch * N_SPANS
    pairs = batch_of(batch, QUERY, spans, SPAN, backbone["shape"]["vocab_size"])
    return Case("T5-SEAL", system, pairs, generative(system, batch * QUERY, spans * SPAN))


def dsi(backbone: dict[str, Any], batch: int, cache: int | None) -> Case:
    system = Docid(
        backbone,
        identifiers={"_target_": "gr_mvdr.identifiers.docids.NaiveDocids"},
        query_length=DSI_QUERY,
        document_length=DSI_QUERY,
        beam_size=20,
        optimizer=OPTIMIZER,
    )
    names = [f"{number:06}" for number in range(DOCIDS)]
    columns = dict(id=names, tokens=[[5]] * DOCIDS, text=names, title_tokens=[[5]] * DOCIDS)
    with TemporaryDirectory() as folder:
        system.prepare(TextTable(columns), range(DOCIDS), f"{folder}/identifiers")
    pairs = batch_of(batch, DSI_QUERY, batch, 1, backbone["shape"]["vocab_size"])
    pairs.document_index = torch.randint(DOCIDS, (batch,))
    targets = int(system.targets(pairs).document_mask.sum())
    return Case("DSI", system, pairs, generative(system, batch * DSI_QUERY, targets))


def generative(system: Any, source: int, target: int) -> list[tuple[nn.Module, int]]:
    """What an encoder-decoder's tokens pass; those of the output table are the targets."""
    backbone = system.backbone
    parts = (backbone.encoder.block, source), (backbone.decoder.block, target)
    return [*parts, (backbone.lm_head, target)]


CASES = (colbert, seal, dsi)


def compiled(system: nn.Module) -> None:
    """Compiles the stacks of the backbone, in place; every batch has the same shape."""
    backbone = getattr(system, "backbone", None) or system.encoder.backbone
    for stack in ("encoder", "decoder"):
        if hasattr(backbone, stack):
            getattr(backbone, stack).compile(dynamic=False)


def seconds(step: Callable[[], Any], steps: int, device: torch.device) -> float:
    """Of one step, after two that warm up."""
    for number in range(2 + steps):
        if number == 2:
            finish(device)
            start = time.perf_counter()
        step()
    finish(device)
    return (time.perf_counter() - start) / steps


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_bytes(device: torch.device) -> int:
    """Of the GPU since the last reset; of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def train_step(case: Case, optimizer: Any, device: torch.device) -> Callable[[], Tensor]:
    batch = case.batch.to(device)

    def step() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            loss = case.system.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(case.system.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def measured(case: Case, steps: int, device: torch.device, compile_it: bool) -> dict[str, float]:
    """A case's throughput and memory in training, bf16."""
    system = case.system.to(device).train()
    if compile_it:
        compiled(system)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elapsed = seconds(train_step(case, system.configure_optimizers(), device), steps, device)
    rates = {"pairs/s": len(case.batch) / elapsed, "tokens/s": case.tokens / elapsed}
    return {**rates, "flops/s": case.flops / elapsed, "peak bytes": peak_bytes(device)}


def documents_a_second(case: Case, steps: int, device: torch.device) -> float:
    """Corpus encoding as `index` does it, but for the disk: 64 documents at once, fp32."""
    ids, mask = (
        side[:64].to(device) for side in (case.batch.document_ids, case.batch.document_mask)
    )
    system = case.system.to(device).eval()
    with torch.inference_mode():
        encode = lambda: system.encode_documents(ids, mask).to("cpu")  # noqa: E731
        return len(ids) / seconds(encode, steps, device)


def peak_of(device: torch.device) -> float | None:
    """Operations a second by the data sheet, bf16; None for a device that is not listed."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else ""
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def lines(options: argparse.Namespace) -> Iterator[str]:
    """A line for every case, with and without torch.compile, and for the corpus."""
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    peak = peak_of(device)
    attention = "sdpa" if device.type == "cuda" else "eager"
    backbone = dict(name=None, attention=attention, shape=SHAPES[options.size])
    for make in CASES:
        for compile_it in (False, True) if options.compile else (False,):
            torch.manual_seed(0)
            case = make(backbone, options.batch, options.gradient_cache)
            found = measured(case, options.steps, device, compile_it)
            name = case.name + (", compiled" if compile_it else "")
            yield f"{name}: {described(found, case, peak)}"
            if make is colbert and not compile_it:
                rate = documents_a_second(case, options.steps, device)
                yield f"{case.name}, corpus: {rate:,.1f} documents/s of {DOCUMENT} tokens, fp32"


def described(found: dict[str, float], case: Case, peak: float | None) -> str:
    parts = f"{found['pairs/s']:,.1f} pairs/s, {found['tokens/s']:,.0f} tokens/s, "
    parts += f"peak {found['peak bytes'] / 1e9:.2f} GB"
    if peak is None:
        return parts + ", utilisation unknown (no such device in PEAKS)"
    share = found["flops/s"] / peak
    hours = case.flops * PAPER_STEPS / (peak * share) / 3600
    return parts + f", utilisation {share:.0%}, {hours:.1f} h for {PAPER_STEPS:,} such steps"


def save_backbone(folder: Path, size: str, tokenizer: Any) -> Path:
    """An untied T5 v1.1 with random weights, in a folder as from the hub."""
    torch.manual_seed(0)
    config = T5Config(**SHAPES[size], decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    model.lm_head.weight = nn.Parameter(torch.randn_like(model.shared.weight))
    model.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"tie_word_embeddings": False}))
    tokenizer.save_pretrained(folder)
    return folder


def almanac_tokenizer() -> Any:
    """Of word pieces, trained on the documents of the runs."""
    from data_modules.sources import AlmanacDataModule

    pieces = dict(backbone=None, path=None, unit="piece", vocab_size=2000, lowercase=True)
    drawn = dict(train_questions=1, collection_seed=1, test_split="test")
    return AlmanacDataModule(n_documents=DOCUMENTS, **drawn, tokenizer_options=pieces).tokenizer


def run_lines(systems: list[str], size: str) -> Iterator[str]:
    """A line for the run of every system; raises SystemExit if one takes more than its bar."""
    missed = []
    with TemporaryDirectory(prefix="base-") as place:
        name = save_backbone(Path(place) / size, size, almanac_tokenizer())
        for system in systems:
            options = f"model={system} backbone.name={name} output={place} name={system}"
            command = [sys.executable, "train.py", "experiment=smoke", "backbone=pretrained"]
            command += ["logger=none", f"data.n_documents={DOCUMENTS}", *FEW, *options.split()]
            started = time.perf_counter()
            subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
            found = json.loads((Path(place) / system / "metrics.json").read_text())
            taken, peak = time.perf_counter() - started, found["cost/peak_memory_bytes"]
            missed += [system] if peak > MOST_BYTES else []
            yield f"{system}: peak {peak / 2**30:.2f} GiB, {taken:.0f} s"
    if missed:
        sys.exit(f"more than {MOST_BYTES / 2**30:.0f} GiB: {', '.join(missed)}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--size", choices=SHAPES, default="base" if torch.cuda.is_available() else "tiny"
    )
    parser.add_argument("--batch", type=int, help="pairs a step (256; tiny: 8)")
    parser.add_argument("--gradient-cache", type=int, help="texts at once (64; tiny: 4)")
    parser.add_argument("--steps", type=int, help="timed (10; tiny: 2)")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--device", help="cuda or cpu; by default what is there")
    parser.add_argument("--runs", nargs="+", help="systems whose runs are measured, at base size")
    options = parser.parse_args(arguments)
    small = options.size == "tiny"
    options.batch = options.batch or (8 if small else 256)
    options.gradient_cache = options.gradient_cache or (4 if small else 64)
    options.steps = options.steps or (2 if small else 10)
    for line in run_lines(options.runs, "base") if options.runs else lines(options):
        print(line, flush=True)


if __name__ == "__main__":
    main()
