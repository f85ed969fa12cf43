"""A finished run or an exported folder behind one class that takes plain texts.

r = Retriever.load("outputs/RUN")
r.search("who wrote …", k=10)        # documents and the shares of their scores
r.align("a query", "a document")     # S and A of the pair (Eq. 1); .plot() draws it
r.explain("a query", "d17")          # why d17 has its rank
"""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import torch
from tokenizers.models import WordLevel

from gr_mvdr.batch import PairBatch, batch_by_length, pad
from gr_mvdr.decoding.search_trace import Continuation
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.files import CONFIG, remove_with, temporary_folder
from gr_mvdr.options import Rule, Size, checked, make_printable
from gr_mvdr.texts import (
    Document,
    Documents,
    Queries,
    TextReader,
    TextTable,
    check_query,
    id_text,
    list_documents,
    list_queries,
    read_rows,
    text_without_title,
)
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_vectors import TokenVectors
from gr_mvdr.tokenizers import build_word_tokenizer, load_tokenizer, readable, token_strings
from models.base import Share, System, Table, pad_pairs
from models.export import SETTINGS, load_exported, read_texts
from models.finished_run import FinishedRun
from models.generative import GenerativeSystem
from models.multi_vector import MultiVector
from models.results import AlignedPair, EncodedText, Explained, Hit, Hits, count_of, find_snippet
from models.sentence_transformers import build_published, find_folder, is_model, read_published

if TYPE_CHECKING:
    import pandas

DEPTH = 100  # `explain` looks for a document among this many results
_SCORED = 64  # pairs scored at once
_CONTEXT = 8  # tokens shown on either side of a nearest token

_BY_ID = "a mapping from queries' ids; search(query, among=ids) takes a text"
ById = Annotated[Any, Rule(_BY_ID, lambda given: isinstance(given, Mapping))]
Verb = TypeVar("Verb", bound=Callable[..., Any])


def _locked(verb: Verb) -> Verb:
    """Lets one call run at a time, since several threads cannot share a model's modules."""

    @wraps(verb)
    def call(self: "Retriever", *arguments: Any, **named: Any) -> Any:
        with self._lock, torch.inference_mode():
            return verb(self, *arguments, **named)

    return call  # type: ignore[return-value]


