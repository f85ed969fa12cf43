"""The requests of the explorer's page to loaded runs.

Arguments and results are JSON values. The signatures are the contract with the page:
`analysis.explore` checks arguments against them.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from analysis.compare.groups import compare_runs
from analysis.runs.glossary import Glossary
from analysis.runs.run_folder import Run, ranking_file
from analysis.viewer.pairs import describe_pair, read_ranking
from data_modules.module import RetrievalDataModule
from gr_mvdr.decoding.search_trace import Hypothesis, SearchPath
from gr_mvdr.fields import json_values
from gr_mvdr.files import describe_error
from gr_mvdr.options import Rule, make_printable
from gr_mvdr.tokenizers import token_strings
from models.inspection import continuations, nearest_tokens
from models.multi_vector import MultiVector
from models.results import Hit
from models.retriever import Retriever, align_layers

LISTED = 100  # the most queries in a list
Length = Annotated[int, Rule("≥ 1 and ≤ 1,000", lambda k: 1 <= k <= 1_000)]
TokenId = Annotated[int, Rule("≥ 0 and < 2**31", lambda token: 0 <= token < 2**31)]


@dataclass(frozen=True)
class LoadedSystem:
    """A run that can be searched; its label is unique in a session."""

    label: str
    run: Run
    retriever: Retriever


@dataclass(frozen=True)
class KnownQuery:
    """A test query and how the runs' own searches ranked its relevant documents.

    Test queries of one text, perhaps of several splits, are one known query.

    Attributes:
        id, text: as in the collection; of the first such query.
        gold: ids of the relevant documents.
        places: for each system, relevant document → rank in its ranking, if it is there.
    """

    id: str
    text: str
    gold: list[str]
    places: list[dict[str, int]]

    @property
    def ranks(self) -> list[int | None]:
        """Each system's best rank of a relevant document; None if it retrieved none."""
        return [min(places.values(), default=None) for places in self.places]

    @property
    def interest(self) -> float:
        """In [0, 1]: how far several systems disagree, or how badly a single one fails.

        For several systems it is the largest reciprocal rank minus the smallest; for a single one
        it is 1 − reciprocal rank. A system that retrieved no relevant document has reciprocal
        rank 0.
        """
        values = [1 / rank if rank else 0.0 for rank in self.ranks]
        return (max(values) if len(values) > 1 else 1.0) - min(values, default=0.0)


def open_session(paths: Sequence[Path], trust: bool = False) -> "Session":
    """Loads every finished run at or below the folders, and prints a line about each.

    Args:
        trust: whether the runs may name classes that are not this library's (docs/design.md).

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: no run is finished, runs are over different collections, or none can be loaded.
    """
    comparison = compare_runs(list(paths))
    systems, lines = [], list(comparison.notes)
    for group in comparison.only_section().groups:
        for run in group.runs:
            label = f"{group.label}, seed {run.seed}" if len(group.runs) > 1 else group.label
            try:
                retriever = Retriever.load(run.path, trust=trust)
            except (ValueError, OSError, NotImplementedError) as error:
                fault = describe_error(error)
                lines.append(f"{label}: left out, {fault}")
                continue
            systems.append(LoadedSystem(label, run, retriever))
            lines.append(f"{label}: loaded {run.path}")
    if not systems:
        raise ValueError(f"runs: none can be explored; {fault}")
    try:
        known = read_known_queries([s.run for s in systems], systems[0].retriever.data)
    except (ValueError, OSError) as error:
        known = []
        lines.append(f"no known queries: {describe_error(error)}")
    print(make_printable("\n".join(lines)), flush=True)
    return Session(systems, known)


def read_known_queries(runs: Sequence[Run], data: RetrievalDataModule) -> list[KnownQuery]:
    """Reads the queries of all test splits, from the collection's files and the runs' rankings.

    Args:
        runs: runs on the same collection.
        data: the data module of one of them.

    Raises:
        FileNotFoundError, ValueError: the collection cannot be read, or a ranking is damaged.
    """
    known: dict[str, KnownQuery] = {}
    for split in data.evaluation.test_splits:
        queries = data.evaluation.test_queries(split)
        relevant = data.evaluation.relevant(split, queries)
        name = ranking_file("retrieve", split if split != data.evaluation.test_splits[0] else "")
        rankings = [read_ranking(run, name) for run in runs]
        for number, text in zip(queries["id"][:], queries["text"][:], strict=True):
            new = KnownQuery(number, text, [], [{} for _ in runs])
            one = known.setdefault(_normalise(text), new)
            one.gold.extend(name for name in relevant[number] if name not in one.gold)
            for places, ranking in zip(one.places, rankings, strict=True):
                ranked = enumerate(ranking.documents(number), 1)
                places.update({name: rank for rank, name in ranked if name in relevant[number]})
    return list(known.values())


