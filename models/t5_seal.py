"""T5-SEAL: generates n-grams of the corpus and adds up their evidence (gr_as_mvdr §6.2, App. D)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.backbones import check_length
from gr_mvdr.batch import PairBatch, pad, unpad
from gr_mvdr.decoding.beam_search import BeamSearchResult
from gr_mvdr.decoding.decoding_step import score_tokens
from gr_mvdr.decoding.evidence import score_documents, share_scores
from gr_mvdr.decoding.key_weights import Parameters, strip
from gr_mvdr.decoding.ngram_index import NgramIndex
from gr_mvdr.decoding.trie import Trie
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.files import remove_with
from gr_mvdr.heads.plain import Vocabulary
from gr_mvdr.identifiers.scheme import check_at_least, check_choice, hash_collection
from gr_mvdr.identifiers.views import BODY, Views, check_bonus
from gr_mvdr.options import part
from gr_mvdr.progress import track
from models.base import Share, Table
from models.constrained_search import ConstrainedSearch, Scope, clear_index_folder

# n-grams of the index, their log-probabilities given the query, and the views that wrote them.
Keys = dict[tuple[int, ...], tuple[float, str]]
_MOST = -1.0  # a log-probability with a bonus at most (MINDER)
# How the scores of a document's segments become the document's score.
POOLS: dict[str, Callable] = {"sum": Tensor.sum, "mean": Tensor.mean, "max": Tensor.max}
_DECODE_BATCH = 512  # segments decoded at once in reranking


@dataclass
class SealResult(BeamSearchResult):
    """What the search found in the body, and each query's keys besides its candidates."""

    further: list[Keys]


@dataclass(frozen=True)
class SealScope(Scope):
    """What one search can find; views: of each the texts that can be keys."""

    views: Mapping[str, Trie] = field(default_factory=dict)


