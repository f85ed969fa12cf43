"""The test queries that runs were measured on: what they ask for, and where systems disagree."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.runs.run_folder import Run
from data_modules.module import RetrievalDataModule
from gr_mvdr.evaluation.ranking import Ranking


@dataclass(frozen=True)
class KnownQuery:
    """A test query and what the runs' own searches made of it.

    Attributes:
        id, text: as in the collection. gold: ids of the relevant documents.
        places: of each system, relevant document → rank in its `retrieve.trec`, where it is there.
        split: the test split, where there are several: two of them may have the same query.
    """

    id: str
    text: str
    gold: tuple[str, ...]
    places: tuple[dict[str, int], ...]
    split: str = ""

    @property
    def known(self) -> str:
        """What the page calls the query, its own among all: "test_unseen/q17", or "q17"."""
        return f"{self.split}/{self.id}" if self.split else self.id

    @property
    def ranks(self) -> list[int | None]:
        """Each system's best rank of a relevant document; None where it found none."""
        return [min(found.values(), default=None) for found in self.places]

    @property
    def disagreement(self) -> float:
        """The largest reciprocal rank less the smallest, in [0, 1]; nothing found counts as 0."""
        found = [1 / rank if rank else 0.0 for rank in self.ranks]
        return max(found, default=0.0) - min(found, default=0.0)


class KnownQueries:
    """The queries of all test splits.

    Args:
        queries: in the order of their splits.
    """

    def __init__(self, queries: Sequence[KnownQuery] = ()):
        self._queries = list(queries)
        self._by_text: dict[str, list[KnownQuery]] = defaultdict(list)
        for query in self._queries:
            self._by_text[_plain(query.text)].append(query)

    def find(self, text: str, known: str = "") -> list[KnownQuery]:
        """The known queries of a text, whatever its case and spaces; one alone where it was chosen.

        Args:
            known: the name of the one that was chosen. It counts as long as the text is its own: a
                person may have edited it.
        """
        found = self._by_text.get(_plain(text), [])
        return [query for query in found if query.known == known] or found

    def select(self, text: str, order: str, limit: int) -> list[KnownQuery]:
        """Queries with every word of `text` in their text or id.

        Args:
            order: "disagreement", the largest first, or "name"; limit: the most queries returned.
        """
        words = _plain(text).split()
        found = [q for q in self._queries if all(w in _plain(f"{q.known} {q.text}") for w in words)]
        if order == "name":
            return sorted(found, key=lambda query: query.known)[:limit]
        return sorted(found, key=lambda query: (-query.disagreement, query.known))[:limit]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def read_known_queries(runs: Sequence[Run], data: RetrievalDataModule) -> KnownQueries:
    """The test queries of runs over the same collection, from its files and the runs' rankings.

    Args:
        data: of one of the runs.

    Raises:
        FileNotFoundError, ValueError: the collection cannot be read, or a ranking is damaged.
    """
    found: list[KnownQuery] = []
    for split in data.test_splits:
        queries = data.test_queries(split)
        judged = data.judgements(split, queries)
        name = "retrieve.trec" if split == data.test_splits[0] else f"retrieve-{split}.trec"
        rankings = [_read_ranking(run.path, name) for run in runs]
        for number, text in zip(queries["id"][:], queries["text"][:], strict=True):
            gold = tuple(name for name, grade in judged[number].items() if grade > 0)
            places = tuple(_places(ranking.documents(number), gold) for ranking in rankings)
            found.append(
                KnownQuery(number, text, gold, places, split if len(data.test_splits) > 1 else "")
            )
    return KnownQueries(found)


def _read_ranking(run: Path, name: str) -> Ranking:
    """A run's ranking; an empty one where it was not tested on the split."""
    return Ranking.read(run / name, run) if (run / name).exists() else Ranking({})


def _places(documents: Sequence[str], gold: Sequence[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(documents, start=1) if name in gold}