class Session:
    """Loaded systems over one collection.

    Every verb raises ValueError for a wrong argument.

    Args:
        systems: at least one.
        known: the test queries of their runs, of different texts.
    """

    def __init__(self, systems: Sequence[LoadedSystem], known: Sequence[KnownQuery] = ()):
        self.systems = list(systems)
        self.known_queries = {_normalise(query.text): query for query in known}
        self._reader = systems[0].retriever  # all have the same documents

    # The collection -------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """Returns the collection, the systems and what each can do, and the page's glossary."""
        return {
            "collection": self.systems[0].run.setting,
            "documents": len(self._reader),
            "systems": [
                {
                    "number": number,
                    "label": system.label,
                    "paradigm": model.paradigm.replace("_", "-"),
                    "run": str(system.run.path),
                    "generates": model.generates == "document",
                    "shares_of": model.share_of,
                }
                for number, system in enumerate(self.systems)
                for model in [system.retriever.system]
            ],
            "glossary": Glossary().terms,
        }

    def queries(self, text: str = "") -> list[dict[str, Any]]:
        """Returns known queries that contain all words of `text`, by `KnownQuery.interest`."""
        words = _normalise(text).split()
        every = self.known_queries.items()
        named = [(f"{_normalise(query.id)} {text}", query) for text, query in every]
        chosen = [query for told, query in named if all(word in told for word in words)]
        chosen.sort(key=lambda query: (-query.interest, query.id))
        return [
            {"id": query.id, "text": query.text, "gold": query.gold, "ranks": query.ranks}
            for query in chosen[:LISTED]
        ]

    def document(self, id: str) -> dict[str, Any]:
        """Returns a document's id, title, text and further fields."""
        return json_values(self._reader.document(id))

    # Search ---------------------------------------------------------------------------------------

    def search(self, query: str, k: Length = 10) -> dict[str, Any]:
        """Returns each system's k best documents, and the ranks of a known query's relevant ones.

        The known query is found by its text, ignoring case and spacing.
        """
        one = self.known_queries.get(_normalise(query))
        gold = one.gold if one else ()
        lists = [self._search(number, query, k, gold) for number in range(len(self.systems))]
        return {
            "known": one.text if one else None,
            "gold": [self._describe_gold(name, one, lists) for name in gold],
            "systems": lists,
        }

    def _search(self, number: int, query: str, k: int, gold: Sequence[str]) -> dict[str, Any]:
        started, error, hits = time.perf_counter(), None, []
        try:
            hits = self.systems[number].retriever.search(query, k)
        except (ValueError, NotImplementedError) as fault:  # other systems are still shown
            error = describe_error(fault)
        milliseconds = 1000 * (time.perf_counter() - started)
        hits = [_describe_hit(hit, gold) for hit in hits]
        return {"number": number, "milliseconds": milliseconds, "error": error, "hits": hits}

    def _describe_gold(
        self, name: str, known: KnownQuery, lists: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """Describes a relevant document: its rank in this search, else in the deeper ranking."""
        ranks = []
        for system, places in zip(lists, known.places, strict=True):
            here = [hit["rank"] for hit in system["hits"] if hit["id"] == name]
            ranks.append(here[0] if here else places.get(name))
        return {"id": name, "title": self._reader.document(name)["title"], "ranks": ranks}

    # One pair -------------------------------------------------------------------------------------

    def align(self, system: int, query: str, document: dict[str, str]) -> dict[str, Any]:
        """Returns `describe_pair`, the salience of the tokens, and the parts of the score.

        Args:
            document: {"id": …} for a document of the collection, or {"text": …, "title": …}.
        """
        retriever, given = self._retriever(system), document.get("id", document)
        if "id" in document:
            self._reader.document(given)  # raises for an unknown id: a text by itself is a document
        given = retriever.find_passage(query, given)
        model, tokenizer = retriever.system, retriever.reader.tokenizer
        strings = partial(token_strings, tokenizer, spell=model.spell)
        layers = align_layers(retriever, query, given)
        told = describe_pair(layers, model.paradigm, strings, {*tokenizer.all_special_ids})
        if isinstance(model, MultiVector) and model.encoder.salience:
            encoded = *retriever.encode_queries(query), *retriever.encode_documents([given])
            for side, text in zip(("query", "document"), encoded, strict=True):
                # Tokens that were merged into one vector have no salience of their own.
                if text.salience is not None and len(text.salience) == len(told[side]["tokens"]):
                    told[side]["salience"] = text.salience.tolist()
        shares = retriever.shares(query, given)
        return told | {"score_name": model.score_is, "shares": shares}

    def explain(self, system: int, query: str, document: str) -> dict[str, Any]:
        """Explains the rank of a document in a system; for a generative one, also its search."""
        one = self.known_queries.get(_normalise(query))
        retriever, gold = self._retriever(system), one.gold if one else ()
        explained = retriever.explain(query, document)
        told = {
            "rank": explained.rank,
            "score": explained.score,
            "best": _describe_hit(explained.best, gold) if explained.best else None,
            "hit": _describe_hit(explained.hit, gold) if explained.hit else None,
            "reason": explained.reason,
        }
        return told | (_describe_path(retriever, explained.path) if explained.path else {})

    # The whole collection -------------------------------------------------------------------------

    def nearest(self, system: int, query: str, token: int, k: Length = 20) -> list[dict[str, Any]]:
        """Returns the document tokens that are most similar to a query token, in context."""
        retriever = self._retriever(system)
        return nearest_tokens(retriever, query, token, k).to_dict("records")

    def continuations(
        self, system: int, query: str, prefix: Sequence[TokenId] = (), k: Length = 20
    ) -> dict[str, Any]:
        """Returns the most probable next tokens after an identifier's prefix, and their documents.

        Returns:
            "path": the texts of the prefix's tokens. "next": tokens, the most probable first.
        """
        retriever = self._retriever(system)
        following = continuations(retriever, query, list(prefix), k)
        return {
            "path": [retriever.text_of((token,)) for token in prefix],
            "next": [
                {
                    "token": one.token,
                    "text": one.text,
                    "probability": one.probability,
                    "documents": one.n_documents,
                    "allowed": one.allowed,
                    "examples": _titles(retriever, one.documents),
                }
                for one in following
            ],
        }

    def _retriever(self, number: int) -> Retriever:
        if not 0 <= number < len(self.systems):
            raise ValueError(f"system={number}: must be ≥ 0 and < {len(self.systems)}")
        return self.systems[number].retriever


def _normalise(text: str) -> str:
    return " ".join(text.casefold().split())


def _describe_hit(hit: Hit, gold: Collection[str]) -> dict[str, Any]:
    return hit.to_dict() | {"gold": hit.id in gold}


def _describe_path(retriever: Retriever, path: SearchPath) -> dict[str, Any]:
    """Describes a beam search step by step.

    Returns:
        "steps": for each step, whether the document was still `alive`, the `best` hypothesis that
        leads to it and that hypothesis's `rank`, and the hypotheses that the beam `kept`. "lost":
        the step (from 1) that lost the document; "replaced_by": the last hypothesis in the beam at
        that step. "generated": the search's final sequences. Probabilities are of whole hypotheses,
        as the beam compares them.
    """

    def tell(one: Hypothesis | None) -> dict[str, Any] | None:
        return one and {"text": retriever.text_of(one.tokens), "probability": one.probability}

    lost = path.lost_step
    return {
        "steps": [
            {
                **{"alive": step.alive, "rank": step.rank},
                **{"best": tell(step.best), "kept": list(map(tell, step.kept))},
            }
            for step in path.steps
        ],
        "lost": path.lost,
        "replaced_by": tell(lost.limit or next(iter(lost.kept), None)) if lost else None,
        "generated": [
            {
                "text": retriever.text_of(one.tokens),
                "log_probability": one.log_prob,
                "documents": _titles(retriever, one.documents),
                "count": one.n_documents,
            }
            for one in path.generated
        ],
    }


def _titles(retriever: Retriever, names: Iterable[str]) -> list[dict[str, str]]:
    return [{"id": name, "title": retriever.document(name)["title"]} for name in names]
