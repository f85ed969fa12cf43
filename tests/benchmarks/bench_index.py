"""Benchmark of searches of token vectors, query by query: ours, Qdrant Edge's, xtr-warp-rs's.

    python -m tests.benchmarks.bench_index [RUN]

RUN is a finished multi-vector run, of which all indexed vectors, some test queries, and the queries
on which it tunes a search are read. Without it, the vectors stand in for an encoder's: words and
topics by Zipf's law, a token's vector is made of its word's, its neighbours' and its document's, so
that common words crowd the neighbourhoods as they do in text. Queries are noisy pieces of
documents. Building is writing: nothing is encoded. Every recall is of the exact search's best
documents, on queries that chose nothing.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from gr_mvdr.alignment import MaxSim
from gr_mvdr.relevance import Scoring
from gr_mvdr.texts import TextTable
from gr_mvdr.token_index.search import Documents, Query, Searcher, SearchOptions
from gr_mvdr.token_vectors import PackedTokens, TokenVectors
from models.retriever import Retriever
from tests.benchmarks.rows import ROOT, cpu_seconds, print_row, show
from tests.searches import make_search

SIZES, QUERIES, DEPTHS = (1_000, 8_700, 38_000), 64, (10, 100)  # documents
SHARES = (0.5, 0.1, 0.05, 0.01)  # of the documents that a filter keeps
COMPARED = 2_600  # documents for all searches
MEAN_LENGTH, LONGEST, DIMENSION = 104, 200, 128
WORDS, TOPICS, TOPIC_WORDS, QUERY_LENGTHS = 16_000, 300, 400, (5, 18)
COLBERT = Scoring(MaxSim())
PEERS = ROOT / ".peers" / "bin" / "python"
SEARCHES = {
    "exact": make_search(),
    **{
        f"gather, probes = {probes}{how}": make_search(
            "gather", dtype=dtype, neighbours=None, probes=probes, compared=compared, refine=refine
        )
        for how, dtype in (("", "float32"), (", codes", "codes"))
        for probes, compared, refine in ((32, 500, 100), (64, 700, 150), (128, 1000, 200))
    },
    "exact, codes": make_search(dtype="codes"),
    "Edge, exact": make_search("engine"),
    "Edge, exact, turbo8": make_search("engine", dtype="turbo8"),
    "Edge, proposed = 500": make_search("engine", proposed=500),
}
TUNED = make_search("gather", neighbours=None, probes=64, refine=100, recall=0.99)
Rankings = list[list[str]]


class Texts:
    """Random texts of topics, and the vectors of their tokens."""

    def __init__(self, seed: int = 0):
        self.generator = torch.Generator().manual_seed(seed)
        self.words = normalize(self.normal(WORDS, DIMENSION), dim=1)
        self.zipf = 1 / torch.arange(1, WORDS + 1).float()
        self.topics = torch.randint(WORDS, (TOPICS, TOPIC_WORDS), generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def document(self) -> Tensor:
        """(m,) word ids, half of them of a topic."""
        spread = torch.exp(0.5 * self.normal(1)).item()
        length = min(LONGEST, max(12, int(0.92 * MEAN_LENGTH * spread)))
        common = self.zipf.multinomial(length, replacement=True, generator=self.generator)
        topic = self.topics[torch.randint(TOPICS, (1,), generator=self.generator)][0]
        of_topic = topic[
            self.zipf[:TOPIC_WORDS].multinomial(length, True, generator=self.generator)
        ]
        return torch.where(self.normal(length) > 0, common, of_topic)

    def vectors(self, ids: Tensor) -> Tensor:
        """(m, d) unit vectors of a text's tokens."""
        words = self.words[ids]
        window = torch.nn.functional.avg_pool1d(words.T[None], 5, 1, 2, count_include_pad=False)
        noise = 0.3 * self.normal(len(ids), DIMENSION) / DIMENSION**0.5
        return normalize(words + window[0].T + 0.7 * words.mean(0) + noise, dim=1)

    def query(self, document: Tensor) -> Query:
        """A piece of a document, with vectors as of a text of its own."""
        length = int(torch.randint(*QUERY_LENGTHS, (1,), generator=self.generator))
        length = min(length, len(document))
        start = int(torch.randint(len(document) - length + 1, (1,), generator=self.generator))
        ids = document[start : start + length]
        mask = torch.ones(length, dtype=torch.bool)
        return Query("", TokenVectors(self.vectors(ids), mask, ids))


class Vectors:
    """Documents by id, and queries, as token vectors; more queries to choose an effort on."""

    def __init__(self, documents: int, run: str | None = None):
        if run is None:
            texts, self.documents = Texts(), {}
            words = [texts.document() for _ in range(documents)]
            for number, ids in enumerate(words):
                tokens = TokenVectors(texts.vectors(ids), torch.ones_like(ids) > 0, ids)
                self.documents[f"d{number}"] = tokens
            asked = [texts.query(words[5 * n % documents]) for n in range(3 * QUERIES)]
            self.queries, self.sample = asked[:QUERIES], asked[QUERIES:]
            return
        retriever = Retriever.load(run, "cpu", trust=True)
        system, data = retriever.system, retriever.data
        names = data.documents["id"][:]
        held = (system.searcher.vectors([name]) for name in names)
        self.documents = {name: one.unpad(0) for name, one in zip(names, held, strict=True)}
        queries = data.evaluation.test_queries(data.evaluation.test_splits[0])
        encoded = system.encoded_queries(queries.select(range(min(QUERIES, len(queries)))))
        sample = system.encoded_queries(data.evaluation.tuning_queries().select(range(2 * QUERIES)))
        self.queries, self.sample = encoded, sample

    @property
    def tokens(self) -> int:
        return sum(map(len, self.documents.values()))

    def encode(self, names: Sequence[str]) -> Iterator[PackedTokens]:
        for name in names:
            yield self.documents[name][None].pack()


