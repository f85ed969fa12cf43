"""Several views of a document in T5-SEAL: full SEAL's titles, MINDER's pseudo-queries.

A view is a name: the special token NAME asks for it in a source, NAME_end ends each of its texts,
and a table of documents holds them as `NAME_tokens`. The body is the text, any n-gram of which
names the document (`models.t5_seal`); a text of another view names it as a whole. All views lie in
one index, and the evidence of all is added up as if one search had generated it (Bevilacqua et al.
2022; Li et al. 2023; facts: Full SEAL).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from gr_mvdr.batch import PairBatch, pad, unpad
from gr_mvdr.decoding.beam_search import BeamSearchResult
from gr_mvdr.decoding.decoding_step import score_tokens
from gr_mvdr.decoding.evidence import strip
from gr_mvdr.decoding.names import NgramNames
from gr_mvdr.decoding.ngram_index import DEEPEST, DEPTH, NgramIndex
from gr_mvdr.decoding.trie import Trie
from gr_mvdr.options import Count, NonNegative, check_choice, part
from gr_mvdr.template import Ids
from gr_mvdr.texts import BODY, find_views, read_view
from models.base import Table
from models.constrained_search import ConstrainedSearch
from models.t5_seal import T5SEAL

_MOST = -1.0  # the greatest log-probability of a key with a bonus (MINDER)


@part("model")
class MultiViewSEAL(T5SEAL):
    """T5-SEAL whose documents have further views, and whose query's own n-grams may be keys."""

    def __init__(
        self,
        special_tokens: dict | None = None,
        query_ngrams: Count = 0,
        bonus: dict[str, NonNegative] | None = None,
        **options: Any,
    ):
        """
        Args:
            special_tokens: ids by name: "body" asks for a part of the body, NAME for a text of that
                view, which NAME_end ends.
            query_ngrams: the longest n-gram of the query that is a key; 0 = none, SEAL: 3.
            bonus: view → what is added to the log-probabilities of its keys, which then are −1 at
                most: whole texts are improbable (MINDER: 14 for pseudo-queries).
            options: of `T5SEAL`.

        Raises:
            ValueError: a view's name is not a word, or a bonus names an unknown view.
        """
        super().__init__(**options)
        self.save_hyperparameters()
        self.special_tokens = special_tokens or {}
        views = find_views(self.special_tokens)
        for view in bonus or {}:
            check_choice("model.bonus", view, views)

    def prepare_query(self, tokens: Sequence[int], asked: str = BODY) -> list[int]:
        """The query's first tokens, then the special tokens that ask for a view."""
        read = super().prepare_query(tokens)
        return self.template.append(read, self.special_tokens.get(asked, []))

    def forced(self, batch: PairBatch) -> PairBatch:
        """The documents' texts, ended as keys are; the queries ask for the body."""
        batch = super().forced(batch)
        if asked := self.special_tokens.get(BODY):
            queries = unpad(batch.query_ids, batch.query_mask)
            asking = [self.template.append(query, asked) for query in queries]
            ids, mask = (x.to(self.device) for x in pad(asking))
            batch = replace(batch, query_ids=ids, query_mask=mask)
        return batch

    def indexed_tokens(self, documents: Table) -> Iterator[list[int]]:
        """Of each document all its views' texts, then its body and the end.

        One index holds all views, as MINDER's does: the keys of all views are weighed by one
        corpus, and what one view's keys have covered counts less for another's.
        """
        texts = self._read(documents).texts.values()
        for number, body in enumerate(super().indexed_tokens(documents)):
            own = chain.from_iterable(view[number] for view in texts)
            yield [*chain.from_iterable(text[:-1] for text in own), *body]

    def index(self, documents: Table, directory: str | Path | None = None) -> NgramIndex:
        """An n-gram index over all views."""
        return super().index(documents, directory, self._read(documents).depth)

    def _search_in(self, documents: Table, ngrams: NgramIndex) -> None:
        super()._search_in(documents, ngrams)
        views, names = self._read(documents), self.searcher.names
        self.searcher = ViewSearch(self, ViewNames(**vars(names), views=views, tries=views.tries()))

    def _read(self, documents: Table) -> "Views":
        return Views(documents, self.special_tokens, self.template.stop)


