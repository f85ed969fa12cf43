"""T5-SEAL: generates n-grams of the corpus and adds up their evidence (gr_as_mvdr §6.2, App. D)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from gr_mvdr.backbones import check_length
from gr_mvdr.batch import PairBatch, pad, unpad
from gr_mvdr.decoding.evidence import EvidenceOptions
from gr_mvdr.decoding.names import NgramNames
from gr_mvdr.decoding.ngram_index import DEPTH, NgramIndex
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.heads.plain import Vocabulary
from gr_mvdr.options import Rate, Rule, Size, checked, part
from gr_mvdr.texts import first_words
from models.base import Candidates, Table
from models.generative import DocumentGenerator
from models.training import OptimizerOptions

_SAVED = "ngrams.safetensors"
_DECODE_BATCH = 512  # segments decoded at once in reranking


@part("model")
class T5SEAL(DocumentGenerator):
    """Any n-gram of a document names it; a search generates only n-grams of the corpus."""

    share_of = "n-gram"
    score_is = "mean log-probability of the document's windows, whatever the search generates"
    targets_are_ngrams = True
    _texts: Sequence[Sequence[int]] | None = None

    def __init__(
        self,
        backbone: dict[str, Any],
        query_length: Size,
        document_length: Size,
        # An n-gram index counts n-grams of 255 tokens at most (`ngram_index.DEEPEST`).
        key_length: Annotated[int, Rule("≥ 1 and ≤ 255", lambda n: 1 <= n <= 255)],
        beam_size: Size,
        evidence: Annotated[dict[str, Any], EvidenceOptions],
        optimizer: OptimizerOptions,
        label_smoothing: Rate = 0.0,
        head: dict[str, Any] | None = None,
        ranking: dict[str, Any] | None = None,
    ):
        """
        Args:
            backbone: arguments of `load_backbone`.
            query_length: tokens kept of a query, special tokens included.
            document_length: tokens kept of a document in a batch or in NP decoding's table.
            key_length: the maximum length of a generated n-gram, in tokens.
            beam_size: hypotheses per query.
            evidence: parameters of `score_documents`.
            optimizer, head, ranking: see `GenerativeSystem`.
            label_smoothing: label smoothing of the training loss (0.1 in full SEAL).
        """
        super().__init__(backbone, optimizer, head, ranking=ranking)
        self.save_hyperparameters()
        check_length(self.backbone, query_length=query_length, document_length=document_length)
        # Documents are scored and aligned in windows of `key_length` tokens.
        self.search_length = self.window = key_length
        # Tokens of a document that a batch holds, special tokens not counted.
        self.kept = document_length - len(self.template.read_document((), 0))

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Makes the configured head, if any, for the tokens of the known documents."""
        self._texts = documents["tokens"]
        if not self.hparams.head:
            return
        rows, texts = set(known), self._texts[:]
        sequences = [t[: self.kept] if row in rows else [] for row, t in enumerate(texts)]
        tokens = sorted(set(chain(*self.indexed_tokens(documents.select(known)))))
        self.set_head(Vocabulary(torch.tensor(tokens)), sequences, documents)

    def indexed_tokens(self, documents: Table) -> Iterator[list[int]]:
        """Yields the tokens to index for each document: its whole text, then the end token."""
        # No token precedes a text or a key, not even BART's <s>.
        return ([*tokens, self.template.stop] for tokens in documents["tokens"][:])

    def covers(self, document: int) -> bool:
        """Returns whether the document has an n-gram; a document without text has none."""
        return self._texts is None or len(self._texts[document]) > 0

    # Scores of given documents --------------------------------------------------------------------

    def target_shares(self, batch: PairBatch) -> tuple[PairBatch, Tensor]:
        """Splits `score` into contributions of the documents' tokens: leak-free relevance.

        The score is the mean over windows of the mean token log-probability. Windows have
        `key_length` tokens, do not overlap and do not depend on the query.
        """
        batch = self.forced(batch)
        queries = self.encode(batch.query_ids, batch.query_mask)
        # A search could not generate the end token after a truncated text.
        real = batch.document_mask & (batch.document_ids != self.template.stop)
        ids, masks = batch.document_ids.split(self.window, 1), real.split(self.window, 1)
        windows = [
            self.token_log_probs(queries, batch.query_mask, i, m, batch.document_index)
            / m.sum(1, keepdim=True).clamp(min=1)
            for i, m in zip(ids, masks, strict=True)
        ]
        counts = torch.stack([mask.any(1) for mask in masks], 1).sum(1, keepdim=True)
        values = torch.cat(windows, 1) / counts.clamp(min=1)
        return replace(batch, document_mask=real), values

    def forced(self, batch: PairBatch) -> PairBatch:
        """Returns the batch with documents as texts and an end token, without a prefix."""
        first, last = len(self.template.document), len(self.template.suffix)
        if not first and self.template.suffix == (self.template.stop,):
            return batch
        read = unpad(batch.document_ids, batch.document_mask)
        texts = [[*ids[first : len(ids) - last], self.template.stop] for ids in read]
        ids, mask = (x.to(self.device) for x in pad(texts))
        return replace(batch, document_ids=ids, document_mask=mask)

    def target_source(self, document: int) -> list[int]:
        """Returns the document's text, truncated as in a batch."""
        return self._texts[document][: self.kept]

    # Search ---------------------------------------------------------------------------------------

    def index(
        self, documents: Table, directory: str | Path | None = None, depth: int = DEPTH
    ) -> None:
        """Builds an n-gram index over the full, untruncated texts.

        Args:
            documents, directory: see `System.index`.
            depth: n-grams up to this length, and all keys, are counted without a scan.
        """
        depth = max(depth, self.search_length)
        ngrams = NgramIndex.build(self.indexed_tokens(documents), depth)
        if directory is not None:
            file = Path(directory) / _SAVED
            ngrams.save(file)
            ngrams = NgramIndex.load(file)
        self._search_in(documents, ngrams)

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """Opens the n-grams that `index` wrote; see `System.open_index`."""
        ngrams = NgramIndex.load(Path(directory) / _SAVED)
        if not ngrams.holds(self.indexed_tokens(documents)):
            rule = "must be an index of these documents, their texts or tokens have changed"
            raise ValueError(f"{directory}: {rule}")
        self._search_in(documents, ngrams)

    def _search_in(self, documents: Table, ngrams: NgramIndex) -> None:
        if self.hparams.head:
            self.head.extend(sorted(set().union(*self.indexed_tokens(documents))))
        self.document_ids, self._texts = documents["id"][:], documents["tokens"]
        # The words of a prompt are not special in a document.
        own = replace(self.template, query=(), document=(), pair=(), suffix=(), target=())
        evidence = {"special_ids": own.special, **self.hparams.evidence}
        self.names = NgramNames(ngrams, ngrams, self.search_length, self.document_ids, evidence)

    # Reranking ------------------------------------------------------------------------------------

    @checked
    def _rerank(
        self,
        queries: Table,
        documents: Table,
        candidates: Candidates,
        segments: Callable[[str, dict], list[list[int]]] | None = None,
        pool: Literal["sum", "mean", "max"] = "mean",
    ) -> Ranking:
        """Pools log p(segment | query) over segments of each candidate.

        A candidate without segments, such as a document without text, is omitted.

        Args:
            queries, documents, candidates: see `System.rerank`.
            segments: maps (query text, document row) to token lists of the document; None = the
                windows of `score`. The text has at most `query_length` words, as many as the
                encoder could read.
            pool: pools the segments' mean token log-probabilities.
        """

        def windows(query: str, document: dict) -> list[list[int]]:
            tokens = document["tokens"][: self.kept]
            return [tokens[at : at + self.window] for at in range(0, len(tokens), self.window)]

        def score(query: dict[str, Any], rows: list[int]) -> Tensor:
            text = first_words(query["text"], self.hparams.query_length)
            groups = [(segments or windows)(text, documents[row]) for row in rows]
            index = [row for row, group in zip(rows, groups, strict=True) for _ in group]
            scores = self._score_segments(query["tokens"], list(chain(*groups)), index)
            none = scores.new_tensor(-torch.inf)
            parts = scores.split(list(map(len, groups)))
            return torch.stack([getattr(part, pool)() if len(part) else none for part in parts])

        return self.rerank_each(queries, documents, candidates, score)

    def _score_segments(
        self, query: Sequence[int], segments: Sequence[Sequence[int]], index: Sequence[int]
    ) -> Tensor:
        """Computes (S,) on the CPU, the mean token log-probability of each segment for one query.

        Args:
            query: token ids.
            segments: S token lists.
            index: S document numbers.
        """
        ids, mask = (x.to(self.device) for x in pad([self.prepare_query(query)]))
        encoded, scores = self.encode(ids, mask), [torch.empty(0)]
        for start in range(0, len(segments), _DECODE_BATCH):
            block = slice(start, start + _DECODE_BATCH)
            ids, real = (x.to(self.device) for x in pad(segments[block]))
            documents = torch.tensor(index[block], device=self.device)
            log_probs = self.token_log_probs(encoded, mask, ids, real, documents)
            scores.append((log_probs.sum(1) / real.sum(1).clamp(min=1)).cpu())
        return torch.cat(scores)
