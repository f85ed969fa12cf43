"""Token vectors of documents in Qdrant: its core within this process, or a server or a cluster.

A document is one point: its token vectors, their mean, and as payload its id, its text, its token
ids and its further fields, by which the engine filters. The point's id is a hash of the document's
id, so a document that is written twice is still one point. The collection's metadata records what
the collection was made from. The number of documents is written last, so a collection without this
number is incomplete.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.alignment import MaxSim
from gr_mvdr.fields import FIELDS_COLUMN, document_fields, json_values
from gr_mvdr.files import (
    check_fingerprint,
    new_folder,
    read_json,
    reading,
    temporary_folder,
    write_json,
)
from gr_mvdr.options import Rule, Size, part
from gr_mvdr.relevance import Scoring
from gr_mvdr.token_index.search import Documents, Proposal, Query, Searcher, SearchOptions
from gr_mvdr.token_index.store import encoded
from gr_mvdr.token_vectors import TokenVectors, stack

EDGE = "edge"  # the engine within this process
Engine = Annotated[
    str,
    Rule(
        "edge or http://HOST:PORT/COLLECTION",
        lambda text: text == "edge" or (text.startswith("http") and text.count("/") == 3),
    ),
]
TOKENS, MEAN, ID = "tokens", "mean", "id"  # the two vectors of a point, and a key of its payload
METADATA = "engine.json"
_BYTES = {"float32": 4, "float16": 2, "turbo8": 1}  # of a stored number
_BATCH = 32  # documents written at once: by default, a server takes requests of up to 32 MB
_ASKED = 1024  # points asked for at once
_SECONDS = 300  # that a server may take for an answer


@part("source")
class EngineIndex(Searcher):
    """The documents of one collection of a database, and their searches.

    The engine scores by MaxSim. A server is named `http://HOST:PORT/COLLECTION`; the address may
    end with parameters for creating the collection, such as
    `?shard_number=4&replication_factor=2`. QDRANT_API_KEY is sent if it is set. Only candidates and
    time are known of its costs.
    """

    def __init__(
        self,
        address: Engine = EDGE,
        dtype: Literal["float32", "float16", "turbo8"] = "float32",
        proposed: Size | None = None,
    ):
        """
        Args:
            address: "edge", an engine within this process, or that of a server's collection.
            dtype: stored type of vectors; "turbo8" stores a byte for each number.
            proposed: the number of documents, those whose mean vectors are nearest to the query's,
                that are scored by all their vectors; None = all documents.
        """
        super().__init__()
        self.address, self.dtype, self.stored = address, dtype, (address, dtype)
        self.place, url = f"model.search.source.address={address}", urlsplit(address)
        self.collection = url.path.strip("/")
        self.sizes = {key: int(value) for key, value in parse_qsl(url.query)}
        self.server = f"{url.scheme}://{url.netloc}"
        self.client: Any = None

    def check(self, options: SearchOptions, scoring: Scoring, salience: Any = None) -> None:
        """See `Searcher.check`."""
        super().check(options, scoring, salience)
        scores = scoring.alignment == MaxSim() and scoring.normaliser != "non_zero"
        if not scores or any((salience or {}).values()) or options.proposer is not None:
            rule = "needs search=exact and a score that is MaxSim, over Z or not, without salience"
            raise ValueError(f"{self.place}: {rule}")

    def connect(self, directory: Path) -> None:
        """Connects to the collection, and closes it again.

        Raises:
            ValueError: the engine's library is missing, or there is no server.
        """
        with self._connected(directory):
            pass
        self.close()

    @contextmanager
    def _connected(self, directory: str | Path) -> Iterator[None]:
        """Connects to the collection, which stays open if the block succeeds.

        After an error it is closed: a traceback may keep it for long, and one object opens a
        collection at a time.
        """
        self.close()
        try:
            with reading(self.place):
                from qdrant_client import QdrantClient, models

                self.api = models
                server: dict[str, Any] = {"url": self.server, "timeout": _SECONDS}
                server |= {"api_key": os.environ.get("QDRANT_API_KEY")}
                server |= {"check_compatibility": False}  # it asks twice where there is no server
                is_here = self.address == EDGE
                folder = Path(directory) / EDGE
                self.client = EdgeClient(folder) if is_here else QdrantClient(**server)
                self.exists = self.client.collection_exists(self.collection)
            yield
        except BaseException as error:
            self.close()
            if isinstance(error.__cause__ or error, ImportError):
                needed = f"{self.place}: needs pip install 'gr-mvdr[engine]'"
                raise ValueError(needed) from None
            raise

    def close(self) -> None:
        """Closes the collection; until then, a folder of Edge is locked."""
        if self.client is not None:
            self.client.close()
        self.client = None

    def build(self, documents: Documents, directory: str | Path | None = None) -> None:
        """Writes the documents that the collection lacks, so that a killed build goes on."""
        with self._connected(directory or temporary_folder("engine")):
            self._load(documents)

    def open(self, documents: Documents, directory: str | Path) -> None:
        """Opens a collection that holds these documents."""
        with self._connected(directory):
            self._check(documents, is_whole=True)

    def update(self, documents: Documents) -> None:
        """Makes the collection hold exactly these documents; encodes those that it lacks."""
        with reading(self.place):
            self._label(model=None)  # a change that is killed leaves a collection of no model
            if gone := self.number_of.keys() - {*documents.table["id"][:]}:
                self.client.delete(self.collection, _points(sorted(gone)))
            self._label(**_made_from(documents), documents=0)
        self._load(documents)

    def _check(self, documents: Documents, is_whole: bool) -> None:
        """Checks that the collection holds these documents, or creates it unless it is whole.

        Raises:
            ValueError: the collection was made from something else, or is not whole.
        """
        expected = _made_from(documents)
        self.dimension = expected["dimension"]
        self.hold(documents.table["id"][:])
        with reading(self.place):
            if not self.exists and not is_whole:
                self._create(expected)
            expected |= {"documents": len(self.names)} if is_whole else {}
            held: dict[str, Any] = {}
            if self.exists:
                held = self.client.get_collection(self.collection).config.metadata or {}
            check_fingerprint(self.place, held, expected)

    def _create(self, made_from: dict[str, Any]) -> None:
        api, shape = self.api, {"size": self.dimension, "distance": self.api.Distance.DOT}
        tokens = api.VectorParams(
            **shape,
            datatype=self.dtype,
            multivector_config=api.MultiVectorConfig(comparator="max_sim"),
            hnsw_config=api.HnswConfigDiff(m=0),  # a graph of all tokens would cost too much
        )
        vectors = {TOKENS: tokens, MEAN: api.VectorParams(**shape)}
        self.client.create_collection(self.collection, vectors, metadata=made_from, **self.sizes)
        self.exists = True

    def _load(self, documents: Documents) -> None:
        self._check(documents, is_whole=False)
        with reading(self.place):
            held: set[str] = set()
            for start in range(0, len(self.names), _ASKED):
                ids = _points(self.names[start : start + _ASKED])
                held |= {point.payload[ID] for point in self.client.retrieve(self.collection, ids)}
            missing = [name for name in self.names if name not in held]
            starts = range(0, len(missing), _BATCH)
            batches = {str(n): missing[n : n + _BATCH] for n in starts}
            for key, tokens in encoded(self.place, batches, documents.encode):
                counts = tokens.counts.tolist()
                columns = tokens.vectors.float().split(counts), tokens.ids.split(counts)
                table = documents.table.select([self.number_of[name] for name in batches[key]])
                points = []
                for row, vectors, ids in zip(table, *columns, strict=True):
                    both = {TOKENS: vectors.numpy(), MEAN: vectors.mean(0).numpy()}
                    payload = {ID: row["id"], "text": row["text"], "tokens": ids.tolist()}
                    payload[FIELDS_COLUMN] = json_values(document_fields(row))
                    (place,) = _points([row["id"]])
                    points.append(self.api.PointStruct(id=place, vector=both, payload=payload))
                self.client.upsert(self.collection, points)
            self._label(**_made_from(documents), documents=len(self.names))

    def _label(self, **metadata: Any) -> None:
        self.client.update_collection(self.collection, metadata=metadata)

    @property
    def bytes_per_token(self) -> float:
        """Bytes of a stored token vector."""
        return self.dimension * _BYTES[self.dtype]

    def exact_search(self) -> SearchOptions:
        """Returns the search that scores every document."""
        if self.options.source.get("proposed") is None:
            return self.options
        return replace(self.options, source={**self.options.source, "proposed": None})

    def vectors(self, names: Sequence[str]) -> TokenVectors:
        """Reads the vectors of documents, padded to (C, M, …)."""
        self.numbers(names)
        held = {}
        with reading(self.place):
            points = self.client.retrieve(self.collection, _points(names), True, [TOKENS])
            for point in points:
                ids = torch.tensor(point.payload["tokens"])
                vectors = torch.tensor(point.vector[TOKENS]).float()
                held[point.payload[ID]] = TokenVectors(vectors, ids >= 0, ids)
        return stack([held[name] for name in names])

    def relevance(self, query: TokenVectors, documents: Tensor, scoring: Scoring) -> Tensor:
        """Computes the relevance of documents (C,); see `Searcher.relevance`."""
        names = [self.names[number] for number in documents.tolist()]
        if not names:
            return torch.zeros(0)
        if scoring.alignment != MaxSim():
            return scoring(self.vectors(names).to(query.mask.device), query[None]).cpu()
        scores = self._ask(query, scoring, len(names), self.restriction(names))
        return torch.tensor([scores[name] for name in names])

    def restriction(self, among: Sequence[str]) -> Any:
        """Returns the engine's filter: on the fields if these tell the documents, else on ids.

        The engine's paths have no way to write a quotation mark in a field's name.
        """
        api, values = self.api, getattr(among, "values", None)
        if values is None or any('"' in name for name in values):
            return api.Filter(must=[api.HasIdCondition(has_id=_points(among))])
        fields = {
            ID if name == "id" else f'{FIELDS_COLUMN}."{name}"': v for name, v in values.items()
        }
        matches = {key: api.MatchAny(any=own) for key, own in fields.items()}
        return api.Filter(must=[api.FieldCondition(key=k, match=m) for k, m in matches.items()])

    def scored(
        self,
        queries: Sequence[Query],
        scoring: Scoring,
        options: SearchOptions,
        k: int,
        kept: Any = None,
    ) -> list[Proposal]:
        """Asks for the k best documents; of equal scores at rank k, the engine chooses."""
        proposed = min(options.source.get("proposed") or len(self.names), len(self.names))
        results, prefetch = [], None
        for query in queries:
            if proposed < len(self.names):
                mean = query.vectors.vectors.mean(0).cpu().numpy()
                prefetch = self.api.Prefetch(query=mean, using=MEAN, limit=proposed, filter=kept)
            scores = self._ask(query.vectors, scoring, k, kept, prefetch)
            self.costs.add(proposed, 0, 0.0)
            numbers, order = self.numbers([*scores]).sort()
            results.append(Proposal(numbers, torch.tensor([*scores.values()])[order]))
        return results

    def _ask(
        self, query: TokenVectors, scoring: Scoring, limit: int, only: Any, prefetch: Any = None
    ) -> dict[str, float]:
        """Asks the engine for document id → relevance, which is MaxSim divided by Z."""
        z, vectors = 1 if scoring.normaliser == "none" else len(query), query.vectors.cpu().numpy()
        how = {"limit": limit, "query_filter": only, "prefetch": prefetch, "with_payload": [ID]}
        how["search_params"] = self.api.SearchParams(exact=True)
        with reading(self.place), self.costs.timed():
            points = self.client.query_points(self.collection, vectors, TOKENS, **how).points
        return {point.payload[ID]: point.score / z for point in points}


def _made_from(documents: Documents) -> dict[str, Any]:
    """Returns what a collection's content depends on, its fields included."""
    made_from, table = dict(documents.made_from), documents.table
    if FIELDS_COLUMN in table.column_names:
        texts = sorted(f"{row['id']} {json_values(document_fields(row))}" for row in table)
        made_from[FIELDS_COLUMN] = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]
    return made_from


