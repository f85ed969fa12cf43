"""How an index is searched, and how that follows from a depth and a wanted recall.

What the user leaves "auto" is chosen once by measuring on a sample of queries against the exact
search, and kept with the index. Recall is measured, work is counted and not timed, so that the
same seed makes the same choice.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from gr_mvdr.alignment import MaxSim
from gr_mvdr.files import read_sealed, reading, write_sealed
from gr_mvdr.pooling import GROUPINGS
from gr_mvdr.relevance import divide
from gr_mvdr.salience import keep_salient
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.fixed_dimensional import MOST_PLANES, DocumentEncodings, places_of
from gr_mvdr.token_index.imputation import (
    Retrieved,
    check_imputation,
    expected_relevance,
    group_by_document,
    imputed_terms,
    missing_similarity,
)
from gr_mvdr.token_index.max_sim import score_all
from gr_mvdr.token_index.neighbours import TokenNeighbours
from gr_mvdr.token_index.store import DTYPES, WHOLE, Sample, TokenStore
from gr_mvdr.token_vectors import TokenVectors, stack

AUTO: Any = "auto"  # in the place of a number
# Of each mode, the options that may be left to be chosen.
OPEN_KEYS: dict[str, tuple[str, ...]] = {
    "exact": (),
    "gather": ("neighbours", "probes", "refine"),
    "impute": ("neighbours", "probes"),
    "fde": ("refine",),
    "rerank": (),
}
MODES = tuple(OPEN_KEYS)


@dataclass(frozen=True)
class SearchOptions:
    """How a `TokenIndex` is searched: the options of `model.search`.

    Attributes:
        mode: "exact": all documents under the system's alignment. "gather": the documents that own
            one of the k' nearest tokens of a query token, scored with all their tokens
            (gr_as_mvdr §6.3). "impute": from the retrieved tokens alone (xtr Eq. 4). "fde": the
            `refine` documents whose one vector is nearest, scored with all their tokens (MUVERA).
            "rerank": no index; BM25's best `neighbours` documents, encoded as they come (mva §5).
        neighbours: k'; "auto" = chosen by `plan_search`, as probes and refine may be.
        probes: clusters that the token retrieval visits; None = it looks at every token.
        lists: clusters of the inverted file; None = faiss's rule of thumb.
        refine: gather scores only so many candidates, those with the best imputed relevance, and
            fde those with the best estimate; None = all. 0, of fde: the estimates rank.
        recall: the share of the exact search's best documents that chosen values must find.
        imputation: of similarities that were not retrieved: "last", "zero", "mean", "none", or a
            number (`gr_mvdr.token_index.imputation`).
        keep_query, keep_document: β_q and β_d: the share of most salient tokens that are searched
            with and for; scoring keeps all (aligner §3.2, "Pruning").
        dtype: of stored vectors: "float32", "float16", "pq" (`pq_bytes` codes a vector) or
            "residual" (one of `lists` centroids, and codes of what it leaves).
        pq_bytes: None = `quantiser.default_bytes`.
        pool, pool_by: stored vectors are merged; see `gr_mvdr.pooling.group_tokens`.
        fde_repetitions, fde_planes, fde_projection, fde_size: R, k, p and the size of a sketch, of
            `fixed_dimensional.Encoding`; fde_dtype: "float32" or "float16".
        seed: of the k-means, and of the encoding.
    """

    mode: str = "exact"
    neighbours: int = AUTO
    probes: int | None = AUTO
    lists: int | None = None
    refine: int | None = AUTO
    recall: float = 0.99
    imputation: str | float = "last"
    keep_query: float = 1.0
    keep_document: float = 1.0
    dtype: str = "float32"
    pq_bytes: int | None = None
    pool: int = 1
    pool_by: str = "ward"
    fde_repetitions: int = 20
    fde_planes: int = 5
    fde_projection: int | None = 16
    fde_size: int | None = None
    fde_dtype: str = "float16"
    seed: int = 0

    def __post_init__(self):
        named = {"mode": MODES, "dtype": DTYPES, "fde_dtype": WHOLE, "pool_by": GROUPINGS}
        for key, known in named.items():
            if getattr(self, key) not in known:
                rule = f"must be one of {', '.join(known)}"
                raise ValueError(f"model.search.{key}={getattr(self, key)}: {rule}")
        check_imputation(self.imputation)
        for key in ("recall", "keep_query", "keep_document"):
            value, prunes = getattr(self, key), self.mode in ("gather", "impute")
            if not 0 < value <= 1:
                raise ValueError(f"model.search.{key}={value}: must be > 0 and ≤ 1")
            if key != "recall" and value < 1 and not prunes:
                rule = f"must be 1 in mode {self.mode}, which looks at every token"
                raise ValueError(f"model.search.{key}={value}: {rule}")
        fde = ("fde_repetitions", "fde_planes", "fde_projection", "fde_size")
        for key in ("neighbours", "probes", "lists", "refine", "pool", *fde):
            value, least = getattr(self, key), int(key != "refine" or self.mode == "gather")
            if value not in (None, AUTO) and value < least:
                raise ValueError(f"model.search.{key}={value}: must be ≥ {least}")
        if self.fde_planes > MOST_PLANES:
            raise ValueError(f"model.search.fde_planes={self.fde_planes}: must be ≤ {MOST_PLANES}")

    @property
    def open_keys(self) -> tuple[str, ...]:
        """The options that are still to be chosen for this mode."""
        return tuple(key for key in OPEN_KEYS[self.mode] if getattr(self, key) == AUTO)

    @property
    def storage(self) -> tuple[Any, ...]:
        """What the stored vectors depend on."""
        coded = None if self.dtype in WHOLE else (self.pq_bytes, self.lists, self.seed)
        return self.pool, self.pool > 1 and self.pool_by, self.dtype, coded

    @property
    def is_approximate(self) -> bool:
        """Whether the exact search may find other documents."""
        return self.mode in ("gather", "impute", "fde")

    @property
    def lexical_candidates(self) -> int:
        """The documents that BM25 proposes in mode "rerank"."""
        return 2000 if self.neighbours == AUTO else self.neighbours

    @property
    def scores_need(self) -> str:
        """What of all documents a score needs besides its own document; "" = nothing."""
        return "similarities imputed from all documents" if self.mode == "impute" else ""

    def changed(self, **options: Any) -> "SearchOptions":
        """The same search with other options.

        Raises:
            ValueError: an unknown option, or there is no index to search.
        """
        if self.mode == "rerank":
            rule = "must have an index to be searched in other ways, as exact has"
            raise ValueError(f"model.search.mode=rerank: {rule}")
        known = {field.name for field in fields(self)}
        for key in options.keys() - known:
            raise ValueError(f"model.search.{key}: must be one of {', '.join(sorted(known))}")
        return replace(self, **options)

    def check(self, scoring: Scoring, salience: Mapping[str, Any] | None = None) -> None:
        """Refuses what the mode cannot do for a system's form of Eq. 1.

        Args:
            salience: of each side, "query" and "document", a description; None = not known.
        """
        chooses = self.pool > 1 and self.pool_by == "salience"
        if chooses and salience is not None and not salience.get("document"):
            raise ValueError("model.search.pool_by=salience: must be another without salience")
        for side in ("query", "document") if salience is not None else ():
            share = getattr(self, f"keep_{side}")
            if share < 1 and not salience.get(side):
                raise ValueError(f"model.search.keep_{side}={share}: must be 1 without salience")
        if scoring.heads > 1 and self.dtype == "residual":  # its basis mixes the heads' parts
            raise ValueError(f"model.heads={scoring.heads}: must be 1 with dtype=residual")
        if self.mode in ("impute", "fde") and scoring.alignment != MaxSim():
            rule = f"must be exact or gather under {scoring.alignment}"
            raise ValueError(f"model.search.mode={self.mode}: {rule}; it estimates MaxSim")


# Work in microseconds of one core of an AMD EPYC (Zen 4), d = 128: docs/multi_vector.md. Only their
# proportions matter, and they move the choice little.
_SIMILARITY = 0.009  # of a query token and a token that is read with its neighbours
_READ, _READ_SIMILARITY = 0.1, 0.012  # a token of a document that is read by itself
_CODE, _NEIGHBOUR, _SEARCH = 0.0043, 0.13, 1000.0  # a code in a list, a retrieved token, a query
_ENCODED = 0.0005  # of a number of an encoded document

# What is tried, k' up to a share of the tokens; `refine` makes up for what lies between.
PROBES = (4, 16, 64)
NEIGHBOURS = (250, 500, 1000, 2000, 4000, 8000, 16000, 32000)
_MOST_NEIGHBOURS = 1 / 64
_LEAST_SAMPLE, _EXACT_SECONDS = 16, 60  # of a collection whose exact search takes long
_BATCH = 32
_PLANS = "plans.json"


def plan_search(
    store: TokenStore,
    neighbours: TokenNeighbours,
    options: SearchOptions,
    scoring: Scoring,
    depth: int,
    encodings: DocumentEncodings | None = None,
) -> SearchOptions:
    """The search that finds the wanted share of the exact search's best `depth` documents with the
    least work: `options` with a value for every key that they leave "auto".

    It is the exact search where all is open (but under "impute") and that is as little work, or
    nothing else is known to find enough. Where the user's own values cannot reach the recall, those
    that come closest are taken. A choice is kept with the index, and made again after a change.

    Args:
        neighbours: with an inverted file, unless `probes` is None; encodings: under "fde".
    """
    sample = Sample(store.directory)
    made_of = {
        "search": asdict(options),
        "depth": depth,
        "scoring": repr(scoring),
        "index": [store.header["fingerprint"], store.header["revision"]],
        "sample": sample.made_of,
    }
    path = store.directory / _PLANS
    with reading(f"{path}"):
        plans = read_sealed(path)["plans"] if path.is_file() else []
        plans = [plan for plan in plans if plan["made_of"]["index"] == made_of["index"]]
        for plan in plans:
            if plan["made_of"] == made_of:
                found = replace(options, **plan["chosen"])
                if found.open_keys or found.mode not in (options.mode, "exact"):
                    raise ValueError("must choose what is open, or the exact search")
                return found
    choice = _Planner(store, neighbours, encodings, options, scoring, depth).choose(sample.read())
    print(_describe(choice, options, depth))
    with suppress(OSError):  # a folder that cannot be written: the next search plans again
        write_sealed(path, {"plans": [*plans, {"made_of": made_of, **choice._asdict()}]}, indent=1)
    return replace(options, **choice.chosen)


class _Choice(NamedTuple):
    """Options that were chosen, and on how many queries; the recall there, less its standard error,
    and the work as a share of the exact search's."""

    chosen: dict[str, Any]
    queries: int = 0
    recall: float = 1.0
    work: float = 1.0


