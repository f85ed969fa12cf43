"""Several views of a document in T5-SEAL: full SEAL's titles, MINDER's pseudo-queries.

A view has a name. The special token NAME in a source asks for the view, NAME_end ends each of its
texts, and a table of documents holds the texts as `NAME_tokens`. The body is the document's text,
any n-gram of which names the document (`models.t5_seal`); a text of another view names it only as a
whole. One index holds all views, and their evidence is added up as if one search had generated it
(Bevilacqua et al. 2022; Li et al. 2023).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from gr_mvdr.batch import PairBatch, pad, unpad
from gr_mvdr.decoding.beam_search import BeamSearchResult
from gr_mvdr.decoding.decoding_step import score_tokens
from gr_mvdr.decoding.evidence import strip
from gr_mvdr.decoding.names import NgramNames, TrieNames
from gr_mvdr.decoding.ngram_index import DEEPEST, DEPTH, NgramIndex
from gr_mvdr.decoding.trie import Trie
from gr_mvdr.options import Count, NonNegative, check_choice, part
from gr_mvdr.template import Ids
from gr_mvdr.texts import BODY, find_views, read_view
from models.base import Table
from models.t5_seal import T5SEAL

# View → for each document, its texts as they are generated, with their end tokens.
Texts = dict[str, list[list[list[int]]]]

_MOST = -1.0  # the greatest log-probability of a key with a bonus (MINDER)


@part("model")
class MultiViewSEAL(T5SEAL):
    """T5-SEAL with further views of documents, and optionally the query's own n-grams as keys."""

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
        """Yields each document's texts of all views, then its body and the end token.

        One index holds all views, as in MINDER: one corpus weighs the keys of all views, and tokens
        that one view's keys cover count less for another's.
        """
        texts = self._texts_of(documents).values()
        for number, body in enumerate(super().indexed_tokens(documents)):
            own = chain.from_iterable(view[number] for view in texts)
            yield [*chain.from_iterable(text[:-1] for text in own), *body]

    def index(self, documents: Table, directory: str | Path | None = None) -> None:
        """Builds an n-gram index over all views, deep enough to count every text as a key."""
        texts = chain.from_iterable(self._texts_of(documents).values())
        depth = max([DEPTH, *(len(text) - 1 for text in chain.from_iterable(texts))])
        super().index(documents, directory, depth)

    def _search_in(self, documents: Table, ngrams: NgramIndex) -> None:
        super()._search_in(documents, ngrams)
        self.names = ViewNames(**vars(self.names), texts=self._texts_of(documents))

    def search(
        self,
        queries: Sequence[Sequence[int]],
        names: "ViewNames | None" = None,
        **options: Any,
    ) -> "ViewResult":
        """Runs a beam search for n-grams of the body, then for whole texts of each other view."""
        names = names or self.names
        result = super().search(queries, names, **options)
        further: list[dict] = [{} for _ in queries]
        for view, texts in names.tries.items():
            of_view = self._text_keys(queries, view, texts, options.get("beam_size"))
            for keys, own in zip(further, of_view, strict=True):
                keys.update(own)
        for keys, query in zip(further, queries, strict=True):
            keys.update(self._query_keys(query))
        return ViewResult(**vars(result), further=further)

    def _text_keys(
        self, queries: Sequence[Sequence[int]], view: str, texts: Trie, beam_size: int | None
    ) -> list[dict[Ids, tuple[float, str]]]:
        """Finds the most probable whole texts of a view for each query, as keys with their end."""
        sources = [self.prepare_query(query, view) for query in queries]
        names = TrieNames(texts, ())
        result = super().search(queries, names, sources=sources, beam_size=beam_size)
        more = (self.hparams.bonus or {}).get(view)
        return [
            {
                tuple(key[:-1]): (score if more is None else min(score + more, _MOST), view)
                for key, score in result.final.of(number)
                if key[-1] == self.template.stop
            }
            for number in range(len(queries))
        ]

    def _query_keys(self, query: Sequence[int]) -> dict[Ids, tuple[float, str]]:
        """Returns the query's own n-grams that occur in the corpus, with log-probabilities."""
        lengths = range(1, self.hparams.query_ngrams + 1)
        starts = [(start, n) for n in lengths for start in range(len(query) - n + 1)]
        grams = sorted({tuple(query[start : start + n]) for start, n in starts})
        low, high = self.names.corpus.intervals(grams)
        grams = [gram for gram, count in zip(grams, high - low, strict=True) if count]
        if not grams:
            return {}
        sources = [self.prepare_query(query)] * len(grams)
        ids, mask = (x.to(self.device) for x in pad(grams))
        step = self.decoding_step(*(x.to(self.device) for x in pad(sources)))
        scores = score_tokens(step, ids, mask).sum(1).tolist()
        return {gram: (score, BODY) for gram, score in zip(grams, scores, strict=True)}

    def _texts_of(self, documents: Table) -> Texts:
        """Returns the documents' texts in all views besides the body.

        Views without texts are omitted, and so are texts longer than the maximum depth of an n-gram
        index. If a view's column is missing, the documents have no texts of this view.
        """
        texts, stop = {}, self.template.stop
        for view in find_views(self.special_tokens):
            end, column = self.special_tokens[f"{view}_end"], _column(documents, f"{view}_tokens")
            most = DEEPEST - len(end)
            ended = [
                [[*text, *end, stop] for text in read_view(own) if len(text) <= most]
                for own in column
            ]
            if any(ended):
                texts[view] = ended
        return texts


def _column(documents: Table, name: str) -> Sequence:
    """Returns a column of a table; [] if the table lacks it."""
    try:
        return documents[name]
    except KeyError:  # documents from elsewhere, such as a person's
        return []


@dataclass
class ViewResult(BeamSearchResult):
    """A search of the body, and each query's keys besides its candidates.

    Attributes:
        further: for each query, key → log-probability and the key's view.
    """

    further: list[dict[Ids, tuple[float, str]]]


@dataclass(frozen=True)
class ViewNames(NgramNames):
    """n-grams of the body, and whole texts of other views.

    Attributes:
        texts: the texts of all documents, by view.
    """

    texts: Texts = field(default_factory=dict)

    @cached_property
    def tries(self) -> dict[str, Trie]:
        """For each view, the trie of the texts that can be generated, those of `documents`."""
        tries = {}
        for view, texts in self.texts.items():
            numbers = range(len(texts)) if self.documents is None else self.documents
            if own := [text for number in numbers for text in texts[number]]:
                tries[view] = Trie.build(own)
        return tries

    def keys(self, result: ViewResult, query: int) -> dict[Ids, float]:
        return {key: score for key, (score, _) in self._written(result, query).items()}

    def _written(self, result: ViewResult, query: int) -> dict[Ids, tuple[float, str]]:
        """Returns keys with their views; a key that the body has, too, counts as the body's."""
        own = {key: (score, BODY) for key, score in super().keys(result, query).items()}
        return result.further[query] | own

    def shares(
        self, result: ViewResult, query: int, documents: Sequence[int]
    ) -> dict[int, list[tuple]]:
        """Returns the parts of scores with their views; a unigram belongs to the body."""
        # Of keys that differ only in special tokens, the most probable one counts.
        ranked = sorted(self._written(result, query).items(), key=lambda key: key[1])
        view_of = {strip(key, self.evidence["special_ids"]): view for key, (_, view) in ranked}
        shares = super().shares(result, query, documents)
        return {
            document: [(key, value, view_of.get(key, BODY)) for key, value in parts]
            for document, parts in shares.items()
        }