def _points(names: Iterable[str]) -> list[Any]:
    return [str(uuid5(NAMESPACE_URL, name)) for name in names]


class EdgeClient:
    """The methods of `QdrantClient` that an `EngineIndex` calls, on a folder of Qdrant Edge.

    Edge is the core of the server within this process. One process opens a folder at a time. A
    change is in its log when the call returns, so that a killed process loses none.
    """

    def __init__(self, folder: Path):
        import qdrant_edge

        self.api, self.folder, self.file = qdrant_edge, folder, folder / METADATA
        self.shard: Any = None
        if self.file.is_file():
            self.shard = qdrant_edge.EdgeShard.load(str(folder))

    def close(self) -> None:
        if self.shard is not None:
            self.shard.close()

    def collection_exists(self, name: str) -> bool:
        return self.file.is_file()

    def get_collection(self, name: str) -> Any:
        return SimpleNamespace(config=SimpleNamespace(metadata=read_json(self.file)))

    def create_collection(self, name: str, vectors: Mapping[str, Any], metadata: Any) -> None:
        api, tokens, size = self.api, vectors[TOKENS], vectors[TOKENS].size
        made = api.EdgeVectorParams(
            size,
            api.Distance.Dot,
            multivector_config=api.MultiVectorConfig(api.MultiVectorComparator.MaxSim),
            datatype=getattr(api.VectorStorageDatatype, tokens.datatype.value.capitalize()),
            hnsw_config=api.HnswIndexConfig(m=0, ef_construct=4, full_scan_threshold=0),
        )
        both = {TOKENS: made, MEAN: api.EdgeVectorParams(size, api.Distance.Dot)}
        with new_folder(self.folder, replace=True) as partial:
            api.EdgeShard.create(str(partial), api.EdgeConfig(vectors=both)).close()
            write_json(partial / METADATA, metadata)
        self.shard = api.EdgeShard.load(str(self.folder))

    def update_collection(self, name: str, metadata: Mapping[str, Any]) -> None:
        """Adds to the metadata once all points are on the disk, with the graph of their means."""
        self.shard.optimize()
        self.shard.flush()
        write_json(self.file, {**read_json(self.file), **metadata})

    def upsert(self, name: str, points: Iterable[Any]) -> None:
        new = [self.api.Point(one.id, one.vector, one.payload) for one in points]
        self.shard.update(self.api.UpdateOperation.upsert_points(new))

    def delete(self, name: str, ids: list[Any]) -> None:
        self.shard.update(self.api.UpdateOperation.delete_points(ids))

    def retrieve(
        self, name: str, ids: list[Any], payload: bool = True, vectors: Any = False
    ) -> list[Any]:
        return self.shard.retrieve(ids, payload, vectors)

    def query_points(self, name: str, query: np.ndarray, using: str, **how: Any) -> Any:
        api, proposed, only = self.api, None, self._filter(how["query_filter"])
        if prefetch := how["prefetch"]:
            mean = api.Query.Nearest(prefetch.query, using=prefetch.using)
            proposed = [api.Prefetch(prefetch.limit, mean, filter=only)]
        request = api.QueryRequest(
            limit=how["limit"],
            query=api.Query.Nearest(query, using=using),
            prefetches=proposed,
            filter=only,
            params=api.SearchParams(exact=how["search_params"].exact),
            with_payload=how["with_payload"],
        )
        return SimpleNamespace(points=self.shard.query(request))

    def _filter(self, only: Any) -> Any:
        api = self.api
        return only and api.Filter(
            must=[
                api.FieldCondition(one.key, match=api.MatchAny(one.match.any))
                if hasattr(one, "match")
                else api.HasIdCondition({*one.has_id})
                for one in only.must
            ]
        )
