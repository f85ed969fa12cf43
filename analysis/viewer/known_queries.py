"""The test queries that runs were measured on, with the ranks that each system gave."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.runs.run_folder import Run, ranking_file
from data_modules.module import RetrievalDataModule
from gr_mvdr.evaluation.ranking import Ranking


@dataclass(frozen=True)
class KnownQuery:
    """A test query and how the runs' own searches ranked its relevant documents.

    Attributes:
        id, text: as in the collection. gold: ids of the relevant documents.
        places: for each system, relevant document → rank in its `retrieve.trec`, where it is there.
        split: the test split, where there are several: two of them may have the same query.
    """

    id: str
    text: str
    gold: tuple[str, ...]
    places: tuple[dict[str, int], ...]
    split: str = ""

    @property
    def known(self) -> str:
        """The query's unique name on the page: "test_unseen/q17", or "q17"."""
        return f"{self.split}/{self.id}" if self.split else self.id

    @property
    def ranks(self) -> list[int | None]:
        """Each system's best rank of a relevant document; None where it retrieved none."""
        return [min(places.values(), default=None) for places in self.places]

    @property
    def interest(self) -> float:
        """In [0, 1]: how far several systems disagree, or how badly a single one fails.

        With several it is the largest reciprocal rank less the smallest, with one 1 − reciprocal
        rank; a query without a retrieved relevant document has reciprocal rank 0.
        """
        values = [1 / rank if rank else 0.0 for rank in self.ranks]
        return (max(values) if len(values) > 1 else 1.0) - min(values, default=0.0)


def find_query(queries: Sequence[KnownQuery], text: str, known: str) -> KnownQuery | None:
    """The known query of a text, whatever its case and spaces.

    Args:
        known: the name of the chosen one. It counts only while the text is still its own. Without
            it a text that several queries share belongs to none of them.
    """
    same = [query for query in queries if normalise(query.text) == normalise(text)]
    chosen = [query for query in same if query.known == known] or same
    return chosen[0] if len(chosen) == 1 else None


def select_queries(queries: Sequence[KnownQuery], text: str, limit: int) -> list[KnownQuery]:
    """At most `limit` queries with every word of `text` in their text or name, by interest."""
    words = normalise(text).split()
    chosen = [q for q in queries if all(w in normalise(f"{q.known} {q.text}") for w in words)]
    return sorted(chosen, key=lambda query: (-query.interest, query.known))[:limit]


def normalise(text: str) -> str:
    return " ".join(text.casefold().split())


def read_known_queries(runs: Sequence[Run], data: RetrievalDataModule) -> list[KnownQuery]:
    """The queries of all test splits, from the collection's files and the runs' rankings.

    Args:
        runs: over the same collection. data: of one of them.

    Raises:
        FileNotFoundError, ValueError: the collection cannot be read, or a ranking is damaged.
    """
    known: list[KnownQuery] = []
    for split in data.test_splits:
        queries = data.test_queries(split)
        judged = data.judgements(split, queries)
        name = ranking_file("retrieve", split if split != data.test_splits[0] else "")
        rankings = [_read_ranking(run.path, name) for run in runs]
        shown = split if len(data.test_splits) > 1 else ""
        for number, text in zip(queries["id"][:], queries["text"][:], strict=True):
            gold = tuple(name for name, grade in judged[number].items() if grade > 0)
            places = tuple(
                {name: rank for rank, name in enumerate(r.documents(number), 1) if name in gold}
                for r in rankings
            )
            known.append(KnownQuery(number, text, gold, places, shown))
    return known


def _read_ranking(run: Path, name: str) -> Ranking:
    """A run's ranking; an empty one where it was not tested on the split."""
    return Ranking.read(run / name, run) if (run / name).exists() else Ranking({})
