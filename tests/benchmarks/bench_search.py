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
from gr_mvdr.evaluation.ranking import recall_of_exact
from models.finished_run import FinishedRun

QUERIES, ROUNDS = 192, 3
GATHER, DEPTHS = {"mode": "gather"}, (10, 100)  # at the default recall


def milliseconds(model, encoded, depth, **search) -> tuple:
    start = time.process_time()
    ranking = model.retrieve_encoded(encoded, depth, **search)
    return ranking, 1000 * (time.process_time() - start) / len(encoded)


@torch.inference_mode()
def measure(path: str) -> None:
    run = FinishedRun.read("RUN", path)
    data = instantiate(OmegaConf.create(run.config).data)
    model = run.load_model(data.documents, data.known_documents)
    index = model.open_index(data.documents, run.path / "index")
    queries = data.test_queries(data.test_splits[0])
    encoded = model.encoded_queries(queries.select(range(min(QUERIES, len(queries)))))
    sample = data.queries(data.train_split).select(range(64))
    index.keep_sample([query for _, query in model.encoded_queries(sample)])
    for depth in DEPTHS:
        compare(run, model, encoded, depth)


def compare(run: FinishedRun, model, encoded, depth: int) -> None:
    milliseconds(model, encoded[:32], depth, **GATHER)  # it is planned, and warm
    rounds = [
        [milliseconds(model, encoded, depth, **how) for how in ({"mode": "exact"}, GATHER)]
        for _ in range(ROUNDS)
    ]
    (wanted, _), (found, _) = rounds[0]
    slow, fast = (min(side[1] for side in sides) for sides in zip(*rounds, strict=True))
    store = model.searcher.store
    print(
        f"{run.config['system']} on {run.provenance['collection']}, {len(store):,} documents of "
        f"{store.n_tokens:,} tokens: recall@{depth} of exact "
        f"{recall_of_exact(wanted, found, depth):.4f}, exact {slow:.1f} ms (of a batch), "
        f"gather {fast:.1f} ms a query, {slow / fast:.1f}x"
    )


def main() -> None:
    register_resolvers()
    for path in sys.argv[1:]:
        measure(path)


if __name__ == "__main__":
    main()
