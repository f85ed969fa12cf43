"""T5-SEAL: generates n-grams of the corpus and adds up their evidence (gr_as_mvdr §6.2, App. D)."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gr_mvdr.batch import PairBatch, cut, pad
from gr_mvdr.beam_search import beam_search
from gr_mvdr.evidence import score_documents
from gr_mvdr.ngram_index import NgramIndex
from gr_mvdr.progress import track
from gr_mvdr.ranking import Ranking
from gr_mvdr.tokenizers import EOS_ID
from models.base import Table
from models.generative import GenerativeSystem

# Queries decoded at once.
_QUERY_BATCH = 16


class T5SEAL(GenerativeSystem):
    """The identifier is any n-gram of the document; the search is constrained to the corpus."""

    def __init__(
        self,
        backbone: dict[str, Any],
        query_length: int,
        key_length: int,
        beam_size: int,
        evidence: dict[str, Any],
        optimizer: dict[str, Any],
        label_smoothing: float = 0.0,
    ):
        """
        Args:
            backbone: arguments of `load_encoder_decoder`.
            query_length: tokens kept of a query, the end token included.
            key_length: longest generated n-gram, in tokens.
            beam_size: hypotheses a query.
            evidence: parameters of `score_documents`.
            optimizer: see `System`.
            label_smoothing: of the training loss (0.1 in full SEAL).
        """
        super().__init__(backbone, optimizer)
        self.save_hyperparameters()
        self.searcher: NgramIndex | None = None
        self.document_ids: list[str] = []

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) leak-free relevance: mean over windows of the mean token log-probability.

        The windows are `key_length` tokens long, the length of a key in search, do not overlap and
        do not look at the query.
        """
        queries = self.encode(batch.query_ids, batch.query_mask)
        # The end of a text that was cut is no continuation that a search could generate.
        real = batch.document_mask & (batch.document_ids != EOS_ID)
        ids = batch.document_ids.split(self.hparams.key_length, 1)
        masks = real.split(self.hparams.key_length, 1)
        windows = [
            self.sequence_log_probs(queries, batch.query_mask, i, m)
            for i, m in zip(ids, masks, strict=True)
        ]
        counts = torch.stack([mask.any(1) for mask in masks], 1).sum(1)
        return torch.stack(windows, 1).sum(1) / counts.clamp(min=1)

    def index(self, documents: Table, directory: str | Path | None = None) -> NgramIndex:
        """An n-gram index over the full, untruncated texts."""
        directory = Path(directory or tempfile.mkdtemp(prefix="ngram-index-")) / "ngrams"
        texts = track(documents["tokens"], "indexing n-grams", total=len(documents))
        NgramIndex.build([*tokens, EOS_ID] for tokens in texts).save(directory)
        self.searcher = NgramIndex.load(directory)
        self.document_ids = documents["id"][:]
        return self.searcher

    @torch.inference_mode()
    def retrieve(self, queries: Table, k: int = 100) -> Ranking:
        """Constrained beam search; the candidates of every step are the keys (SEAL's evidence)."""
        assert self.searcher is not None, "index the documents first"
        self.eval()
        results = {}
        starts = range(0, len(queries), _QUERY_BATCH)
        for start in track(starts, "searching", total=len(starts)):
            rows = queries[start : start + _QUERY_BATCH]
            found = self._generate(rows["tokens"])
            for number, query_id in enumerate(rows["id"]):
                scores = score_documents(
                    self.searcher,
                    found.candidates.of(number),
                    found.first_log_probs[number].cpu().numpy(),
                    **self.hparams.evidence,
                )
                results[query_id] = {self.document_ids[d]: s for d, s in scores.items()}
        return Ranking(results).top(k)

    def _generate(self, queries: Sequence[Sequence[int]]):
        ids, mask = (x.to(self.device) for x in pad([self.prepare_query(q) for q in queries]))
        return beam_search(
            self.decoding_step(ids, mask),
            self.searcher,
            batch_size=len(queries),
            beam_size=self.hparams.beam_size,
            length=self.hparams.key_length,
            end_token=EOS_ID,
            device=self.device,
        )

    def prepare_query(self, tokens: Sequence[int]) -> list[int]:
        """The query's first tokens and the end token."""
        return cut(tokens, self.hparams.query_length, EOS_ID)
