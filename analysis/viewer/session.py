"""What the explorer's page can ask of loaded runs; each verb takes and returns what JSON can hold.

The signatures are the contract with the page: `/api/VERB` checks types by them (`server.py`).
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from analysis.patching import Exchange, patchable
from analysis.viewer.known_queries import KnownQueries, KnownQuery
from analysis.viewer.loading import LoadedSystem, load_known_queries, load_systems
from analysis.viewer.pictures import Picture, draw_alignment
from analysis.viewer.views import (
    NotThere,
    describe_alignment,
    describe_continuation,
    describe_explanation,
    describe_hit,
    describe_patches,
    describe_salience,
    describe_system,
)
from analysis.viewer.words import page_words
from gr_mvdr.files import describe_error
from gr_mvdr.options import show
from models.results import find_snippet

HITS, TEXTS, LISTED = 1_000, 4, 10_000  # at most, in one request
TOKENS = 2**31  # more than any vocabulary


def open_session(paths: Sequence[Path], trust: bool = False) -> "Session":
    """Loads runs to be explored.

    Args:
        paths: run folders, or folders that hold some; trust: see `load_systems`.

    Raises:
        FileNotFoundError, ValueError: as `load_systems`.
    """
    systems = load_systems(paths, trust)
    return Session(systems, load_known_queries(systems))


class Session:
    """Loaded systems over one collection.

    Every verb raises ValueError for what cannot be done, and `NotThere` for a system or document
    that is not there.

    Args:
        systems: at least one. known: the test queries of their runs.
    """

    def __init__(self, systems: Sequence[LoadedSystem], known: KnownQueries):
        self.systems, self.known = list(systems), known
        self._reader = systems[0].retriever  # all have the same documents
        self._ids = frozenset(self._reader.documents["id"][:])

    # What there is --------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """The collection, the systems with what each of them can do, and the page's words."""
        return {
            "collection": self.systems[0].run.setting,
            "documents": len(self._ids),
            "systems": [describe_system(n, system) for n, system in enumerate(self.systems)],
            "glossary": page_words(),
        }

    def queries(
        self,
        text: str = "",
        order: Literal["disagreement", "name"] = "disagreement",
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """Known queries that hold every word of `text`."""
        _check_range("limit", limit, LISTED)
        return [
            {
                **_name(query),
                "gold": query.gold,
                "ranks": query.ranks,
                "disagreement": query.disagreement,
            }
            for query in self.known.select(text, order, limit)
        ]

    def document(self, id: str) -> dict[str, str]:
        """A document of the collection."""
        title, text = self._reader.read(self._known(id))
        return {"id": id, "title": title, "text": text}

    # Search ---------------------------------------------------------------------------------------

    def search(
        self, query: str, k: int = 10, among: list | None = None, known: str = ""
    ) -> dict[str, Any]:
        """The k best documents of every system, and where the relevant ones of a known query are.

        Args:
            among: ids of the documents that can be found; None = all.
            known: which known query it is. Without it, a text of several is a new query:
                they are returned as "namesakes".
        """
        _check_range("k", k, HITS)
        if among is not None:
            for name in _texts("among", among, LISTED):
                self._known(name)
        same = self.known.find(query, known)
        one = same[0] if len(same) == 1 else None
        gold = one.gold if one else ()
        found = [self._search(n, query, k, among, gold) for n in range(len(self.systems))]
        return {
            "known": _name(one) if one else None,
            "namesakes": [] if one else list(map(_name, same)),
            "gold": [self._describe_gold(name, one, found) for name in gold],
            "systems": found,
        }

    def _search(
        self, number: int, query: str, k: int, among: list | None, gold: Sequence[str]
    ) -> dict[str, Any]:
        started, error, hits = time.perf_counter(), None, []
        retriever = self.systems[number].retriever
        try:
            hits = [describe_hit(hit, gold) for hit in retriever.search(query, k, among)]
        except (ValueError, NotImplementedError) as fault:  # the other systems are shown
            error = describe_error(fault)
        milliseconds = 1000 * (time.perf_counter() - started)
        return {"number": number, "milliseconds": milliseconds, "error": error, "hits": hits}

    def _describe_gold(
        self, name: str, known: Any, found: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """A relevant document; its rank here, else in the run's deeper ranking."""
        ranks = []
        for system, places in zip(found, known.places, strict=True):
            here = [hit["rank"] for hit in system["hits"] if hit["id"] == name]
            ranks.append(here[0] if here else places.get(name))
        title, text = self._reader.read(name)
        snippet = find_snippet(known.text, text)
        return {"id": name, "title": title, "snippet": snippet, "ranks": ranks}

    # Of one pair ----------------------------------------------------------------------------------

    def align(
        self, system: int, query: str, document: dict, layer: int = -1, head: int | None = None
    ) -> dict[str, Any]:
        """S, A and S·A of one pair, its tokens' salience, and the parts of its score.

        Args:
            document: {"id": …} of the collection, or {"text": …, "title": …}.
            layer: of a decoder; the last by default. head: None = all heads together.
        """
        chosen, given = self._alignable(system, layer), self._document(document)
        aligned = chosen.retriever.align(query, given, layer)
        shares = chosen.retriever.shares(query, given)
        told = describe_alignment(chosen, aligned, shares, layer, head)
        return told | describe_salience(chosen.retriever, query, given)

    def compare(self, system: int, queries: list, documents: list) -> list[dict[str, Any]]:
        """`align` of several pairs: one query with each document, or one document with each."""
        _texts("queries", queries, TEXTS)
        size = max(len(queries), len(documents))
        if size > TEXTS or not {len(queries), len(documents)} <= {1, size}:
            rule = f"must be 1 to {TEXTS}, as many as queries, or one of either"
            raise ValueError(f"documents: {rule}, are {len(documents)} and {len(queries)}")
        queries, documents = (
            texts * size if len(texts) == 1 else texts for texts in (queries, documents)
        )
        pairs = zip(queries, documents, strict=True)
        return [self.align(system, *pair) for pair in pairs]

    def figure(
        self,
        system: int,
        query: str,
        document: dict,
        layer: int = -1,
        head: int | None = None,
        layer_shown: Literal["similarity", "alignment", "product"] = "alignment",
        format: Literal["png", "pdf"] = "png",
    ) -> Picture:
        """The view of `align` as a file."""
        chosen, given = self._alignable(system, layer), self._document(document)
        aligned = chosen.retriever.align(query, given, layer)
        return draw_alignment(chosen.label, aligned, head, layer_shown, format)

    def explain(self, system: int, query: str, document: str, known: str = "") -> dict[str, Any]:
        """Why a system found a document where it did, or did not find it; `known`: see `search`."""
        self._known(document)
        same = self.known.find(query, known)
        retriever = self._system(system).retriever
        explained = retriever.explain(query, document)
        return describe_explanation(retriever, explained, same[0].gold if len(same) == 1 else ())

    def patch(self, system: int, query: str, document: dict, perturbed: str = "") -> dict[str, Any]:
        """What each layer, head and token restores of the query's score in a perturbed one's.

        Args:
            perturbed: another query; "" = the query with its document's title exchanged, or its
                rarest word.
        """
        chosen, given = self._system(system), self._document(document)
        if not patchable(chosen.retriever.system):
            raise ValueError(f"system={system}: {chosen.label} encodes no query by itself")
        if not perturbed.strip() and query.strip():
            title = self._reader.read(given)[0] if isinstance(given, str) else given.get("title")
            exchange = Exchange(chosen.retriever.reader, chosen.retriever.documents)
            perturbed = (exchange(query, title or "") or ("", ""))[1]
        return describe_patches(chosen.retriever, query, perturbed, given)

    # Of the whole collection ----------------------------------------------------------------------

    def nearest(self, system: int, query: str, token: int, k: int = 20) -> list[dict[str, Any]]:
        """The document tokens that are most similar to a query token, in their context."""
        _check_range("k", k, HITS)
        found = self._system(system, "multi_vector").retriever.nearest_tokens(query, token, k)
        return found.to_dict("records")

    def continuations(
        self, system: int, query: str, prefix: list = (), k: int = 20
    ) -> list[dict[str, Any]]:
        """The most probable next tokens after a prefix of an identifier, and where they lead."""
        _check_range("k", k, HITS)
        for token in prefix:
            if type(token) is not int or not 0 <= token < TOKENS:
                raise ValueError(f"prefix={show(list(prefix))}: must be a list of token numbers")
        chosen = self._system(system, "generative")
        found = chosen.retriever.continuations(query, list(prefix), k)
        return [describe_continuation(chosen.retriever, one) for one in found]

    # What is asked for ----------------------------------------------------------------------------

    def _system(self, number: int, paradigm: str | None = None) -> LoadedSystem:
        if not 0 <= number < len(self.systems):
            raise NotThere(f"system={number}: must be ≥ 0 and < {len(self.systems)}")
        found = self.systems[number]
        if paradigm not in (None, found.retriever.system.paradigm):
            name, own = (p.replace("_", " ") for p in (paradigm, found.retriever.system.paradigm))
            raise ValueError(f"system={number}: must be {name}, {found.label} is {own}")
        return found

    def _alignable(self, number: int, layer: int) -> LoadedSystem:
        found = self._system(number)
        about = describe_system(number, found)
        if not about["alignable"]:
            raise ValueError(f"system={number}: {found.label} aligns no tokens")
        if not -1 <= layer < about["layers"]:
            raise ValueError(f"layer={layer}: must be ≥ -1, the last, and < {about['layers']}")
        return found

    def _document(self, document: Any) -> Any:
        """A document as a retriever takes it: an id of the collection, or a text."""
        keys = {*document} if isinstance(document, dict) else set()
        if not (keys == {"id"} or {"text"} <= keys <= {"text", "title"}):
            raise ValueError(f"document: must have id, or text and title, has {sorted(keys)}")
        for key, value in document.items():
            if not isinstance(value, str):
                raise ValueError(f"document.{key}={show(value)}: must be text")
        if "id" in keys:
            self._known(document["id"])
            return document["id"]
        if not document["text"].strip():
            raise ValueError("document.text='': must have a word")
        return dict(document)

    def _known(self, name: str) -> str:
        if name not in self._ids:
            raise NotThere(f"document={show(name)}: must be an id of the collection")
        return name


def _name(query: KnownQuery) -> dict[str, str]:
    return {"known": query.known, "id": query.id, "text": query.text}


def _check_range(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise ValueError(f"{name}={value}: must be ≥ 1 and ≤ {most:,}")


def _texts(name: str, values: Sequence[Any], most: int) -> Sequence[str]:
    if not 1 <= len(values) <= most or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name}: must be a list of 1 to {most:,} texts")
    return values