_EXACT = _Choice({"mode": "exact"})


def _describe(choice: _Choice, options: SearchOptions, depth: int) -> str:
    wanted = f"model.search.recall={options.recall}: {choice.chosen.get('mode', options.mode)}"
    values = "".join(f" {k}={v}" for k, v in choice.chosen.items() if k != "mode")
    if not choice.queries:
        return f"{wanted} search{values}, as nothing could be saved or measured"
    if "mode" in choice.chosen:
        return f"{wanted} search, which nothing that finds as much of its best {depth} undercuts"
    most = "" if choice.recall >= options.recall else ", the most that was reached"
    return (
        f"{wanted} search{values} finds {choice.recall:.3f} of the exact search's best {depth} "
        f"({choice.queries} queries) for {choice.work:.2f} of its work{most}"
    )


@dataclass
class _Planner:
    store: TokenStore
    neighbours: TokenNeighbours
    encodings: DocumentEncodings | None
    options: SearchOptions
    scoring: Scoring
    depth: int

    def choose(self, sample: list[TokenVectors]) -> _Choice:
        """The least work that reaches the recall, else what comes closest to it."""
        options = self.options
        kept = options.keep_query == options.keep_document == 1
        is_open = options.open_keys == OPEN_KEYS[options.mode]
        may_be_exact = options.mode != "impute" and is_open and kept
        length = sum(map(len, sample)) / max(1, len(sample))
        exact_work = self.store.n_tokens * length * _SIMILARITY
        pointless = exact_work <= _SEARCH or options.recall == 1 or self._live() <= self.depth
        if may_be_exact and (pointless or not sample):
            return _EXACT
        if not sample:
            usual = {"neighbours": min(2000, self.neighbours.count), "probes": 64, "refine": None}
            return _Choice({key: usual[key] for key in options.open_keys})
        sample = sample[: max(_LEAST_SAMPLE, int(_EXACT_SECONDS * 1e6 / exact_work))]
        best = _Choice({}, recall=-1.0)
        for found in self._measure(sample, exact_work):
            enough = [choice.recall >= options.recall for choice in (found, best)]
            cheaper, closer = found.work < best.work, found.recall > best.recall
            if enough[0] > enough[1] or (cheaper if all(enough) else closer and not any(enough)):
                best = found
        if may_be_exact and (best.recall < options.recall or best.work >= 1):
            return _EXACT._replace(queries=best.queries)
        return best

    def _live(self) -> int:
        return int(self.store.live.sum())

    def _measure(self, sample: list[TokenVectors], exact_work: float) -> Iterator[_Choice]:
        """What every setting finds, at the least `refine` that finds enough."""
        wanted = self._exact(sample)
        if self.encodings is not None:
            places, read = self.encodings.places(sample, wanted), _ENCODED * self.encodings.numbers
            yield self._refined({}, places, _SEARCH + read, sample, exact_work)
            return
        most = self.neighbours.count
        tried = [k for k in NEIGHBOURS if k <= most * _MOST_NEIGHBOURS]
        sizes = self._grid("neighbours", tried or [min(NEIGHBOURS[0], most)])
        for probes in self._grid("probes", PROBES):
            needed, work = np.zeros((len(sizes), *wanted.shape)), np.zeros(len(sizes))
            for row, query in enumerate(sample):
                query = keep_salient(query, self.options.keep_query)
                rescore = self.options.mode == "impute"
                found = self.neighbours.retrieve(query, max(sizes), probes, rescore)
                for place, size in enumerate(sizes):
                    part = Retrieved(*(p if p is None else p[:, :size] for p in found))
                    needed[place, row] = self._needed(part, query, wanted[row])
                    work[place] += self._work(part, probes) / len(sample)
            for place, size in enumerate(sizes):
                chosen = {"neighbours": size, "probes": probes}
                yield self._refined(chosen, needed[place], work[place], sample, exact_work)

    def _grid(self, key: str, values: Sequence[int]) -> list[Any]:
        """The user's own value, or those to try."""
        own = getattr(self.options, key)
        if own != AUTO:
            return [own]
        if key == "probes":  # more lists than there are, are all of them
            values = sorted({min(value, self.neighbours.n_lists) for value in values})
        return list(values)

    def _exact(self, sample: list[TokenVectors]) -> np.ndarray:
        """(n, depth) numbers of the documents that the exact search puts first."""
        depth, found = min(self.depth, self._live()), []
        for start in range(0, len(sample), _BATCH):
            scores = score_all(self.store, stack(sample[start : start + _BATCH]), self.scoring)
            found.append(scores.topk(depth, dim=0).indices.T)
        return torch.cat(found).numpy()

    def _needed(self, found: Retrieved, query: TokenVectors, wanted: np.ndarray) -> np.ndarray:
        """(depth,) how many candidates must be kept, best first, so that each wanted document is
        among them; infinite for what was not retrieved."""
        candidates = group_by_document(found)
        if not len(candidates.documents):  # lists whose documents are all deleted
            return np.full(wanted.shape, np.inf)
        if self.options.mode == "impute":
            missing = missing_similarity(found, self.options.imputation)
            lengths = self.store.counts[candidates.documents]
            terms, z = imputed_terms(found, candidates, missing, lengths, query.salience)
            scores = divide(terms.sum(1), z).numpy()
        else:
            scores = expected_relevance(found, candidates, query, self.scoring).numpy()
        documents = candidates.documents.numpy()
        place = np.minimum(np.searchsorted(documents, wanted), len(documents) - 1)
        return np.where(documents[place] == wanted, places_of(scores, place), np.inf)

    def _work(self, found: Retrieved, probes: int | None) -> float:
        """Of a search before it scores any document whole."""
        tokens, retrieved = len(found.owners), found.n_tokens
        if probes is None:
            looked_at = self.neighbours.count * _SIMILARITY
        else:
            looked_at = self.neighbours.count * probes / self.neighbours.n_lists * _CODE
        again = _READ + _READ_SIMILARITY if self.options.mode == "impute" else 0.0
        return _SEARCH + tokens * looked_at + retrieved * (_NEIGHBOUR + again)

    def _refined(
        self,
        chosen: dict[str, Any],
        needed: np.ndarray,
        work: float,
        sample: list[TokenVectors],
        exact_work: float,
    ) -> _Choice:
        """With the least `refine` that finds enough, or else the most."""
        count, options = len(sample), self.options
        sizes: Sequence[float]
        if options.mode == "impute":
            sizes = [self.depth]
        elif options.refine == AUTO:
            most = max(self.depth, self._live())
            sizes = np.geomspace(self.depth, most, 60).round().tolist()
        else:
            sizes = [np.inf if options.refine is None else options.refine]
        for size in sizes:
            shares = (needed <= size).mean(1)
            recall = shares.mean() - shares.std() / count**0.5
            if recall >= options.recall:
                break
        if options.mode != "impute":
            chosen = chosen | {"refine": None if options.refine is None else int(size)}
            scored = min(size, self._live()) * self.store.n_tokens / len(self.store)
            tokens = sum(map(len, sample)) / count
            work += scored * (_READ + tokens * _READ_SIMILARITY)
        chosen = {key: value for key, value in chosen.items() if key in options.open_keys}
        return _Choice(chosen, count, float(recall), work / exact_work)
