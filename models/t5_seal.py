"""T5-SEAL: generates n-grams of the corpus and adds up their evidence (gr_as_mvdr §6.2, App. D)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.backbones import check_length
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.decoding.beam_search import BeamSearchResult, score_tokens
from gr_mvdr.decoding.evidence import score_documents, share_scores
from gr_mvdr.decoding.ngram_index import NgramIndex
from gr_mvdr.decoding.trie import Trie
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.heads.plain import Vocabulary
from gr_mvdr.identifiers.scheme import check_at_least, check_choice, hash_collection
from gr_mvdr.parts import part
from gr_mvdr.progress import track
from gr_mvdr.ranking_losses import shared_ngrams
from models.base import Share, Table
from models.constrained_search import ConstrainedSearch, Scope, clear_index_folder

# A key: an n-gram of the index and its log-probability given the query.
Key = tuple[list[int], float]
# How the scores of a document's segments become the document's score.
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": Tensor.sum,
    "mean": Tensor.mean,
    "max": Tensor.max,
}
_DECODE_BATCH = 512  # segments decoded at once in reranking


@dataclass
class SealResult(BeamSearchResult):
    """What the search found, and full SEAL's further keys of each query."""

    further: list[list[Key]]


@dataclass(frozen=True)
class SealScope(Scope):
    """What one search can find; titles: those that can be keys, None = none."""

    titles: Trie | None = None


