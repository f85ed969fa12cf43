"""Benchmark of gather against exact search on finished runs' own vectors.

    python -m tests.benchmarks.bench_search RUN [RUN …]

Without runs it has nothing to measure.
"""

import sys
import time

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from conf.composition import register_resolvers
from models.finished_run import FinishedRun

QUERIES, ROUNDS = 192, 3
GATHER = {"mode": "gather", "neighbours": 2000, "probes": 64, "refine": 150}


def milliseconds(model, encoded, **search) -> tuple:
    start = time.perf_counter()
    ranking = model.retrieve_encoded(encoded, 10, **search)
    return ranking, 1000 * (time.perf_counter() - start) / len(encoded)


@torch.inference_mode()
def measure(path: str) -> None:
    run = FinishedRun.read("RUN", path)
    data = instantiate(OmegaConf.create(run.config).data)
    model = run.load_model(data.documents, data.known_documents)
    index = model.open_index(data.documents, run.path / "index")
    queries = data.test_queries(data.test_splits[0])
    encoded = model.encoded_queries(queries.select(range(min(QUERIES, len(queries)))))
    milliseconds(model, encoded[:32], mode="exact"), milliseconds(model, encoded[:32], **GATHER)
    rounds = [
        (milliseconds(model, encoded, mode="exact"), milliseconds(model, encoded, **GATHER))
        for _ in range(ROUNDS)
    ]
    (wanted, _), (found, _) = rounds[0]
    shares = [len({*wanted.documents(q)} & {*found.documents(q)}) / 10 for q, _ in encoded]
    slow, fast = (min(side[1] for side in sides) for sides in zip(*rounds, strict=True))
    print(
        f"{run.config['system']} on {run.provenance['collection']}, {len(index):,} documents of "
        f"{index.store.n_tokens:,} tokens: recall@10 of exact {sum(shares) / len(shares):.4f}, "
        f"exact {slow:.1f} ms, gather {fast:.1f} ms a query, {slow / fast:.1f}x"
    )


def main() -> None:
    register_resolvers()
    for path in sys.argv[1:]:
        measure(path)


if __name__ == "__main__":
    main()