class Retriever:
    """A trained system, its tokeniser and its documents, used with plain texts.

    Several threads may call its methods; each process must load its own. A method that the system
    does not support (a cross-encoder has no alignment) raises NotImplementedError.

    Attributes:
        system: the model.
        label: the system's name in tables.
        documents: a table of the indexed documents, `id`, `title`, `text` and `tokens`; None = no
            documents are indexed.
        data: the run's data module; None for an exported folder.
    """

    def __init__(
        self,
        system: System,
        reader: TextReader,
        documents: Table | None = None,
        label: str = "",
        data: Any = None,
    ):
        """
        Args:
            system: a system that has indexed the documents.
            reader: makes tables from texts, as for the system's training.
        """
        self.system, self.reader, self.data = system.eval(), reader, data
        self.label, self._lock = label or type(system).__name__, RLock()
        self._hold(documents)

    def _hold(self, documents: Table | None, number: int = 0) -> None:
        """Records these documents as indexed; all numeric ids so far are below `number`."""
        self.documents = documents
        names = () if documents is None else documents["id"][:]
        self._rows = {name: row for row, name in enumerate(names)}
        used = (int(name) for name in names if name.isdecimal())
        self._number = max(number, len(names), 1 + max(used, default=0))

    @classmethod
    def load(
        cls,
        folder: "str | os.PathLike[str]",
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        trust: bool = False,
        path: str | None = None,
    ) -> "Retriever":
        """Opens a finished run with its index, or a model without documents.

        Args:
            folder: a run's folder (`outputs/RUN`); or, without documents, what `analysis.export`
                wrote or a published dense model (a folder or a name on the hub).
            device: such as "cpu" or "cuda"; None = a GPU if there is one.
            dtype: the type of the weights, such as `torch.bfloat16`; None = fp32. A salience
                stays in fp32.
            trust: whether the folder may name classes from outside this library, whose code then
                runs.
            path: the place of a run's collection, if it is no longer where the run read it.

        Raises:
            FileNotFoundError: the folder does not exist, or the collection is not found.
            ValueError: the run is unfinished or damaged, or its documents are missing.
        """
        place = find_folder(os.fspath(folder))
        if (place / SETTINGS).is_file():
            reader = TextReader(load_tokenizer(place), **read_texts(place))
            retriever = cls(load_exported(place, trust), reader)
        elif not (place / CONFIG).is_file() and is_model(place):
            settings, projection = read_published(place)
            reader = TextReader(load_tokenizer(place, settings["tokenizer.prefix_space"]))
            system = build_published(settings, projection)
            retriever = cls(system, reader, label=Path(folder).name)
        else:
            run = FinishedRun.read("run", place, trust)
            system, data = run.restore(path)
            remove_with(system, index := temporary_folder("index"))
            run.open_index(system, data.documents, index)
            reader = TextReader(data.tokenizer, data.text_fields, data.cleaning, tuple(data.views))
            retriever = cls(system, reader, data.documents, run.provenance["system"], data)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        retriever.system.to(device=device, dtype=dtype)
        return retriever

    @property
    def tokenizer(self) -> Any:
        return self.reader.tokenizer

    def __len__(self) -> int:
        return len(self._rows)

    def document(self, name: str | int) -> dict[str, str]:
        """Returns an indexed document: its `id`, its `title` and its whole `text`."""
        row = self.documents[self._row(name)]
        text = text_without_title(row)
        return {"id": row["id"], "title": row.get("title") or "", "text": text}

    def __repr__(self) -> str:
        return f"Retriever of {self.label}, {count_of(len(self._rows), 'document')}"

    # Search -----------------------------------------------------------------------------------

    @_locked
    @checked
    def search(
        self, query: Queries, k: Size = 10, among: str | int | Iterable[str | int] | None = None
    ) -> Hits | list[Hits]:
        """Finds the k best documents of a query, with the shares of their scores.

        Args:
            query: a text, or several texts or a table with a column `query` or `text`, for which a
                list is returned. In a list, a blank one gets no hits and a warning.
            among: ids of the documents that can be found; None = all.
        """
        if isinstance(query, str):
            check_query(query)
        names = among if among is None else self._known(among)
        texts = {str(number): text for number, text in enumerate(list_queries(query))}
        ranking = self._rank(texts, lambda t: self.system.retrieve(t, k, names, with_shares=True))
        shares = ranking.shares or {}
        every = [self._hits(t, ranking.scores(n), shares.get(n, {})) for n, t in texts.items()]
        return every[0] if isinstance(query, str) else every

    def _hits(self, query: str, scores: dict[str, float], shares: dict[str, list[Share]]) -> Hits:
        hits = []
        for rank, (name, score) in enumerate(scores.items(), start=1):
            row, parts = self.document(name), self._written(shares[name])
            snippet = find_snippet(query, row["text"])
            hits.append(Hit(rank, name, row["title"], snippet, score, parts))
        return Hits(str(query) if isinstance(query, str) else "", hits)

    def _written(self, shares: Sequence[Share]) -> tuple[Share, ...]:
        return tuple(share._replace(text=self.text_of(share.tokens)) for share in shares)

    def text_of(self, tokens: tuple[int, ...] | str) -> str:
        """Returns tokens as text; see `gr_mvdr.tokenizers.readable`."""
        return readable(self.tokenizer, tokens, self.system.spell)

    def token_strings(self, tokens: Sequence[int]) -> list[str]:
        """Returns each token as a string; see `gr_mvdr.tokenizers.token_strings`."""
        return token_strings(self.tokenizer, tokens, self.system.spell)

    @_locked
    @checked
    def retrieve(self, queries: ById, k: Size = 100) -> Ranking:
        """Searches for many queries (id → text), without shares; a blank query finds nothing, with
        a warning.
        """
        return self._rank(queries, lambda table: self.system.retrieve(table, k))

    @_locked
    @checked
    def rerank(self, queries: ById, candidates: ById) -> Ranking:
        """Orders given indexed documents (query id → ids) for each query (id → text)."""
        given = {q: list(dict.fromkeys(self._known(candidates.get(q, ())))) for q in queries}
        asked = {name: text for name, text in queries.items() if given[name]}
        found = self._rank(asked, lambda table: self.system.rerank(table, self.documents, given))
        return Ranking({name: found.scores(name) for name in queries})

    def _rank(self, queries: Mapping[Any, str], search: Callable[[Table], Ranking]) -> Ranking:
        self._require_documents()
        asked = {}
        for name, text in queries.items():
            try:
                check_query(text)
                asked[name] = text
            except ValueError as error:  # it does not lose the others
                warnings.warn(f"query {name} finds nothing: {error}", stacklevel=5)
        if not asked:
            return Ranking({name: {} for name in queries})
        table = self.reader.queries(list(asked.values()))
        ranking = search(TextTable({**table.columns, "id": list(asked)}))
        return Ranking({name: ranking.scores(name) for name in queries}, ranking.shares)

    # Given pairs ------------------------------------------------------------------------------

    @_locked
    def align(self, query: str, document: Document, layer: int = -1) -> AlignedPair:
        """Returns S and A of a query and a document (Eq. 1), with their tokens.

        Args:
            document: the id of an indexed document, or else a text or a row with title and text.
            layer: a layer of a generative system's decoder; negative numbers count from the last.

        Raises:
            ValueError: the query is empty, the document has no identifier, or there is no such
                layer.
            NotImplementedError: the system's relevance is not a sum over token pairs.
        """
        layers = self.layers(query, document)
        if not -len(layers) <= layer < len(layers):
            raise ValueError(f"layer={layer}: must be ≥ {-len(layers)} and < {len(layers)}")
        return layers[layer]

    @_locked
    def layers(self, query: str, document: Document) -> list[AlignedPair]:
        """Returns what `align` returns for every layer; a multi-vector system has one."""
        title = make_printable(f"{self.label}: {query}")[:100]
        explained = self.system.explain(self._pairs([query], [document]))
        return [AlignedPair.of(layer, self.token_strings, title) for layer in explained.layers]

    @_locked
    def shares(self, query: str, document: Document) -> tuple[Share, ...]:
        """Splits the pair's score into parts; see `System.shares`, and `align` for arguments."""
        return self._written(self.system.shares(self._pairs([query], [document]))[0])

    @_locked
    def score(self, queries: Queries, documents: Documents) -> "pandas.DataFrame":
        """Returns the scores by which the system reranks, documents as rows, queries as columns.

        Args:
            documents: ids of indexed documents, or texts, rows or a table, as in `add`.
        """
        import pandas

        queries, rows, scores = list_queries(queries), list_documents(documents), []
        pairs = [(query, document) for document in rows for query in queries]
        for start in range(0, len(pairs), _SCORED):
            batch = self._pairs(*zip(*pairs[start : start + _SCORED], strict=True))
            scores += self.system.score(batch).tolist()
        names = [r.get("id", r["text"]) if isinstance(r, Mapping) else id_text(r) for r in rows]
        values = torch.tensor(scores, dtype=torch.float64).view(len(rows), len(queries))
        return pandas.DataFrame(values.numpy(), names, queries)

    @_locked
    def examine(self, look: Callable, queries: Sequence[str], documents: Sequence[Document]) -> Any:
        """Calls `look(system, pairs)`; no other method runs meanwhile, so it may hook modules."""
        return look(self.system, self._pairs(queries, documents))

    # Vectors ----------------------------------------------------------------------------------

    @_locked
    def encode_queries(self, texts: Queries) -> list[EncodedText]:
        """Encodes queries as token vectors Q; a generative system returns its encoder's states."""
        tokens = self.reader.queries(list_queries(texts))["tokens"]
        return self._encode("queries", [*map(self.system.cut_query, tokens)])

    @_locked
    def encode_documents(self, documents: Documents) -> list[EncodedText]:
        """Encodes documents as the token vectors D that an index stores (multi-vector systems)."""
        tokens = map(self._tokens, list_documents(documents))
        return self._encode("documents", [*map(self.system.cut_document, tokens)])

    def _encode(self, side: str, texts: list[list[int]]) -> list[EncodedText]:
        encoded = {}
        for places in batch_by_length([*map(len, texts)]):
            batch = [texts[place] for place in places]
            ids, mask = (part.to(self.system.device) for part in pad(batch))
            if isinstance(self.system, GenerativeSystem) and side == "queries":
                vectors = TokenVectors(self.system.encode(ids, mask), mask, ids)
            elif not isinstance(self.system, MultiVector):
                raise NotImplementedError(f"{self.label}: has no token vectors of {side}")
            elif side == "queries":
                vectors = self.system.encode_queries(ids, mask)
            else:
                vectors = self.system.encode_texts(batch)
            vectors = vectors.to("cpu").float()
            for row, place in enumerate(places):
                text = vectors.unpad(row)
                tokens = self.token_strings(text.ids.tolist())
                encoded[place] = EncodedText(tokens, text.vectors, text.salience)
        return [encoded[place] for place in range(len(texts))]

    @_locked
    @checked
    def nearest_tokens(self, query: str, token: int, k: Size = 20) -> "pandas.DataFrame":
        """Finds the k document tokens nearest to a query token, most similar first.

        Args:
            token: the place of the query token in `align(…).query_tokens`.

        Returns:
            A row for each token: `id` and `title` of its document, the text `before`, the `token`,
            the text `after`, and the `similarity` (inner product) of the two tokens' vectors.
        """
        import pandas

        index = self.system.searcher
        if not isinstance(index, TokenIndex):
            raise NotImplementedError(f"{self.label}: keeps no vectors of document tokens")
        ((_, encoded),) = self.system.encoded_queries(self.reader.queries([query]))
        if not 0 <= token < len(encoded):
            raise ValueError(f"token={token}: must be ≥ 0 and < {len(encoded)}, the query's tokens")
        vector = (encoded.vectors if encoded.keys is None else encoded.keys)[token]
        tokens = index.nearest(self.system.search.keep_document)
        similarities, rows = tokens.search(vector[None], min(k, len(tokens.rows)), None)
        nearest = []
        for row, similarity in zip(rows[0].tolist(), similarities[0].tolist(), strict=True):
            name, before, own, after = index.store.context(row, _CONTEXT)
            before, after = (self.tokenizer.decode(ids).strip() for ids in (before, after))
            (text,) = token_strings(self.tokenizer, own)
            nearest.append((name, self.document(name)["title"], before, text, after, similarity))
        columns = ["id", "title", "before", "token", "after", "similarity"]
        return pandas.DataFrame(nearest, columns=columns)

    @_locked
    def continuations(
        self, query: str, prefix: Sequence[int] = (), k: int = 20
    ) -> list[Continuation]:
        """Lists the tokens that a generative system may generate after a prefix (token ids), and
        the documents that they lead to.
        """
        if self.system.generates != "document":
            raise NotImplementedError(f"{self.label}: its search generates no identifiers")
        tokens = self.reader.queries([query])["tokens"][0]
        return [
            replace(one, text=self.text_of((one.token,)))
            for one in self.system.list_continuations(tokens, list(prefix), k)
        ]

    # Why --------------------------------------------------------------------------------------

    @_locked
    def explain(self, query: str, document: str | int) -> Explained:
        """Explains the rank of an indexed document, given by its id."""
        row, document = self._row(document), id_text(document)
        hits = self.search(query, DEPTH)
        ranked = [hit for hit in hits if hit.id == document]
        alone = ranked or self.search(query, 1, [document])
        aligns, path = self.system.alignable and self.system.covers(row), None
        if aligns and self.system.generates == "document":
            tokens = self.reader.queries([query])["tokens"][0]
            path = self.system.trace_search(tokens, row, query)
        return Explained(
            query=query,
            id=document,
            rank=ranked[0].rank if ranked else None,
            depth=DEPTH,
            hit=alone[0] if alone else None,
            best=hits[0] if hits else None,
            alignment=self.align(query, document) if aligns else None,
            path=path,
            text_of=self.text_of,
        )

    # The collection ---------------------------------------------------------------------------

    @_locked
    def index(self, documents: Documents) -> None:
        """Indexes these documents instead of all others.

        Args:
            documents: a text, several texts, ids → texts, rows, or a table of rows (pandas, polars,
                pyarrow, datasets). A row has a `text`, perhaps a `title` and an `id`, or their
                usual names (`gr_mvdr.texts.FIELDS`). A document without an id gets its number.
        """
        self._update(self.reader.documents(read_rows(documents)), self.system.index)

    @_locked
    def add(self, documents: Documents) -> list[str]:
        """Adds documents (see `index`) to the index; a multi-vector system encodes only these.

        Returns:
            The documents' ids in the given order. A document without an id gets a number that no
            document had before, not even one that was removed.
        """
        rows = read_rows(documents, self._number)
        names = [row["id"] for row in rows]
        for name in names:
            if name in self._rows:
                raise ValueError(f"document={name}: is indexed already, remove it first")
        columns, index = self.reader.documents(rows).columns, self.system.index
        if self.documents is not None:
            columns = {n: [*self.documents[n][:], *new] for n, new in columns.items()}
            index = self.system.update_index
        self._update(TextTable(columns), index, self._number)
        return names

    @_locked
    def remove(self, ids: str | int | Iterable[str | int]) -> None:
        """Removes documents from the index; NP decoding's output table keeps their rows."""
        gone = {self._rows[name] for name in self._known(ids)}
        if len(gone) == len(self._rows):
            raise ValueError(f"ids: must leave one of the {len(gone):,} documents")
        kept = [row for row in range(len(self._rows)) if row not in gone]
        self._update(self.documents.select(kept), self.system.update_index, self._number)

    def _update(self, table: Table, index: Callable[[Table], Any], number: int = 0) -> None:
        model = getattr(self.tokenizer, "backend_tokenizer", None)
        if model is not None and isinstance(model.model, WordLevel):  # the vocabulary is the words
            self.reader.tokenizer = build_word_tokenizer(table["text"][:])
            table = TextTable({**table[:], "tokens": self.reader.tokenise(table["text"][:])})
        with torch.random.fork_rng():
            torch.manual_seed(0)
            index(table)
        self._hold(table, number)

    # Texts and ids as the system reads them ---------------------------------------------------

    def _require_documents(self) -> None:
        if self.documents is None:
            raise ValueError(f"{self.label}: no documents are indexed, index(documents) does it")

    def _row(self, name: str | int) -> int:
        """Returns the row of an indexed document; raises ValueError for an unknown id."""
        self._require_documents()
        if (row := self._find(name)) < 0:
            raise ValueError(f"document={name}: no such id among the {len(self):,} documents")
        return row

    def _find(self, document: Document) -> int:
        """Returns the row of an indexed document, given by its id; −1 = it is not indexed."""
        name = id_text(document)
        return self._rows.get(name, -1) if isinstance(name, str) else -1

    def _known(self, ids: str | int | Iterable[str | int]) -> list[str]:
        """Returns ids as a list, if all are ids of indexed documents."""
        given = [*ids] if isinstance(ids, Mapping) else ids  # such as scores
        names = [id_text(name) for name in list_documents(given)]
        for name in names:
            self._row(name)
        return names

    def _pairs(self, queries: Sequence[str], documents: Sequence[Document]) -> PairBatch:
        """Makes a batch of pairs; the document number of a text that is not indexed is −1."""
        rows = list(map(self._find, documents))
        asked = map(self.system.cut_query, self.reader.queries(queries)["tokens"])
        given = map(self.system.cut_document, map(self._tokens, documents))
        return pad_pairs(self.system, list(asked), list(given), rows)

    def _tokens(self, document: Document) -> list[int]:
        """Returns the tokens of an indexed document, given by its id, or of a text.

        Raises:
            ValueError: the text is not indexed, and the system scores only indexed documents.
        """
        if (row := self._find(document)) >= 0:
            return self.documents[row]["tokens"]
        if not self.system.scores_texts:
            raise ValueError(
                f"document={document!r:.80}: must be the id of an indexed document for "
                f"{self.label}, add(documents) indexes a text"
            )
        return self.reader.documents(read_rows([document]))["tokens"][0]