@part("model")
class T5SEAL(ConstrainedSearch):
    """The identifier is any n-gram of the document; the search is constrained to the corpus.

    The paper's form generates n-grams of the text alone. With `special_tokens` the text begins with
    the title, sources say whether a title or a part of the body is asked for, and titles are keys
    too; `query_ngrams` adds the query's own n-grams (facts: Full SEAL).
    """

    share_of, scores_need = "n-gram", "the n-gram counts of all documents"
    score_is = "mean log-probability of the document's windows, whatever the search generates"

    def __init__(
        self,
        backbone: dict[str, Any],
        query_length: int,
        document_length: int,
        key_length: int,
        beam_size: int,
        evidence: dict[str, Any],
        optimizer: dict[str, Any],
        label_smoothing: float = 0.0,
        head: dict[str, Any] | None = None,
        special_tokens: dict[str, list[int]] | None = None,
        query_ngrams: int = 0,
        ranking: dict[str, Any] | None = None,
    ):
        """
        Args:
            backbone: arguments of `load_encoder_decoder`.
            query_length: tokens kept of a query, those around it included, special tokens not.
            document_length: tokens kept of a document where it is encoded (NP decoding's table).
            key_length: longest generated n-gram, in tokens.
            beam_size: hypotheses a query.
            evidence: parameters of `score_documents`.
            optimizer, head, ranking: see `GenerativeSystem`.
            label_smoothing: of the training loss (0.1 in full SEAL).
            special_tokens: ids that ask for a part of the body and for a title, and that end a
                title, under "body", "title" and "title_end"; None or {} = the paper's form.
            query_ngrams: longest n-gram of the query that is a key; 0 = none, SEAL: 3.
        """
        check_at_least("model.beam_size", beam_size, 1)
        check_at_least("model.key_length", key_length, 1)
        check_at_least("model.query_ngrams", query_ngrams, 0)
        super().__init__(backbone, optimizer, head, ranking=ranking)
        self.save_hyperparameters()
        check_length(self.backbone, query_length=query_length, document_length=document_length)
        self.titles: Trie | None = None
        self.ended_titles: list[list[int]] = []
        self.textless: set[int] = set()  # documents

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """A head other than the plain one is made for the documents' tokens."""
        self._texts = documents["tokens"]
        texts = self._texts[:]
        self.textless = _without_tokens(texts)
        if not self.hparams.head:
            return
        sequences: list[list[int]] = [[] for _ in texts]
        for row in known:
            sequences[row] = texts[row][: self._kept]
        found = {self.template.stop}.union(*texts, *self.special_tokens.values())
        if self.special_tokens:
            found = found.union(*documents["title_tokens"])
        tokens = torch.tensor(sorted(found))
        self.set_head(Vocabulary(tokens), sequences, documents)

    @property
    def _kept(self) -> int:
        """Tokens of a document's own that a batch holds at most."""
        return self.hparams.document_length - len(self.template.read_document((), 0))

    @property
    def special_tokens(self) -> dict[str, list[int]]:
        """Token ids by name; {} in the paper's form."""
        return self.hparams.special_tokens or {}

    def prepare_query(self, tokens: Sequence[int], asked: str = "body") -> list[int]:
        """The query's first tokens, then what is asked for, with those around them."""
        found = super().prepare_query(tokens)
        return self.template.append(found, self.special_tokens.get(asked, []))

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) leak-free relevance: mean over windows of the mean token log-probability.

        The windows are `key_length` tokens long, the length of a key in search, do not overlap and
        do not look at the query. A document without tokens has no n-gram: −inf.
        """
        return super().score(batch).masked_fill(~self._text(self.forced(batch)).any(1), -torch.inf)

    def target_shares(self, batch: PairBatch) -> tuple[PairBatch, Tensor]:
        """The documents' tokens, each with its log-probability's weight in the two means."""
        batch = self.forced(batch)
        queries = self.encode(batch.query_ids, batch.query_mask)
        real = self._text(batch)
        ids = batch.document_ids.split(self.hparams.key_length, 1)
        masks = real.split(self.hparams.key_length, 1)
        windows = [
            self.token_log_probs(queries, batch.query_mask, i, m, batch.document_index)
            / m.sum(1, keepdim=True).clamp(min=1)
            for i, m in zip(ids, masks, strict=True)
        ]
        counts = torch.stack([mask.any(1) for mask in masks], 1).sum(1, keepdim=True)
        values = torch.cat(windows, 1) / counts.clamp(min=1)
        return replace(batch, document_mask=real), values

    def covers(self, document: int) -> bool:
        """Whether the document has an n-gram: one without text has none."""
        return document not in self.textless

    def forced(self, batch: PairBatch) -> PairBatch:
        """The documents' texts, ended as keys are; in full SEAL the queries ask for the body."""
        first, last = len(self.template.document), len(self.template.suffix)
        if first or self.template.suffix != (self.template.stop,):
            read = _rows(batch.document_ids, batch.document_mask)
            texts = [[*ids[first : len(ids) - last], self.template.stop] for ids in read]
            ids, mask = (x.to(self.device) for x in pad(texts))
            batch = replace(batch, document_ids=ids, document_mask=mask)
        if asked := self.special_tokens.get("body"):
            queries = _rows(batch.query_ids, batch.query_mask)
            asking = [self.template.append(query, asked) for query in queries]
            ids, mask = (x.to(self.device) for x in pad(asking))
            batch = replace(batch, query_ids=ids, query_mask=mask)
        return batch

    def shared_prefixes(self, tokens: Tensor, batch: PairBatch) -> Tensor:
        """N-grams of the positive's text, as far as a batch holds it, are no other document's."""
        rows = batch.document_index[: len(batch)].tolist()
        texts = [self._texts[row][: self._kept] for row in rows]
        return shared_ngrams(tokens, texts, self.template.stop)

    def _text(self, batch: PairBatch) -> Tensor:
        """(B, M) bool, the forced documents' tokens but for their ends, which are no n-gram's."""
        # The end of a text that was cut is no continuation that a search could generate.
        return batch.document_mask & (batch.document_ids != self.template.stop)

    def index(self, documents: Table, directory: str | Path | None = None) -> NgramIndex:
        """An n-gram index over the full, untruncated texts, and a trie of the titles as keys."""
        directory = clear_index_folder(directory, "titles", "ngrams")
        texts, titles = self._read(documents)
        if any(titles):
            Trie.build(titles).save(directory / "titles", hash_collection(documents["id"][:]))
        NgramIndex.build(texts).save(directory / "ngrams")
        return self._take(documents, titles, NgramIndex.load(directory / "ngrams"), directory)

    def open_index(self, documents: Table, directory: str | Path) -> NgramIndex:
        """Opens the n-grams and titles that `index` wrote; see `System.open_index`."""
        directory, (texts, titles) = Path(directory), self._read(documents)
        found = NgramIndex.load(directory / "ngrams")
        if not found.holds(texts):
            raise ValueError(
                f"{directory}: must be an index of these documents, was made of others or of other "
                "tokens of theirs"
            )
        return self._take(documents, titles, found, directory)

    def _take(
        self, documents: Table, titles: list[list[int]], ngrams: NgramIndex, directory: Path
    ) -> NgramIndex:
        trie = None
        if any(titles):
            trie = Trie.load(directory / "titles", hash_collection(documents["id"][:]))
        self.searcher, self.titles, self.ended_titles = ngrams, trie, titles
        self.document_ids = documents["id"][:]
        self.textless = _without_tokens(documents["tokens"][:])
        return ngrams

    def _read(self, documents: Table) -> tuple[list[list[int]], list[list[int]]]:
        """Each document's text as it is indexed, and its title with both ends; [] = no title."""
        texts, end = documents["tokens"][:], self.special_tokens.get("title_end")
        stop = self.template.stop  # before a text and a key there is nothing, not even BART's <s>
        if end is None:
            return [[*text, stop] for text in texts], []
        titles = [[*title, *end] if title else [] for title in documents["title_tokens"]]
        return (
            [[*title, *text, stop] for title, text in zip(titles, texts, strict=True)],
            [[*title, stop] if title else [] for title in titles],
        )

    def whole(self) -> SealScope:
        return SealScope(self.searcher, self.search_length, None, self.titles)

    def within(self, documents: frozenset[int]) -> SealScope:
        """The n-grams and the titles of these documents."""
        rows = enumerate(self.ended_titles)
        titles = [title if row in documents else [] for row, title in rows]
        trie = Trie.build(titles) if any(titles) else None
        constraint = self.searcher.within(documents)
        return SealScope(constraint, self.search_length, documents, trie)

    def search(
        self, queries: Sequence[Sequence[int]], scope: SealScope | None = None, **options: Any
    ) -> SealResult:
        """Beam search for n-grams; in full SEAL titles and the query's n-grams are added."""
        scope = scope or self.whole()
        found = super().search(queries, scope, **options)
        further: list[list[Key]] = [[] for _ in queries]
        if scope.titles is not None:
            further = self._title_keys(queries, scope.titles)
        if self.hparams.query_ngrams:
            for query, keys in zip(queries, further, strict=True):
                keys += self._query_keys(query)
        return SealResult(**vars(found), further=further)

    def _title_keys(self, queries: Sequence[Sequence[int]], titles: Trie) -> list[list[Key]]:
        """The most probable titles for each query, with their title end, as keys."""
        sources = [self.prepare_query(query, "title") for query in queries]
        found = self.beam(sources, titles, titles.depth)
        ended = [found.final.of(number) for number in range(len(sources))]
        stop = self.template.stop
        return [[(key[:-1], score) for key, score in keys if key[-1] == stop] for keys in ended]

    def _query_keys(self, query: Sequence[int]) -> list[Key]:
        """The query's own n-grams that occur in the corpus, with their log-probabilities."""
        grams = sorted(
            {
                tuple(query[start : start + length])
                for length in range(1, self.hparams.query_ngrams + 1)
                for start in range(len(query) - length + 1)
            }
        )
        low, high = self.searcher.intervals(grams)
        grams = [list(gram) for gram, count in zip(grams, high - low, strict=True) if count]
        if not grams:
            return []
        sources = [self.prepare_query(query)] * len(grams)
        ids, mask = (x.to(self.device) for x in pad(grams))
        step = self.decoding_step(*(x.to(self.device) for x in pad(sources)))
        return list(zip(grams, score_tokens(step, ids, mask).sum(1).tolist(), strict=True))

    @property
    def search_length(self) -> int:
        return self.hparams.key_length

    @property
    def window(self) -> int:
        """A document is aligned in windows as long as a key, those of `score`."""
        return self.hparams.key_length

    @property
    def _evidence(self) -> dict[str, Any]:
        return {"special_ids": self.template.special, **self.hparams.evidence}

    def documents_of(
        self, found: SealResult, number: int, scope: Scope | None = None
    ) -> dict[int, float]:
        """The candidates of every step are the keys, whose evidence is added up (SEAL)."""
        among = None if scope is None else scope.documents
        options = dict(document_ids=self.document_ids, among=among, **self._evidence)
        return score_documents(self.searcher, *_keys(found, number), **options)

    def shares_of(
        self, found: SealResult, number: int, documents: Sequence[int]
    ) -> dict[int, list[Share]]:
        """The n-grams and unigrams that counted for each document, with what they added."""
        keys = _keys(found, number)
        shares = share_scores(self.searcher, *keys, documents, **self._evidence)
        return {row: [Share(*part) for part in parts] for row, parts in shares.items()}

    def named_documents(self, tokens: Sequence[int]) -> np.ndarray:
        """The documents in which an n-gram occurs."""
        return self.searcher.documents(list(tokens))

    def gold_prefixes(self, document: int) -> set[tuple[int, ...]]:
        """Every n-gram of the document up to the length of a key."""
        tokens = self.searcher.sequence(document).tolist()
        # The end token alone, the last of them, names no document.
        return {
            tuple(tokens[start : start + length])
            for start in range(len(tokens) - 1)
            for length in range(1, self.hparams.key_length + 1)
        }

    # Reranking ------------------------------------------------------------------------------------

    @torch.inference_mode()
    def rerank(
        self,
        queries: Table,
        documents: Table,
        candidates: dict[str, Sequence[str]],
        segments: Callable[[str, dict], list[list[int]]] | None = None,
        pool: str = "mean",
    ) -> Ranking:
        """Pools log p(segment | query) over segments of each candidate (facts: reranking by GR).

        A candidate without segments, a document without text, is left out.

        Args:
            queries, documents, candidates: see `System.rerank`.
            segments: (query text, document row) → token lists of the document; None = the windows
                of `score`.
            pool: "sum", "mean" or "max" over the segments' mean token log-probabilities.
        """
        check_choice("rerank.pool", pool, POOLS)
        segments = segments or self._windows
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

    def _windows(self, query: str, document: dict) -> list[list[int]]:
        """The document's first tokens in windows of a key's length, whatever the query."""
        tokens, length = document["tokens"], self.hparams.key_length
        end = min(len(tokens), self._kept)
        return [tokens[start : min(start + length, end)] for start in range(0, end, length)]

    def segment_scores(
        self, query: Sequence[int], segments: list[list[int]], index: list[int]
    ) -> Tensor:
        """(S,) on the CPU: mean token log-probability of each sequence, for one query.

        Args:
            query: token ids; segments: S token lists; index: S document numbers.
        """
        ids, mask = (x.to(self.device) for x in pad([self.prepare_query(query)]))
        encoded = self.encode(ids, mask)
        scores = []
        for start in range(0, len(segments), _DECODE_BATCH):
            batch = slice(start, start + _DECODE_BATCH)
            ids, real = (x.to(self.device) for x in pad(segments[batch]))
            repeated = encoded.expand(len(ids), -1, -1), mask.expand(len(ids), -1)
            documents = torch.tensor(index[batch], device=self.device)
            scores.append(self.sequence_log_probs(*repeated, ids, real, documents).cpu())
        return torch.cat(scores) if scores else torch.empty(0)


def _rows(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """The real tokens of each row."""
    return [row[real].tolist() for row, real in zip(ids, mask, strict=True)]


def _keys(found: SealResult, number: int) -> tuple[list[Key], np.ndarray]:
    """A query's keys, and the log-probabilities of unigrams."""
    keys = {tuple(key): score for key, score in found.further[number]}
    keys |= {tuple(key): score for key, score in found.candidates.of(number)}
    return list(keys.items()), found.first_log_probs[number].cpu().numpy()


def _without_tokens(texts: Sequence[Sequence[int]]) -> set[int]:
    """The numbers of the documents that have none."""
    return {number for number, tokens in enumerate(texts) if not tokens}
