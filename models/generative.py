"""What all generative systems can do: score, align, rerank, and search within a constraint."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gr_mvdr.batch import PairBatch, cut, pad
from gr_mvdr.decoding.beam_search import (
    Constraint,
    Observer,
    SearchResult,
    Step,
    beam_search,
)
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.files.writing import temporary_folder
from gr_mvdr.progress import track
from gr_mvdr.relevance import Explanation, Factors, PairAlignment
from gr_mvdr.tokenizers import EOS_ID
from models.base import Table
from models.cross_attention import (
    align_by_cross_attention,
    cross_attention_factors,
    explain_by_paths,
)
from models.decoding import DecodingStep
from models.encoder_decoder import EncoderDecoder

# How the scores of a document's segments become the document's score.
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda scores: scores.sum(),
    "mean": lambda scores: scores.mean(),
    "max": lambda scores: scores.max(),
}
# Sequences decoded at once in reranking.
_DECODE_BATCH = 512
# Queries decoded at once.
_QUERY_BATCH = 16
# Targets of a training batch, for the statement of the head's memory.
_TARGETS = 64


def index_folder(directory: str | Path | None, *parts: str) -> Path:
    """Where an index is kept, None = a temporary folder; parts that lie there are removed.

    A run that was interrupted after indexing indexes once more.
    """
    directory = Path(directory or temporary_folder("index"))
    for part in parts:
        shutil.rmtree(directory / part, ignore_errors=True)
    return directory


def check_least(**options: tuple[float, float]) -> None:
    """Raises ValueError if an option of a model, (value, least), is too small."""
    for name, (value, least) in options.items():
        if value < least:
            raise ValueError(f"model.{name}={value}: must be ≥ {least}")


class GenerativeSystem(EncoderDecoder):
    """Generates an identifier of the document from the query (gr_as_mvdr §4).

    A subclass says what the identifiers are: `targets` for training, `searcher`, `search_length`
    and `documents_of` for search.
    """

    paradigm = "generative"
    # What a search may generate, and the longest sequence; set by `index`.
    searcher: Constraint | None = None
    search_length: int
    # Target tokens that are teacher-forced at once in alignments; None = the whole sequence.
    window: int | None = None

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) mean log-probability of the target tokens."""
        batch = self.targets(batch)
        queries = self.encode(batch.query_ids, batch.query_mask)
        sides = batch.document_ids, batch.document_mask, batch.document_index
        return self.sequence_log_probs(queries, batch.query_mask, *sides)

    def align(self, batch: PairBatch, layer: int = -1) -> PairAlignment:
        """S and A of one decoder layer, the targets teacher-forced (Eq. 12–14)."""
        return align_by_cross_attention(self, self.forced(batch), self.score(batch), layer)

    def explain(self, batch: PairBatch) -> Explanation:
        """S and A of every decoder layer, and the logits as sums over all paths (§8)."""
        return explain_by_paths(self, self.forced(batch), self.score(batch))

    def factors(self, batch: PairBatch) -> Factors:
        """The vectors behind the last decoder layer's S and A."""
        return cross_attention_factors(self, self.forced(batch))

    def forced(self, batch: PairBatch) -> PairBatch:
        """The batch as its pairs are aligned: what is teacher-forced on its document side."""
        return self.targets(batch)

    @torch.inference_mode()
    def rerank(
        self,
        queries: Table,
        documents: Table,
        candidates: dict[str, Sequence[str]],
        segments: Callable[[str, dict], list[list[int]]],
        pool: str,
    ) -> Ranking:
        """Pools log p(segment | query) over segments of each candidate (facts: reranking by GR).

        A candidate without segments, a document without text, is left out.

        Args:
            queries, documents, candidates: see `System.rerank`.
            segments: (query text, document row) → token lists of the document.
            pool: "sum", "mean" or "max" over the segments' mean token log-probabilities.
        """
        if pool not in POOLS:
            raise ValueError(f"rerank.pool={pool}: must be one of {', '.join(POOLS)}")
        self.eval()
        row = {identifier: number for number, identifier in enumerate(documents["id"][:])}
        results = {}
        for query in track(queries, "reranking", total=len(queries)):
            chosen = candidates[query["id"]]
            rows = [row[identifier] for identifier in chosen]
            found = [segments(query["text"], documents[number]) for number in rows]
            index = [number for number, group in zip(rows, found, strict=True) for _ in group]
            scores = self.segment_scores(query["tokens"], [s for g in found for s in g], index)
            groups = scores.split([len(group) for group in found])
            results[query["id"]] = {
                identifier: POOLS[pool](group).item()
                for identifier, group in zip(chosen, groups, strict=True)
                if len(group)
            }
        return Ranking(results)

    def segment_scores(
        self, query: Sequence[int], segments: list[list[int]], index: list[int]
    ) -> Tensor:
        """(S,) on the CPU: mean token log-probability of each sequence, for one query.

        Args:
            query: token ids; segments: S token lists; index: S document numbers.
        """
        encoded, mask = self._encoded_query(query)
        scores = []
        for start in range(0, len(segments), _DECODE_BATCH):
            batch = slice(start, start + _DECODE_BATCH)
            ids, real = (x.to(self.device) for x in pad(segments[batch]))
            repeated = encoded.expand(len(ids), -1, -1), mask.expand(len(ids), -1)
            documents = torch.tensor(index[batch], device=self.device)
            scores.append(self.sequence_log_probs(*repeated, ids, real, documents).cpu())
        return torch.cat(scores) if scores else torch.empty(0)

    def _encoded_query(self, query: Sequence[int]) -> tuple[Tensor, Tensor]:
        ids, mask = (x.to(self.device) for x in pad([self.prepare_query(query)]))
        return self.encode(ids, mask), mask

    def prepare_query(self, tokens: Sequence[int]) -> list[int]:
        """The query's first tokens and the end token, as the encoder reads them."""
        return cut(tokens, self.hparams.query_length, EOS_ID)

    def statistics(self) -> dict[str, float]:
        """What the head and its logits for a batch of targets take of memory."""
        return {"cost/head_bytes": float(self.head.memory_bytes(_TARGETS, self.search_length))}

    # Search ---------------------------------------------------------------------------------

    @torch.inference_mode()
    def retrieve(self, queries: Table, k: int = 100) -> Ranking:
        """Constrained beam search, then from what was generated to documents."""
        assert self.searcher is not None, "index the documents first"
        self.eval()
        results = {}
        starts = range(0, len(queries), _QUERY_BATCH)
        for start in track(starts, "searching", total=len(starts)):
            rows = queries[start : start + _QUERY_BATCH]
            found = self.search(rows["tokens"])
            for number, query_id in enumerate(rows["id"]):
                scores = self.documents_of(found, number)
                results[query_id] = {self.document_ids[d]: s for d, s in scores.items()}
        return Ranking(results).top(k)

    def search(self, queries: Sequence[Sequence[int]], **options: Any) -> SearchResult:
        """Beam search for queries, given as tokens.

        Args:
            options: `observer` and `wrap` of `beam`.
        """
        sources = [self.prepare_query(query) for query in queries]
        return self.beam(sources, self.searcher, self.search_length, **options)

    def beam(
        self,
        sources: Sequence[Sequence[int]],
        constraint: Constraint,
        length: int,
        beam_size: int | None = None,
        observer: Observer | None = None,
        wrap: Callable[[Step], Step] = lambda step: step,
    ) -> SearchResult:
        """Beam search within a constraint; see `gr_mvdr.decoding.beam_search`.

        Args:
            sources: token ids as the encoder reads them; length: tokens a hypothesis at most.
            beam_size: None = the system's own.
            observer: sees every step; wrap: of the step function, to time it.
        """
        ids, mask = (x.to(self.device) for x in pad(sources))
        return beam_search(
            wrap(self.decoding_step(ids, mask)),
            constraint,
            batch_size=len(sources),
            beam_size=beam_size or self.hparams.beam_size,
            length=length,
            end_token=EOS_ID,
            device=self.device,
            observer=observer,
        )

    def decoding_step(self, query_ids: Tensor, query_mask: Tensor) -> DecodingStep:
        """The step function of the search for queries (B, N)."""
        return DecodingStep(self, query_ids, query_mask)

    def documents_of(self, found: SearchResult, number: int) -> dict[int, float]:
        """Document number → score, for query `number` of a search."""
        raise NotImplementedError

    def is_identifier(self, tokens: Sequence[int]) -> bool:
        """Whether a generated sequence names a document."""
        raise NotImplementedError

    def gold_prefixes(self, document: int) -> set[tuple[int, ...]]:
        """Every token sequence that a search may hold on its way to a document."""
        raise NotImplementedError

    def score_all(self, queries: Sequence[Sequence[int]]) -> Tensor | None:
        """(documents, queries) log p(identifier | query); None where it cannot be had."""
        return None