def build(vectors: Vectors, options: SearchOptions, folder: Path) -> tuple[float, Searcher]:
    """Builds an index, and tunes its search: seconds, and the index."""
    names, start, searcher = list(vectors.documents), cpu_seconds(), options.searcher()
    made_from = {"dimension": vectors.queries[0].vectors.vectors.shape[1]}
    table, lengths = TextTable({"id": names, "text": [""] * len(names)}), [1] * len(names)
    searcher.build(Documents(table, vectors.encode, lengths, made_from), folder)
    if options.recall:
        sample = [query._replace(id=str(n)) for n, query in enumerate(vectors.sample)]
        searcher.tune(sample, COLBERT, max(DEPTHS))
    return cpu_seconds() - start, searcher


def search(
    searcher: Searcher, queries: Sequence[Query], among: Sequence[str] | None = None
) -> tuple[float, Rankings]:
    """Searches the whole index, or some documents: seconds a query, and rankings."""

    def one(query: Query) -> list[str]:
        how = None if among is None else searcher.narrowed(searcher.options, among)
        return searcher.search([query], COLBERT, max(DEPTHS), how, among).documents(query.id)

    one(queries[0]), one(queries[1])
    start = cpu_seconds()
    rankings = [one(query) for query in queries]
    return (cpu_seconds() - start) / len(rankings), rankings


def measure(
    vectors: Vectors, options: SearchOptions, folder: Path
) -> tuple[float, float, Rankings]:
    """Builds an index and searches it: seconds of the build, seconds a query, and rankings."""
    built, searcher = build(vectors, options, folder)
    return built, *search(searcher, vectors.queries)


def compare_filters(vectors: Vectors) -> None:
    """Prints a row for the tuned search of all documents and of random shares of them."""
    with tempfile.TemporaryDirectory() as folder:
        _, exact = build(vectors, make_search(), Path(folder) / "exact")
        _, tuned = build(vectors, TUNED, Path(folder) / "tuned")
        names, order = list(vectors.documents), np.random.default_rng(0).permutation
        base, _ = search(tuned, vectors.queries)
        for share in SHARES:
            count = max(max(DEPTHS), round(share * len(names)))
            kept = [names[number] for number in order(len(names))[:count]]
            (_, expected), (seconds, found) = (
                search(one, vectors.queries, kept) for one in (exact, tuned)
            )
            how = "exact" if tuned.narrowed(tuned.options, kept).proposer is None else "gather"
            work = f"{share:.0%} of {len(names):,} documents kept, {how}: recall"
            ours = show(seconds), f"all: {show(base)}", seconds / base
            print_row(f"{work} {recalls(expected, found)}", *ours)


def recalls(exact: Rankings, found: Rankings) -> str:
    """Recall at every depth, as text."""
    texts = []
    for k in DEPTHS:
        pairs = zip(exact, found, strict=True)
        texts.append(f"@{k} {np.mean([len({*a[:k]} & {*b[:k]}) / k for a, b in pairs]):.3f}")
    return ", ".join(texts)


def describe(name: str, vectors: Vectors, exact: Rankings, found: Rankings, built: float) -> str:
    recall = recalls(exact, found)
    return f"{name}, {vectors.tokens:,} vectors: recall {recall}; built in {show(built)}"


def compare_all(vectors: Vectors) -> None:
    """Prints a row for every search, and for xtr-warp-rs where `make bench` installed it."""
    exact, base = [], 0.0
    for name, options in SEARCHES.items():
        with tempfile.TemporaryDirectory() as folder:
            built, seconds, rankings = measure(vectors, options, Path(folder) / "index")
        exact, base = (exact, base) if exact else (rankings, seconds)
        work = describe(name, vectors, exact, rankings, built)
        print_row(work, show(seconds), f"exact: {show(base)}", seconds / base)
    if not PEERS.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        np.save(
            f"{folder}/documents.npy", torch.cat([d.vectors for d in vectors.documents.values()])
        )
        np.save(f"{folder}/queries.npy", torch.cat([q.vectors.vectors for q in vectors.queries]))
        lengths = [
            [*map(len, vectors.documents.values())],
            [len(q.vectors) for q in vectors.queries],
        ]
        Path(folder, "lengths.json").write_text(json.dumps(lengths))
        command = [str(PEERS), str(Path(__file__).with_name("peer_xtr_warp.py")), folder]
        alone = {**os.environ, "RAYON_NUM_THREADS": "1"}
        result = subprocess.run(command, env=alone, stdout=subprocess.PIPE, check=True)
    names = list(vectors.documents)
    for name, built, seconds, numbers in json.loads(result.stdout):
        found = [[names[number] for number in own] for own in numbers]
        work = describe(f"xtr-warp-rs, {name}", vectors, exact, found, built)
        print_row(work, "", show(seconds))


def main(run: str | None = None) -> None:
    torch.set_num_threads(1)
    if run:
        compare_filters(Vectors(0, run))
    compare_all(Vectors(COMPARED, run))
    for documents in () if run else SIZES:
        vectors, rows = Vectors(documents), []
        for options in (make_search(), TUNED):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(vectors, options, Path(folder) / "index"))
        (_, base, exact), (built, seconds, found) = rows
        work = describe("gather, recall=0.99", vectors, exact, found, built)
        print_row(work, show(seconds), f"exact: {show(base)}", seconds / base)
        compare_filters(vectors)


if __name__ == "__main__":
    main(*sys.argv[1:])
