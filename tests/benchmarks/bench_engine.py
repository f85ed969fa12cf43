"""Benchmark of `model.search.engine=edge` against our own index, on the same vectors.

`python -m tests.benchmarks.bench_engine RUN` takes every 4th document of a finished multi-vector
run with the vectors of its index, and its test queries that are judged on them; without RUN, the
vectors are `bench_gather`'s. Building is writing: nothing is encoded. Queries come one at a time.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import torch

from gr_mvdr.alignment import MaxSim
from gr_mvdr.evaluation.ranking import best_documents
from gr_mvdr.scoring import Scoring
from gr_mvdr.texts import TextTable
from gr_mvdr.token_index.engine import EngineIndex
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.search import SearchOptions
from gr_mvdr.token_vectors import PackedTokens, TokenVectors
from models.retriever import Retriever
from tests.benchmarks.bench_gather import Texts

EVERY, QUERIES, DEPTH = 4, 100, 100
DOCUMENTS = 1000  # without a run
SEARCHES = {
    "ours, exact": SearchOptions(),
    "ours, gather": SearchOptions("gather"),
    "edge, exact": SearchOptions(engine="edge"),
    "edge, exact, float16": SearchOptions(engine="edge", dtype="float16"),
    "edge, exact, turbo8": SearchOptions(engine="edge", dtype="turbo8"),
    "edge, mean, refine=500": SearchOptions("mean", refine=500, engine="edge"),
}
COLBERT = Scoring(MaxSim())


class Vectors:
    """Documents by id, and queries, as token vectors; some more queries to choose an effort on."""

    def __init__(self, run: str | None):
        if run is None:
            texts, self.documents = Texts(), {}
            words = [texts.document() for _ in range(DOCUMENTS)]
            for number, ids in enumerate(words):
                tokens = TokenVectors(texts.vectors(ids), torch.ones_like(ids) > 0, ids)
                self.documents[f"d{number}"] = tokens
            asked = [texts.query(words[5 * number % DOCUMENTS]) for number in range(2 * QUERIES)]
            self.queries, self.sample = asked[:QUERIES], asked[QUERIES:]
            return
        retriever = Retriever.load(run, "cpu", trust=True)
        system, data = retriever.system, retriever.data
        names = data.documents["id"][::EVERY]
        held = (system.searcher.vectors(system.searcher.numbers([name])) for name in names)
        self.documents = {name: one.unpad(0) for name, one in zip(names, held, strict=True)}
        queries = data.test_queries(data.test_splits[0])
        judged = data.judgements(data.test_splits[0], queries)
        rows = [row for row, q in enumerate(queries["id"]) if judged[q].keys() & {*names}]
        encoded = system.encoded_queries(queries.select(rows[:QUERIES]))
        sample = system.encoded_queries(data.planning_queries().select(range(64)))
        self.queries, self.sample = ([q for _, q in part] for part in (encoded, sample))

    def encode(self, names: Sequence[str]) -> Iterator[PackedTokens]:
        for name in names:
            yield self.documents[name][None].pack()


def measure(vectors: Vectors, options: SearchOptions, folder: Path) -> dict[str, object]:
    """Builds an index and searches it; returns costs, and each query's ranking."""
    names, start = list(vectors.documents), time.perf_counter()
    if options.engine:
        dimension = vectors.queries[0].vectors.shape[1]
        index, table = EngineIndex(options, folder), {"id": names, "text": [""] * len(names)}
        index.load({"dimension": dimension}, TextTable(table), vectors.encode)
    else:
        index = TokenIndex.build(folder, names, vectors.encode, options.storage)
        index.keep_sample(vectors.sample)
        options = index.planned(options, COLBERT, DEPTH)
        index.proposer(options)
    seconds = time.perf_counter() - start

    def search(query: TokenVectors) -> dict[str, float]:
        if options.engine:
            return index.search([("", query)], COLBERT, options, DEPTH)[""]
        ((numbers, scores),) = index.search([query], COLBERT, options)
        return best_documents([names[n] for n in numbers.tolist()], scores.numpy(), DEPTH)

    rankings, times = [search(query) for query in vectors.queries[:2]], []
    for query in vectors.queries:
        start = time.perf_counter()
        rankings.append(search(query))
        times.append(1000 * (time.perf_counter() - start))
    size = sum(512 * file.stat().st_blocks for file in folder.rglob("*") if file.is_file())
    tokens = sum(map(len, vectors.documents.values()))
    costs = {"build s": seconds, "MB": size / 1e6, "bytes a vector": size / tokens}
    return costs | {"ms": median(times), "rankings": rankings[2:]}


def main(run: str | None = None) -> None:
    vectors, exact = Vectors(run), []
    for name, options in SEARCHES.items():
        with tempfile.TemporaryDirectory() as folder:
            row = measure(vectors, options, Path(folder) / "index")
        rankings = row.pop("rankings")
        exact = exact or rankings
        for k in (10, DEPTH):
            pairs = zip(exact, rankings, strict=True)
            shares = [len({*list(a)[:k]} & {*list(b)[:k]}) / k for a, b in pairs]
            row[f"recall@{k}"] = sum(shares) / len(shares)
        print(f"{name:24}", *(f"{key} {value:.4g}" for key, value in row.items()), sep="  ")
        if name == "edge, exact":
            worst = max(
                abs(score - found[name])
                for own, found in zip(exact, rankings, strict=True)
                for name, score in own.items()
                if name in found
            )
            print(f"largest difference of a score: {worst:.1e}")
            assert worst < 1e-5 and row["recall@10"] > 0.999


if __name__ == "__main__":
    main(*sys.argv[1:])
