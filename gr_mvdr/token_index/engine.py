"""Token vectors of documents in Qdrant: its core within this process, or a server or a cluster.

A document is one point: its token vectors, their mean, and as payload its id, its text and its
token ids. The point's id is a hash of the document's id, so a document that is written twice is
still one point. The collection's metadata records what the collection was made from. The number of
documents is written last, so a collection without this number is incomplete.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.alignment import MaxSim
from gr_mvdr.evaluation.ranking import SearchCosts, best_documents
from gr_mvdr.files import check_fingerprint, new_folder, read_json, reading, write_json
from gr_mvdr.measures import Measured, costs
from gr_mvdr.progress import track
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.search import AUTO, EDGE, SearchOptions
from gr_mvdr.token_index.store import Encode, encoded
from gr_mvdr.token_vectors import TokenVectors, stack

TOKENS, MEAN, ID = "tokens", "mean", "id"  # the two vectors of a point, and a key of its payload
METADATA = "engine.json"
_BYTES = {"float32": 4, "float16": 2, "turbo8": 1}  # of a stored number
_BATCH = 32  # documents written at once: by default, a server takes requests of up to 32 MB
_ASKED = 1024  # points asked for at once
_SECONDS = 300  # that a server may take for an answer
_REFINED = 10  # documents that the means propose for each wanted document under refine=auto


class EngineIndex:
    """The documents of one collection and their searches; takes the place of a `TokenIndex`.

    The engine scores by MaxSim. A document's number is its row in the table of documents. A server
    is named `http://HOST:PORT/COLLECTION`; the address may end with parameters for creating the
    collection, such as `?shard_number=4&replication_factor=2`. QDRANT_API_KEY is sent if it is set.

    Attributes:
        client: a `QdrantClient`, or an `EdgeClient` with the same methods.
        costs: running totals of all searches; only candidates and time are known for an engine.
    """

    def __init__(self, options: SearchOptions, directory: Path):
        """Connects to the collection that `options.engine` names.

        Args:
            directory: the folder of an engine within this process.

        Raises:
            ValueError: the engine's library is missing, or there is no server.
        """
        self.options, self.costs = options, SearchCosts()
        self.place, url = f"model.search.engine={options.engine}", urlsplit(options.engine)
        self.name, self.sizes = url.path.strip("/"), {k: int(v) for k, v in parse_qsl(url.query)}
        with reading(self.place), ExitStack() as opened:
            try:
                from qdrant_client import QdrantClient, models

                self.api = models
                server: dict[str, Any] = {"url": f"{url.scheme}://{url.netloc}"}
                server |= {"api_key": os.environ.get("QDRANT_API_KEY"), "timeout": _SECONDS}
                server |= {"check_compatibility": False}  # it asks twice where there is no server
                is_here = options.engine == EDGE
                self.client: Any = EdgeClient(directory) if is_here else QdrantClient(**server)
            except ImportError:
                needed = f"{self.place}: needs pip install 'gr-mvdr[engine]'"
                raise ValueError(needed) from None
            opened.callback(self.close)  # if the next line fails
            self.exists = self.client.collection_exists(self.name)
            opened.pop_all()

    def close(self) -> None:
        """Closes the collection; until then, a folder of Edge is locked."""
        self.client.close()

    def open(self, made_from: Mapping[str, Any], documents: Any, whole: bool = True) -> None:
        """Checks that the collection holds these documents, or creates it unless it must be whole.

        Args:
            made_from: "dimension", and the fingerprints "model" and "collection".
            documents: a table with `id` and `text`.

        Raises:
            ValueError: the collection was made from something else, or is not whole.
        """
        self.dimension, self.names = made_from["dimension"], documents["id"][:]
        self.rows = {name: row for row, name in enumerate(self.names)}
        expected = {**made_from, **({"documents": len(self.names)} if whole else {})}
        with reading(self.place):
            if not self.exists and not whole:
                self._create(dict(made_from))
            held = self.client.get_collection(self.name).config.metadata if self.exists else None
            check_fingerprint(self.place, held or {}, expected)

    def _create(self, made_from: dict[str, Any]) -> None:
        api, shape = self.api, {"size": self.dimension, "distance": self.api.Distance.DOT}
        tokens = api.VectorParams(
            **shape,
            datatype=self.options.dtype,
            multivector_config=api.MultiVectorConfig(comparator="max_sim"),
            hnsw_config=api.HnswConfigDiff(m=0),  # a graph of all tokens would cost too much
        )
        vectors = {TOKENS: tokens, MEAN: api.VectorParams(**shape)}
        self.client.create_collection(self.name, vectors, metadata=made_from, **self.sizes)
        self.exists = True

    def load(self, made_from: Mapping[str, Any], documents: Any, encode: Encode) -> None:
        """Writes the documents that the collection lacks, so that a killed load goes on."""
        self.open(made_from, documents, whole=False)
        with reading(self.place):
            held: set[str] = set()
            for start in range(0, len(self.names), _ASKED):
                ids = _points(self.names[start : start + _ASKED])
                held |= {point.payload[ID] for point in self.client.retrieve(self.name, ids)}
            missing = [name for name in self.names if name not in held]
            starts = range(0, len(missing), _BATCH)
            batches = {str(n): missing[n : n + _BATCH] for n in starts}
            for key, tokens in encoded(self.place, batches, encode):
                counts = tokens.counts.tolist()
                columns = tokens.vectors.float().split(counts), tokens.ids.split(counts)
                texts = documents.select([self.rows[name] for name in batches[key]])["text"]
                points = []
                for name, text, vectors, ids in zip(batches[key], texts, *columns, strict=True):
                    both = {TOKENS: vectors.numpy(), MEAN: vectors.mean(0).numpy()}
                    payload = {ID: name, "text": text, "tokens": ids.tolist()}
                    (place,) = _points([name])
                    points.append(self.api.PointStruct(id=place, vector=both, payload=payload))
                self.client.upsert(self.name, points)
            self._label(**made_from, documents=len(self.names))

    def update(self, made_from: Mapping[str, Any], documents: Any, encode: Encode) -> None:
        """Makes the collection hold exactly these documents; encodes those that it lacks."""
        with reading(self.place):
            self._label(model=None)  # a change that is killed leaves a collection of no model
            if gone := self.rows.keys() - {*documents["id"][:]}:
                self.client.delete(self.name, _points(sorted(gone)))
            self._label(**made_from, documents=0)
        self.load(made_from, documents, encode)

    def _label(self, **metadata: Any) -> None:
        self.client.update_collection(self.name, metadata=metadata)

    @property
    def bytes_per_token(self) -> float:
        """Bytes of a stored token vector."""
        return self.dimension * _BYTES[self.options.dtype]

    def planned(self, options: SearchOptions, scoring: Scoring, depth: int) -> SearchOptions:
        """See `TokenIndex.planned`; here nothing is chosen."""
        return options

    def storage_costs(self, options: SearchOptions) -> list[Measured]:
        """See `TokenIndex.storage_costs`; an engine does not tell what it reads."""
        return costs({"bytes_per_token": self.bytes_per_token})

    def numbers(self, document_ids: Sequence[str]) -> Tensor:
        """(C,) int64 the numbers of documents; ValueError if an id is not in the collection."""
        if unknown := [name for name in document_ids if name not in self.rows]:
            raise ValueError(f"{self.place}: document {unknown[0]!r} is not in it")
        return torch.tensor([self.rows[name] for name in document_ids], dtype=torch.int64)

    def vectors(self, documents: Tensor) -> TokenVectors:
        """Reads the vectors of documents (C,), padded to (C, M, …)."""
        names, held = [self.names[number] for number in documents.tolist()], {}
        with reading(self.place):
            for point in self.client.retrieve(self.name, _points(names), True, [TOKENS]):
                ids = torch.tensor(point.payload["tokens"])
                vectors = torch.tensor(point.vector[TOKENS]).float()
                held[point.payload[ID]] = TokenVectors(vectors, ids >= 0, ids)
        return stack([held[name] for name in names])

    def score(self, query: TokenVectors, documents: Tensor, scoring: Scoring) -> Tensor:
        """Computes the relevance (C,) fp32 of documents (C,) to a query; see `TokenIndex.score`."""
        names = [self.names[number] for number in documents.tolist()]
        self.costs.add(len(names), 0, 0.0)
        if not names:
            return torch.zeros(0)
        if scoring.alignment != MaxSim():
            return scoring(self.vectors(documents).to(query.mask.device), query[None]).cpu()
        only = self.api.Filter(must=[self.api.HasIdCondition(has_id=_points(names))])
        found = self._ask(query, scoring, limit=len(names), query_filter=only)
        return torch.tensor([found[name] for name in names])

    def search(
        self, queries: Sequence[Any], scoring: Scoring, options: SearchOptions, k: int
    ) -> dict[str, dict[str, float]]:
        """Finds the k best documents of queries: query id → document id → score, best first.

        Of documents with equal scores at rank k, the engine chooses those that are returned.

        Args:
            queries: pairs of an id and token vectors (N, …) without padding.
        """
        options.check(scoring)
        refine: Any = _REFINED * k if options.refine == AUTO else options.refine
        if options.mode == "exact" or refine is None:
            refine = len(self.names)
        results, prefetch = {}, None
        for name, query in track(queries, "searching"):
            if refine < len(self.names):
                mean = query.vectors.mean(0).cpu().numpy()
                prefetch = self.api.Prefetch(query=mean, using=MEAN, limit=refine)
            scores = self._ask(query, scoring, limit=k, prefetch=prefetch)
            self.costs.add(min(refine, len(self.names)), 0, 0.0)
            values = np.fromiter(scores.values(), np.float32)
            results[name] = best_documents(list(scores), values, k)
        return results

    def _ask(self, query: TokenVectors, scoring: Scoring, **how: Any) -> dict[str, float]:
        """Asks the engine for document id → relevance, which is MaxSim divided by Z."""
        z, vectors = 1 if scoring.normaliser == "none" else len(query), query.vectors.cpu().numpy()
        how["search_params"] = self.api.SearchParams(exact=True)
        with reading(self.place), self.costs.timed():
            found = self.client.query_points(self.name, vectors, TOKENS, with_payload=[ID], **how)
        return {point.payload[ID]: point.score / z for point in found.points}


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
        api, proposed, only = self.api, None, None
        if prefetch := how.get("prefetch"):
            mean = api.Query.Nearest(prefetch.query, using=prefetch.using)
            proposed = [api.Prefetch(prefetch.limit, mean)]
        if ids := how.get("query_filter"):
            only = api.Filter(must=[api.HasIdCondition({*ids.must[0].has_id})])
        request = api.QueryRequest(
            limit=how["limit"],
            query=api.Query.Nearest(query, using=using),
            prefetches=proposed,
            filter=only,
            params=api.SearchParams(exact=how["search_params"].exact),
            with_payload=how["with_payload"],
        )
        return SimpleNamespace(points=self.shard.query(request))
