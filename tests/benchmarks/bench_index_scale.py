"""Benchmark of the token index's size: residual codes of simulated corpora, streamed, never held.

    python -m tests.benchmarks.bench_index_scale [DOCUMENTS …]

Every size in a process of its own. Documents have 100 tokens; words and topics follow Zipf's law,
and a token's vector is made of its word's, its neighbours' and its document's. Queries are pieces
of documents in vectors of their own; what exact search finds is computed while the stream passes.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, normalize

from gr_mvdr.alignment import MaxSim
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.codec import Storage
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.search import SearchOptions
from gr_mvdr.token_vectors import PackedTokens, TokenVectors

SIZES = (2_500,)  # of `make bench`
LENGTH, DIMENSION, WORDS, TOPICS, TOPIC_WORDS = 100, 128, 16_000, 2_000, 400
BATCH, QUERIES, QUERY_LENGTH, DEPTH = 500, 32, 12, 10
SEARCH = SearchOptions("gather", neighbours=2000, probes=64, refine=150, dtype="residual")
MOST_BYTES, MOST_MEMORY, LEAST_RECALL = 40, 4e9, 0.75  # a vector, of the process, at 32 bytes
COLBERT = Scoring(MaxSim())


class Corpus:
    """Documents by number; the same number gives the same documents."""

    def __init__(self, documents: int):
        self.documents, generator = documents, torch.Generator().manual_seed(0)
        self.words = normalize(torch.randn(WORDS, DIMENSION, generator=generator), dim=1)
        self.zipf = 1 / torch.arange(1, WORDS + 1).float()
        self.topics = torch.randint(WORDS, (TOPICS, TOPIC_WORDS), generator=generator)

    def ids(self, batch: int) -> Tensor:
        """(B, 100) word ids of a batch of documents, half of them of its topic."""
        generator, shape = torch.Generator().manual_seed(1 + batch), (BATCH, LENGTH)
        common = self.zipf.multinomial(BATCH * LENGTH, True, generator=generator)
        places = self.zipf[:TOPIC_WORDS].multinomial(BATCH * LENGTH, True, generator=generator)
        topics = torch.randint(TOPICS, (BATCH, 1), generator=generator)
        is_common = torch.rand(shape, generator=generator) < 0.5
        return torch.where(is_common, common.view(shape), self.topics[topics, places.view(shape)])

    def vectors(self, ids: Tensor, seed: int) -> Tensor:
        """(B, L, d) unit vectors of texts' tokens (B, L)."""
        words, generator = self.words[ids], torch.Generator().manual_seed(seed)
        near = avg_pool1d(words.transpose(1, 2), 5, 1, 2, count_include_pad=False).transpose(1, 2)
        noise = torch.randn(words.shape, generator=generator) * (0.3 / DIMENSION**0.5)
        return normalize(words + near + 0.7 * words.mean(1, keepdim=True) + noise, dim=2)

    def queries(self) -> Tensor:
        """(Q, N, d): each a piece of a document."""
        batches = torch.linspace(0, self.documents // BATCH - 1, QUERIES).long().tolist()
        pieces = [self.ids(b)[7 * n % BATCH, 20 : 20 + QUERY_LENGTH] for n, b in enumerate(batches)]
        return self.vectors(torch.stack(pieces), seed=10**9)


class Stream:
    """Encodes documents for an index, and computes exact search's scores on the way."""

    def __init__(self, corpus: Corpus):
        self.corpus, self.queries, self.seconds = corpus, corpus.queries(), 0.0
        # One tensor: small ones kept between large ones that are freed would hold the heap open.
        self.scores = torch.empty(corpus.documents, QUERIES)

    def __call__(self, names: Sequence[str]) -> Iterator[PackedTokens]:
        first, end = int(names[0]), int(names[-1]) + 1
        for batch in range(first // BATCH, -(-end // BATCH)):
            start = time.process_time()
            own = slice(max(first - batch * BATCH, 0), end - batch * BATCH)
            ids = self.corpus.ids(batch)
            vectors = self.corpus.vectors(ids, batch)[own]
            product = vectors.flatten(0, 1) @ self.queries.flatten(0, 1).T
            best = product.view(len(vectors), LENGTH, QUERIES, -1).amax(1)
            self.scores[batch * BATCH :][own] = best.sum(2)
            self.seconds += time.process_time() - start
            counts = torch.full((len(vectors),), LENGTH)
            yield PackedTokens(vectors.flatten(0, 1), counts, ids[own].flatten())


def search(index: TokenIndex, queries: Tensor) -> tuple[Tensor, float]:
    """(Q, 10) documents, and the median of a query's milliseconds."""
    mask, ids, found, times = torch.ones(QUERY_LENGTH) > 0, torch.zeros(QUERY_LENGTH), [], []
    for vectors in [queries[0], *queries]:  # the first warms up
        start = time.process_time()
        result = index.search([TokenVectors(vectors, mask, ids.long())], COLBERT, SEARCH)[0]
        times.append(1000 * (time.process_time() - start))
        found.append(result.documents[result.scores.topk(DEPTH).indices])
    return torch.stack(found[1:]), torch.tensor(times[1:]).median().item()


@torch.inference_mode()
def measure(documents: int) -> None:
    torch.set_num_threads(1)
    stream = Stream(Corpus(documents))
    with tempfile.TemporaryDirectory() as folder:
        start, names = time.process_time(), [str(number) for number in range(documents)]
        made_from = Storage("residual"), {"corpus": "simulated"}
        index = TokenIndex.build(Path(folder) / "index", names, stream, *made_from)
        built = time.process_time() - start - stream.seconds
        memory = _peak()
        start = time.process_time()
        index.proposer(SEARCH)
        opened = time.process_time() - start
        found, milliseconds = search(index, stream.queries)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*.*"))
        size /= index.store.n_tokens
    wanted = stream.scores.topk(DEPTH, dim=0).indices.T
    recall = (wanted.unsqueeze(2) == found.unsqueeze(1)).any(2).float().mean().item()
    print(
        f"{documents * LENGTH:,} vectors: built in {built:.0f} s of CPU and {memory / 1e9:.2f} GB, "
        f"{size:.1f} bytes a vector, lists in {opened:.1f} s, gather {milliseconds:.1f} ms, "
        f"recall@{DEPTH} of exact {recall:.3f}, peak {_peak() / 1e9:.2f} GB",
        flush=True,
    )
    assert size <= MOST_BYTES and memory <= MOST_MEMORY and recall >= LEAST_RECALL


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        return measure(int(sys.argv[2]))
    for documents in sys.argv[1:] or map(str, SIZES):
        module = [sys.executable, "-m", "tests.benchmarks.bench_index_scale"]
        subprocess.run([*module, "one", documents], check=True)


if __name__ == "__main__":
    main()