@part("model")
class T5SEAL(ConstrainedSearch):
    """The identifier is any n-gram of the document; the search is constrained to the corpus.

    The paper's form generates n-grams of the text alone. With `special_tokens` a document has
    several views: its body, any n-gram of which is a key, and others whose texts are keys as a
    whole: its title (full SEAL), its pseudo-queries (MINDER, Li et al. 2023). All views lie in one
    index, a source says which is asked for, and the evidence of all is added up as if one search
    had found it. `query_ngrams` adds the query's own n-grams (facts: Full SEAL).
    """

    share_of, scores_need = "n-gram", "the n-gram counts of all documents"
    score_is = "mean log-probability of the document's windows, whatever the search generates"
    targets_are_ngrams = True

    def __init__(
        self,
        backbone: dict[str, Any],
        query_length: int,
        document_length: int,
        key_length: int,
        beam_size: int,
        evidence: Annotated[dict[str, Any], Parameters],
        optimizer: dict[str, Any],
        label_smoothing: float = 0.0,
        head: dict[str, Any] | None = None,
        special_tokens: dict[str, str | list[int]] | None = None,
        query_ngrams: int = 0,
        ranking: dict[str, Any] | None = None,
        bonus: dict[str, float] | None = None,
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
            special_tokens: ids that ask for a part of the body, under "body", for a text of another
                view, under its name, and that end it, NAME_end; None or {} = the paper's form.
            query_ngrams: longest n-gram of the query that is a key; 0 = none, SEAL: 3.
            bonus: what is added to the log-probabilities of a view's keys, which then are −1 at
                most: whole texts are improbable (MINDER: 14 for pseudo-queries). None = nothing.
        """
        check_at_least("model.beam_size", beam_size, 1)
        check_at_least("model.key_length", key_length, 1)
        check_at_least("model.query_ngrams", query_ngrams, 0)
        super().__init__(backbone, optimizer, head, ranking=ranking)
        self.save_hyperparameters()
        check_length(self.backbone, query_length=query_length, document_length=document_length)
        check_bonus(bonus or {}, self.special_tokens)
        self.views: Views | None = None
        self.tries: dict[str, Trie] = {}  # of each view besides the body
        self.textless: set[int] = set()  # documents

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """A head other than the plain one is made for the tokens of the known documents."""
        self._texts = documents["tokens"]
        texts = self._texts[:]
        self.textless = {number for number, tokens in enumerate(texts) if not tokens}
        if not self.hparams.head:
            return
        sequences: list[list[int]] = [[] for _ in texts]
        for row in known:
            sequences[row] = texts[row][: self._kept]
        indexed = list(self._read(documents).indexed(documents))
        of_known = (indexed[row] for row in known)
        found = sorted(set().union(*of_known, *self.special_tokens.values()))
        self.set_head(Vocabulary(torch.tensor(found)), sequences, documents)

    @property
    def _kept(self) -> int:
        """Tokens of a document's own that a batch holds at most."""
        return self.hparams.document_length - len(self.template.read_document((), 0))

    @property
    def special_tokens(self) -> dict[str, list[int]]:
        """Token ids by name; {} in the paper's form."""
        return self.hparams.special_tokens or {}

    def prepare_query(self, tokens: Sequence[int], asked: str = BODY) -> list[int]:
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
            read = unpad(batch.document_ids, batch.document_mask)
            texts = [[*ids[first : len(ids) - last], self.template.stop] for ids in read]
            ids, mask = (x.to(self.device) for x in pad(texts))
            batch = replace(batch, document_ids=ids, document_mask=mask)
        if asked := self.special_tokens.get(BODY):
            queries = unpad(batch.query_ids, batch.query_mask)
            asking = [self.template.append(query, asked) for query in queries]
            ids, mask = (x.to(self.device) for x in pad(asking))
            batch = replace(batch, query_ids=ids, query_mask=mask)
        return batch

    def target_source(self, document: int) -> list[int]:
        """The document's text as a batch cuts it."""
        return self._texts[document][: self._kept]

    def _text(self, batch: PairBatch) -> Tensor:
        """(B, M) bool, the forced documents' tokens but for their ends, which are no n-gram's."""
        # The end of a text that was cut is no continuation that a search could generate.
        return batch.document_mask & (batch.document_ids != self.template.stop)

    def index(self, documents: Table, directory: str | Path | None = None) -> NgramIndex:
        """An n-gram index over the full, untruncated texts, and of each other view a trie."""
        given, directory = directory, clear_index_folder(directory, "views", "ngrams")
        views = self._read(documents)
        views.save(directory / "views", hash_collection(documents["id"][:]))
        NgramIndex.build(views.indexed(documents), views.depth).save(directory / "ngrams")
        ngrams = NgramIndex.load(directory / "ngrams")
        if given is None:
            remove_with(ngrams, directory)
        return self._take(documents, views, ngrams, directory)

    def open_index(self, documents: Table, directory: str | Path) -> NgramIndex:
        """Opens the n-grams and tries that `index` wrote; see `System.open_index`."""
        directory, views = Path(directory), self._read(documents)
        found = NgramIndex.load(directory / "ngrams")
        if not found.holds(views.indexed(documents)):
            rule = "must be an index of these documents, was made of others or of other tokens"
            raise ValueError(f"{directory}: {rule} of theirs")
        return self._take(documents, views, found, directory)

    def _take(
        self, documents: Table, views: Views, ngrams: NgramIndex, directory: Path
    ) -> NgramIndex:
        self.document_ids = documents["id"][:]
        self.tries = views.load(directory / "views", hash_collection(self.document_ids))
        self.searcher, self.views = ngrams, views
        if self.hparams.head:
            self.head.extend(sorted(set().union(*views.indexed(documents))))
        self.textless = {n for n, tokens in enumerate(documents["tokens"][:]) if not tokens}
        return ngrams

    def _read(self, documents: Table) -> Views:
        return Views(documents, self.special_tokens, self.template.stop)

    def whole(self) -> SealScope:
        return SealScope(self.searcher, self.search_length, None, self.tries)

    def within(self, documents: frozenset[int]) -> SealScope:
        """The n-grams of these documents, and their texts of the other views."""
        constraint, tries = self.searcher.within(documents), self.views.tries(documents)
        return SealScope(constraint, self.search_length, documents, tries)

    def search(
        self, queries: Sequence[Sequence[int]], scope: SealScope | None = None, **options: Any
    ) -> SealResult:
        """Beam search for n-grams of the body, then for whole texts of each other view."""
        scope = scope or self.whole()
        found = super().search(queries, scope, **options)
        further: list[Keys] = [{} for _ in queries]
        for view, texts in scope.views.items():
            for keys, own in zip(further, self._text_keys(queries, view, texts), strict=True):
                keys.update(own)
        if self.hparams.query_ngrams:
            for query, keys in zip(queries, further, strict=True):
                keys.update(self._query_keys(query))
        return SealResult(**vars(found), further=further)

    def _text_keys(self, queries: Sequence[Sequence[int]], view: str, texts: Trie) -> list[Keys]:
        """The most probable whole texts of a view for each query, with what ends them, as keys."""
        found = self.beam([self.prepare_query(q, view) for q in queries], texts, texts.depth)
        more = (self.hparams.bonus or {}).get(view)
        return [
            {
                tuple(key[:-1]): (score if more is None else min(score + more, _MOST), view)
                for key, score in found.final.of(number)
                if key[-1] == self.template.stop
            }
            for number in range(len(queries))
        ]

    def _query_keys(self, query: Sequence[int]) -> Keys:
        """The query's own n-grams that occur in the corpus, with their log-probabilities."""
        grams = sorted(
            {
                tuple(query[start : start + length])
                for length in range(1, self.hparams.query_ngrams + 1)
                for start in range(len(query) - length + 1)
            }
        )
        low, high = self.searcher.intervals(grams)
        grams = [gram for gram, count in zip(grams, high - low, strict=True) if count]
        if not grams:
            return {}
        sources = [self.prepare_query(query)] * len(grams)
        ids, mask = (x.to(self.device) for x in pad(grams))
        step = self.decoding_step(*(x.to(self.device) for x in pad(sources)))
        scores = score_tokens(step, ids, mask).sum(1).tolist()
        return {gram: (score, BODY) for gram, score in zip(grams, scores, strict=True)}

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
        return score_documents(self.searcher, *_evidence_of(found, number), **options)

    def shares_of(
        self, found: SealResult, number: int, documents: Sequence[int]
    ) -> dict[int, list[Share]]:
        """The n-grams and unigrams that counted for each document, what they added, their view."""
        evidence, options = _evidence_of(found, number), self._evidence
        shares = share_scores(self.searcher, *evidence, documents, **options)
        # Of keys that differ in special tokens alone the most probable one counts. A unigram is
        # the body's: its log-probability is of the body's first token.
        ranked = sorted(_keys(found, number).items(), key=lambda key: key[1])
        view_of = {strip(key, options["special_ids"]): view for key, (_, view) in ranked}
        return {
            row: [Share(key, value, view_of.get(key, BODY)) for key, value in parts]
            for row, parts in shares.items()
        }

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
        tokens, length = document["tokens"][: self._kept], self.hparams.key_length
        return [tokens[start : start + length] for start in range(0, len(tokens), length)]

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


def _keys(found: SealResult, number: int) -> Keys:
    """A query's keys. One that several views wrote has the last one's probability: the body's."""
    own = {tuple(key): (score, BODY) for key, score in found.candidates.of(number)}
    return found.further[number] | own


def _evidence_of(found: SealResult, number: int) -> tuple[list, np.ndarray]:
    """A query's keys with their log-probabilities, and the log-probabilities of unigrams."""
    keys = [(key, score) for key, (score, _) in _keys(found, number).items()]
    return keys, found.first_log_probs[number].cpu().numpy()
