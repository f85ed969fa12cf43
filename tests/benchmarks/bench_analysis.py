"""Benchmark of the analysis: 10,000 pairs from the model to every measurement's result.

And the same numbers by a loop over pairs and tokens, as analysis scripts are usually written.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from analysis.analyse import ask
from analysis.analysis import Subject, Texts
from analysis.exact_match import exact_match
from analysis.low_rank import low_rank
from analysis.store.alignment_store import AlignmentStore, StoreDescription
from analysis.store.alignment_writer import extract_alignments
from analysis.tokens import TokenKinds
from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import PairBatch, pad
from models.multi_vector import MultiVector

PAIRS, LOOPED, DOCUMENT_TOKENS, QUERY_TOKENS, VOCABULARY = 10_000, 100, 160, 24, 8_000
MOST_SECONDS, MOST_BYTES, LEAST_RATIO = 300, 2e9, 20
ROOT = Path(__file__).parents[2]


def system() -> MultiVector:
    """T5-ColBERT of the small backbone, with random weights."""
    shape = dict(vocab_size=VOCABULARY, d_model=128, d_kv=32, d_ff=512, num_layers=2, num_heads=4)
    return MultiVector(
        backbone=dict(name=None, dropout_rate=0.0, attention="eager", shape=shape),
        dimension=128,
        query_length=40,
        document_length=DOCUMENT_TOKENS,
        alignment={"_target_": "gr_mvdr.alignment.MaxSim"},
        loss={"_target_": "gr_mvdr.losses.InBatchCrossEntropy"},
        search={"mode": "exact"},
        optimizer={"learning_rate": 1e-3, "weight_decay": 0.0, "schedule": "constant"},
    ).eval()


def batches(count: int, size: int = 16) -> list[PairBatch]:
    generator = torch.Generator().manual_seed(0)

    def texts(shortest: int, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = torch.randint(shortest, longest + 1, (size,), generator=generator).tolist()
        return pad(
            [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
        )

    index = torch.zeros(size, dtype=torch.int64)
    queries, documents = (QUERY_TOKENS // 2, QUERY_TOKENS), (DOCUMENT_TOKENS, DOCUMENT_TOKENS)
    return [PairBatch(*texts(*queries), *texts(*documents), index) for _ in range(count // size)]


def measure() -> None:
    made, folder = batches(PAIRS), Path(tempfile.mkdtemp())
    names = [(f"q{number}", f"d{number}") for number in range(sum(map(len, made)))]
    description = StoreDescription("T5-ColBERT", "multi_vector", "synthetic")
    start = time.perf_counter()
    store = extract_alignments(system(), made, folder / "alignments", names, description)
    extracted = time.perf_counter() - start
    listed = OmegaConf.to_container(OmegaConf.load(ROOT / "conf/analysis/full.yaml").questions)
    stored = "exact_match", "low_rank", "shape", "framework", "gold", "contribution"
    ask(Subject(store=store, texts=texts()), {name: listed[name] for name in stored})
    seconds = time.perf_counter() - start
    used = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = sum(path.stat().st_size for path in store.directory.iterdir())
    print(
        f"{len(names):,} pairs of T5-ColBERT (small), documents of {DOCUMENT_TOKENS} tokens: "
        f"extracted in {extracted:.0f} s ({size / 1e6:.0f} MB), all analyses of them after "
        f"{seconds:.0f} s; peak memory {used / 1e9:.2f} GB"
    )
    assert seconds < MOST_SECONDS and used < MOST_BYTES


def texts() -> Texts:
    no = torch.zeros(VOCABULARY, dtype=torch.bool)
    return Texts(
        idf=torch.linspace(0, 10, VOCABULARY),
        kinds=TokenKinds(special=no, punctuation=no, stopword=no),
        strings=lambda ids: list(map(str, ids)),
    )


def by_tensors(store: AlignmentStore) -> list[list[float]]:
    """Exact match of every query token and the low rank of every pair, in padded batches."""
    values = []
    for explanation in store.explanations(64):
        pairs = explanation.layers[-1]
        masks = pairs.document_mask, pairs.query_mask
        aligned = Softmax("query_to_document")(pairs.similarity[:, 0], *masks)
        ids = pairs.document_ids, pairs.query_ids
        _, soft = exact_match(aligned, *ids, *masks, "query_to_document")
        errors = low_rank(pairs.alignment[:, 0], *masks)["equal_rows"].tolist()
        rows = zip(soft, pairs.query_mask, errors, strict=True)
        values += [[*row[real].tolist(), error] for row, real, error in rows]
    return values


def by_loops(store: AlignmentStore) -> list[list[float]]:
    """The same, pair by pair and token by token."""
    values = []
    for pair in map(store.__getitem__, range(len(store))):
        document, query = pair.document_ids[0].tolist(), pair.query_ids[0].tolist()
        matrix, aligned = pair.similarity[0, 0], pair.alignment[0, 0]
        found, error = [], 0.0
        for j, query_token in enumerate(query):
            weights = matrix[:, j].softmax(0)
            same = (i for i, token in enumerate(document) if token == query_token)
            found.append(sum(weights[i].item() for i in same))
            mean = sum(aligned[i, j].item() for i in range(len(document))) / len(document)
            error += sum((aligned[i, j].item() - mean) ** 2 for i in range(len(document)))
        values.append([*found, error**0.5])
    return values


def compare() -> None:
    made, folder = batches(LOOPED), Path(tempfile.mkdtemp()) / "alignments"
    names = [("q", "d")] * sum(map(len, made))
    description = StoreDescription("T5-ColBERT", "multi_vector", "synthetic")
    model = system()
    extraction, store = timed(extract_alignments, model, made, folder, names, description)
    list(store.explanations(64))  # both find the shard read
    (fast, ours), (slow, loops) = (timed(way, store) for way in (by_tensors, by_loops))
    for one, other in zip(ours, loops, strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-4, atol=1e-5)
    each = 1000 / len(names)
    print(
        f"exact match and low rank of {len(names)} pairs, the same numbers: {slow * each:.1f} ms a "
        f"pair by loops, {fast * each:.2f} ms by tensors: {slow / fast:.0f} times (the encoder and "
        f"the writing take {extraction * each:.1f} ms either way)"
    )
    assert slow / fast > LEAST_RATIO


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    found = function(*arguments)
    return time.perf_counter() - start, found


def main() -> None:
    # A process each: the peak of this one may lie behind.
    for part in ("measure", "compare"):
        subprocess.run([sys.executable, "-m", __spec__.name, part], check=True)


if __name__ == "__main__":
    {"measure": measure, "compare": compare}.get(*sys.argv[1:] or ["main"], main)()