class Views:
    """The texts of documents in all views besides the body.

    Attributes:
        texts: view → of each document its texts as they are generated, with their end tokens. A
            view without any text is left out, and so is a text of more tokens than an n-gram index
            is deep.
    """

    def __init__(self, documents: Table, special_tokens: Mapping[str, list[int]], stop: int):
        """
        Args:
            documents: one that lacks a view's column has no texts of it.
            special_tokens: token ids by name; stop: ends every generated sequence.
        """
        self.texts: dict[str, list[list[list[int]]]] = {}
        for view in find_views(special_tokens):
            end, column = special_tokens[f"{view}_end"], _column(documents, f"{view}_tokens")
            most = DEEPEST - len(end)
            ended = [
                [[*text, *end, stop] for text in read_view(own) if len(text) <= most]
                for own in column
            ]
            if any(ended):
                self.texts[view] = ended

    @property
    def depth(self) -> int:
        """The depth of an n-gram index that counts every text as a key."""
        texts = chain.from_iterable(chain.from_iterable(self.texts.values()))
        return max([DEPTH, *(len(text) - 1 for text in texts)])

    def tries(self, documents: Iterable[int] | None = None) -> dict[str, Trie]:
        """Of each view a trie of its texts, of all documents or of those of these numbers."""
        tries = {}
        for view, texts in self.texts.items():
            chosen = texts if documents is None else [texts[number] for number in documents]
            if any(chosen):
                tries[view] = Trie.build(list(chain.from_iterable(chosen)))
        return tries


def _column(documents: Table, name: str) -> Sequence:
    """A column of a table; [] where the table lacks it."""
    try:
        return documents[name]
    except KeyError:  # documents from elsewhere, such as a person's
        return []


@dataclass
class ViewResult(BeamSearchResult):
    """A search of the body, and each query's keys besides its candidates.

    further: of each query key → log-probability and the view that it is of.
    """

    further: list[dict[Ids, tuple[float, str]]]


@dataclass(frozen=True)
class ViewNames(NgramNames):
    """n-grams of the body, and whole texts of other views.

    Attributes:
        views: of all documents; tries: of each view the texts that can be generated.
    """

    views: Views | None = None
    tries: Mapping[str, Trie] = field(default_factory=dict)

    def within(self, documents: frozenset[int]) -> "ViewNames":
        return replace(super().within(documents), tries=self.views.tries(documents))

    def keys(self, result: ViewResult, query: int) -> dict[Ids, float]:
        return {key: score for key, (score, _) in self._written(result, query).items()}

    def _written(self, result: ViewResult, query: int) -> dict[Ids, tuple[float, str]]:
        """Keys with their views. A key of several views has the body's probability."""
        own = {key: (score, BODY) for key, score in super().keys(result, query).items()}
        return result.further[query] | own

    def shares(
        self, result: ViewResult, query: int, documents: Sequence[int]
    ) -> dict[int, list[tuple]]:
        """Each part with its view; a unigram is the body's."""
        # Of keys that differ in special tokens alone the most probable one counts.
        ranked = sorted(self._written(result, query).items(), key=lambda key: key[1])
        view_of = {strip(key, self.evidence["special_ids"]): view for key, (_, view) in ranked}
        shares = super().shares(result, query, documents)
        return {
            document: [(key, value, view_of.get(key, BODY)) for key, value in parts]
            for document, parts in shares.items()
        }


class ViewSearch(ConstrainedSearch):
    """Beam search for n-grams of the body, then for whole texts of each other view."""

    def search(
        self,
        queries: Sequence[Sequence[int]],
        names: ViewNames | None = None,
        **options: Any,
    ) -> ViewResult:
        names = names or self.names
        result = super().search(queries, names, **options)
        further: list[dict] = [{} for _ in queries]
        for view, texts in names.tries.items():
            for keys, own in zip(further, self._text_keys(queries, view, texts), strict=True):
                keys.update(own)
        if self.system.hparams.query_ngrams:
            for query, keys in zip(queries, further, strict=True):
                keys.update(self._query_keys(query))
        return ViewResult(**vars(result), further=further)

    def _text_keys(
        self, queries: Sequence[Sequence[int]], view: str, texts: Trie
    ) -> list[dict[Ids, tuple[float, str]]]:
        """The most probable whole texts of a view for each query, with their end, as keys."""
        sources = [self.system.prepare_query(query, view) for query in queries]
        result = self.beam(sources, texts, texts.depth)
        more = (self.system.hparams.bonus or {}).get(view)
        return [
            {
                tuple(key[:-1]): (score if more is None else min(score + more, _MOST), view)
                for key, score in result.final.of(number)
                if key[-1] == self.system.template.stop
            }
            for number in range(len(queries))
        ]

    def _query_keys(self, query: Sequence[int]) -> dict[Ids, tuple[float, str]]:
        """The query's own n-grams that occur in the corpus, with their log-probabilities."""
        system = self.system
        grams = sorted(
            {
                tuple(query[start : start + length])
                for length in range(1, system.hparams.query_ngrams + 1)
                for start in range(len(query) - length + 1)
            }
        )
        low, high = self.names.corpus.intervals(grams)
        grams = [gram for gram, count in zip(grams, high - low, strict=True) if count]
        if not grams:
            return {}
        sources = [system.prepare_query(query)] * len(grams)
        ids, mask = (x.to(system.device) for x in pad(grams))
        step = system.decoding_step(*(x.to(system.device) for x in pad(sources)))
        scores = score_tokens(step, ids, mask).sum(1).tolist()
        return {gram: (score, BODY) for gram, score in zip(grams, scores, strict=True)}
