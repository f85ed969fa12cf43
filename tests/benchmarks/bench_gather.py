"""Benchmark of the token index: gather against exact search, on 900,000 tokens of 8,700 documents.

The vectors stand in for an encoder's: words and topics by Zipf's law, a token's vector is made of
its word's, its neighbours' and its document's, so that common words crowd the neighbourhoods as
they do in text. Queries are noisy pieces of documents.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from gr_mvdr.alignment import MaxSim
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.search import SearchOptions
from gr_mvdr.token_vectors import PackedTokens, TokenVectors

DOCUMENTS, MEAN_LENGTH, LONGEST, DIMENSION = 8_700, 104, 200, 128
WORDS, TOPICS, TOPIC_WORDS = 16_000, 300, 400
QUERIES, QUERY_LENGTHS, BATCH = 96, (5, 18), 32
SEARCH = SearchOptions("gather", neighbours=2000, probes=64, refine=150)
MIN_RECALL, MIN_SPEED_UP, ROUNDS = 0.99, 3, 3
COLBERT = Scoring(MaxSim())


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

    def query(self, document: Tensor) -> TokenVectors:
        """A piece of a document, with vectors as of a text of its own."""
        length = int(torch.randint(*QUERY_LENGTHS, (1,), generator=self.generator))
        length = min(length, len(document))
        start = int(torch.randint(len(document) - length + 1, (1,), generator=self.generator))
        ids = document[start : start + length]
        return TokenVectors(self.vectors(ids), torch.ones(length, dtype=torch.bool), ids)


def encode(texts: Texts, documents: list[Tensor]) -> Iterator[PackedTokens]:
    for start in range(0, len(documents), 100):
        batch = documents[start : start + 100]
        counts = torch.tensor([len(ids) for ids in batch])
        yield PackedTokens(torch.cat([texts.vectors(i) for i in batch]), counts, torch.cat(batch))


def exact(index: TokenIndex, queries: list[TokenVectors]) -> Tensor:
    """(Q, 10) document numbers, by the fastest exact search: many queries at once."""
    found = []
    for start in range(0, len(queries), BATCH):
        batch = queries[start : start + BATCH]
        parts = ([getattr(query, name) for query in batch] for name in ("vectors", "mask", "ids"))
        scores = index.exact(TokenVectors(*(pad_sequence(p, True) for p in parts)), COLBERT)
        found.append(scores.topk(10, dim=0).indices.T)
    return torch.cat(found)


def gather(index: TokenIndex, queries: list[TokenVectors]) -> Tensor:
    """(Q, 10) document numbers."""
    results = index.search(queries, COLBERT, SEARCH)
    return torch.stack([r.documents[r.scores.topk(10).indices] for r in results])


def timed(function, *arguments) -> tuple[Tensor, float]:
    start = time.perf_counter()
    found = function(*arguments)
    return found, 1000 * (time.perf_counter() - start) / QUERIES


@torch.inference_mode()
def main() -> None:
    texts = Texts()
    documents = sorted((texts.document() for _ in range(DOCUMENTS)), key=len)
    chosen = torch.randint(DOCUMENTS, (QUERIES,), generator=texts.generator)
    queries = [texts.query(documents[number]) for number in chosen.tolist()]
    with tempfile.TemporaryDirectory() as folder:
        names = [str(number) for number in range(DOCUMENTS)]
        index = TokenIndex.build(
            Path(folder) / "index",
            names,
            lambda ids: encode(texts, [documents[int(name)] for name in ids]),
        )
        start = time.perf_counter()
        index.proposer(SEARCH)
        built = time.perf_counter() - start
        exact(index, queries[:BATCH]), gather(index, queries[:BATCH])  # both are warm
        rounds = [
            (timed(exact, index, queries), timed(gather, index, queries)) for _ in range(ROUNDS)
        ]
        tokens, bytes_per_token = index.store.n_tokens, index.bytes_per_token
    (wanted, _), (found, _) = rounds[0]
    same = (wanted.unsqueeze(2) == found.unsqueeze(1)).any(2)
    recall = same.float().mean().item()
    slow, fast = (min(side[1] for side in sides) for sides in zip(*rounds, strict=True))
    print(
        f"{SEARCH} against exact, {tokens:,} tokens of {DOCUMENTS:,} documents, "
        f"{bytes_per_token:.0f} bytes a token, lists built in {built:.0f} s: "
        f"recall@10 {recall:.4f}, exact {slow:.1f} ms, gather {fast:.1f} ms a query, "
        f"{slow / fast:.1f}x"
    )
    assert recall >= MIN_RECALL and slow >= MIN_SPEED_UP * fast


if __name__ == "__main__":
    main()
