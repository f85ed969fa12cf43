"""A finished run or a saved model behind one class that takes plain texts.

r = Retriever.load("outputs/RUN")
r.search("who wrote …", k=10)        # documents and the shares of their scores
r.align("a query", "a document")     # S and A of the pair (Eq. 1); .plot() draws it
r.explain("a query", "d17")          # why d17 has its rank
"""

import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, wraps
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import torch

from gr_mvdr.batch import PairBatch, batch_by_length, pad
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.fields import (
    FIELDS_COLUMN,
    document_fields,
    field_columns,
    filter_table,
    find_matching,
)
from gr_mvdr.files import (
    CONFIG,
    check_file,
    new_folder,
    read_json,
    reading,
    remove_with,
    temporary_folder,
)
from gr_mvdr.options import Rule, Size, checked, make_printable
from gr_mvdr.passages import Passage, PassageOptions, Passages, document_ids, join_passages
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
from gr_mvdr.tokenizers import (
    WordTokenizer,
    build_word_tokenizer,
    load_tokenizer,
    readable,
    token_strings,
)
from models.base import Share, System, Table, find_backbone, pad_pairs
from models.export import export_model, upload
from models.generative import GenerativeSystem
from models.multi_vector import MultiVector
from models.results import AlignedPair, EncodedText, Explained, Hit, Hits, count_of, find_snippet
from models.saved_model import (
    SETTINGS,
    FinishedRun,
    make_reader,
    open_index,
    open_model,
    save_model,
    text_options,
)
from models.sentence_transformers import find_folder, is_model, open_published

if TYPE_CHECKING:
    import pandas

DEPTH = 100  # `explain` looks for a document among this many results
DOCUMENTS = "documents.parquet"  # beside a saved model
_SCORED = 64  # pairs scored at once


def _is_device(value: Any) -> bool:
    try:
        return bool(torch.device(value))
    except (RuntimeError, TypeError):
        return False


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value.is_floating_point


_BY_ID = "a mapping from queries' ids; search(query, among=ids) takes a text"
ById = Annotated[Any, Rule(_BY_ID, lambda given: isinstance(given, Mapping))]
Folder = Annotated[Any, Rule("a folder", lambda given: isinstance(given, str | os.PathLike))]
Device = Annotated[Any, Rule("a device of torch, such as cuda", _is_device)]
Dtype = Annotated[Any, Rule("a type of floating-point numbers, such as torch.bfloat16", _is_float)]
Ids = str | int | Iterable[str | int]
Layer = Annotated[int, Rule("a whole number", lambda layer: True)]  # a rule makes `checked` look
Verb = TypeVar("Verb", bound=Callable[..., Any])


def locked(verb: Verb) -> Verb:
    """Lets one call run at a time, since several threads cannot share a model's modules."""

    @wraps(verb)
    def call(retriever: "Retriever", *arguments: Any, **named: Any) -> Any:
        with retriever.lock, torch.inference_mode():
            return verb(retriever, *arguments, **named)

    return call  # type: ignore[return-value]


class Collection:
    """The ids of the documents that a system has indexed.

    Attributes:
        documents: id → row of the document, or of its first passage.
        rows: id → row of a document, and of a passage.
        number: larger than every numeric id so far.
    """

    def __init__(self, label: str, table: Table | None, number: int = 0):
        """
        Args:
            label: the system, which errors name.
            table: `id`, `title`, `text` and `tokens`; None = no documents are indexed.
            number: at least this is `number`.
        """
        self.label, self.is_empty = label, table is None
        self._table, names = table, () if table is None else table["id"][:]
        owners = () if table is None else document_ids(table)
        self.documents = {name: row for row, name in reversed([*enumerate(owners)])}
        self.rows = self.documents | {name: row for row, name in enumerate(names)}
        used = (int(name) for name in self.documents if name.isdecimal())
        self.number = max(number, len(self.documents), 1 + max(used, default=0))

    def require(self) -> None:
        """Raises ValueError unless documents are indexed."""
        if self.is_empty:
            raise ValueError(f"{self.label}: no documents are indexed, index(documents) does it")

    def find(self, document: Document) -> int:
        """Returns the row of an indexed document, given by its id; −1 = it is not indexed."""
        name = id_text(document)
        return self.rows.get(name, -1) if isinstance(name, str) else -1

    def row(self, name: str | int) -> int:
        """Returns the row of an indexed document; raises ValueError for an unknown id."""
        self.require()
        if (row := self.find(name)) < 0:
            raise ValueError(
                f"document={name}: no such id among the {len(self.documents):,} documents"
            )
        return row

    def known(self, ids: Ids) -> list[str]:
        """Returns ids as a list, if all are ids of indexed documents."""
        given = [*ids] if isinstance(ids, Mapping) else ids  # such as scores
        names = [id_text(name) for name in list_documents(given)]
        for name in names:
            if self.row(name) >= 0 and name not in self.documents:
                raise ValueError(f"document={name}: must be the id of a document, not of a passage")
        return names

    @cached_property
    def _filtered(self) -> Any:
        table = filter_table(self._table).take(sorted(self.documents.values()))
        names = sorted(self.documents, key=self.documents.__getitem__)
        return table.set_column(table.column_names.index("id"), "id", [names])

    def choose(self, among: Ids | None, where: Any) -> list[str] | None:
        """Returns the ids to which a search is restricted; see `Retriever.search`."""
        names = None if among is None else self.known(among)
        if where is None:
            return names
        self.require()
        matching = find_matching(self._filtered, where)
        return matching if names is None else sorted({*matching} & {*names})


def write_documents(documents: Table, file: Path) -> None:
    """Writes a table as Parquet."""
    import pyarrow
    from pyarrow import parquet

    columns = dict(documents[:])
    if typed := field_columns(columns.pop(FIELDS_COLUMN, [])):
        columns[FIELDS_COLUMN] = pyarrow.StructArray.from_arrays([*typed.values()], [*typed])
    parquet.write_table(pyarrow.table(columns), file)


def read_documents(file: Path) -> TextTable | None:
    """Reads what `write_documents` wrote; None = there is no such file.

    Raises:
        ValueError: the file is damaged.
    """
    from pyarrow import parquet

    if not file.exists():
        return None
    with reading(f"{file}: is damaged"):
        table = parquet.read_table(check_file(file), memory_map=True).to_pydict()
        if not {"id", "text", "tokens"} <= table.keys():
            raise ValueError("must have the columns id, text and tokens")
    return TextTable(table)


class Retriever:
    """A trained system, its tokeniser and its documents, used with plain texts.

    Several threads may call its methods; each process must load its own. A method that the system
    does not support (a cross-encoder has no alignment) raises NotImplementedError.

    Attributes:
        system: the model.
        label: the system's name in tables.
        reader: makes tables from texts, by the system's tokeniser.
        documents: a table of the indexed documents; None = no documents are indexed.
        collection: the same by their ids.
        data: the run's data module; None for another folder.
    """

    def __init__(
        self,
        system: System,
        reader: TextReader,
        documents: Table | None = None,
        label: str = "",
        data: Any = None,
        number: int = 0,
    ):
        """
        Args:
            system: a system that has indexed the documents.
            reader: makes tables from texts, as for the system's training.
            documents, number: see `Collection`.
        """
        self.system, self.reader, self.data = system.eval(), reader, data
        self.label, self.lock = label or type(system).__name__, RLock()
        self.system.passages = Passages(reader.passages, documents)
        self.documents, self.collection = documents, Collection(self.label, documents, number)

    @classmethod
    @checked
    def load(
        cls,
        folder: Folder,
        device: Device | None = None,
        dtype: Dtype | None = None,
        trust: bool = False,
        path: str | None = None,
    ) -> "Retriever":
        """Opens a finished run or what `save` wrote with its index, or a model without documents.

        Args:
            folder: a run's folder (`outputs/RUN`) or `save`'s; or, without documents, what
                `analysis.export` wrote or a published dense model (a folder or a name on the hub).
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
            with reading(f"{place}: cannot be loaded"):
                settings = read_json(place / SETTINGS)
                texts = settings.get("texts", {})
                if texts.get("passages"):
                    texts["passages"] = PassageOptions(**texts["passages"])
                reader = TextReader(load_tokenizer(place), **texts)
                documents, system = read_documents(place / DOCUMENTS), open_model(place, trust)
                own = documents, settings.get("label", ""), None, int(settings.get("number", 0))
        elif not (place / CONFIG).is_file() and is_model(place):
            system, own = open_published(place), (None, Path(folder).name)
            encoder = Path(find_backbone(system)[1].name_or_path)
            reader = TextReader(load_tokenizer(encoder), joined=system.template.joined)
        else:
            run = FinishedRun.read("run", place, trust)
            system, data = run.restore(path)
            reader, own = make_reader(data), (data.documents, run.provenance["system"], data)
        if own[0] is not None:
            remove_with(system, made := temporary_folder("index"))
            with reading(f"{place}"):
                open_index(system, own[0], place / "index", made, trust)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        system.to(device=device, dtype=dtype)
        return cls(system, reader, *own)

    def __len__(self) -> int:
        return len(self.collection.documents)

    def document(self, name: str | int) -> dict[str, Any]:
        """Returns an indexed document: its `id`, `title`, whole `text`, and its further fields.

        Of the id of a passage, its `text` is the passage.
        """
        row, name = self.documents[self.collection.row(name)], id_text(name)
        text = text_without_title(row)
        if row["id"] != name:
            parts = (self.collection.rows[part] for part in self.system.passages.of([name]))
            rows = map(self.documents.__getitem__, parts)
            text = join_passages((part["start"], text_without_title(part)) for part in rows)
        own = {"id": name, "title": row.get("title") or "", "text": text}
        return own | {n: value for n, value in document_fields(row).items() if n not in own}

    def __repr__(self) -> str:
        return f"Retriever of {self.label}, {count_of(len(self), 'document')}"

    # Saving -----------------------------------------------------------------------------------

    @locked
    @checked
    def save(self, folder: Folder) -> None:
        """Saves the system with its documents and their index to a new folder, for `load`.

        What `index`, `add` and `remove` did is kept. The folder holds the documents' texts.

        Raises:
            NotImplementedError: the system is a pipeline, whose stages are runs.
        """
        if self.system.paradigm == "pipeline":
            raise NotImplementedError(f"{self.label}: its stages are runs, each saves its own")
        index, place = self.system.searcher, Path(folder)
        is_copied = isinstance(index, TokenIndex)
        with new_folder(place) as partial:
            own = {"label": self.label, "number": self.collection.number}
            save_model(
                self.system, partial, self.reader.tokenizer, text_options(self.reader), **own
            )
            if self.documents is None:
                return
            write_documents(self.documents, partial / DOCUMENTS)
            if is_copied:  # not encoded again
                shutil.copytree(index.directory, partial / "index")
            else:
                self.system.index(self.documents, partial / "index")
                self.system.close()
        if not is_copied:  # the index has moved with its folder
            self.system.open_index(self.documents, place / "index")

    @locked
    @checked
    def save_pretrained(self, folder: Folder) -> None:
        """Saves the model alone to a new folder, as `analysis.export` does without a model card."""
        with new_folder(folder) as partial:
            export_model(self.system, partial, self.reader.tokenizer, text_options(self.reader))

    @locked
    def push_to_hub(self, name: str) -> str:
        """Publishes the model, without documents, on the Hugging Face hub; returns its address.

        Args:
            name: "USER/NAME", whose content becomes the model's; a new repository is public.

        Raises:
            ValueError: the hub cannot be reached or refuses.
        """
        folder = temporary_folder("push")
        own = self.reader.tokenizer, text_options(self.reader)
        export_model(self.system, folder, *own, publish=True)
        return upload(folder, name)

    # Search -----------------------------------------------------------------------------------

    @locked
    @checked
    def search(
        self,
        query: Queries,
        k: Size = 10,
        among: Ids | None = None,
        where: Any = None,
    ) -> Hits | list[Hits]:
        """Finds the k best documents of a query, with the shares of their scores.

        Args:
            query: a text, or several texts or a table with a column `query` or `text`, for which a
                list is returned. In a list, a blank one gets no hits and a warning.
            among: ids of the documents that can be found; None = all.
            where: restricts the search to documents by their fields: field → a value, or a list of
                values of which one must hold, or a predicate such as
                `pyarrow.compute.field("year") > 2020`.
        """
        if isinstance(query, str):
            check_query(query)
        names = self.collection.choose(among, where)
        texts = {str(number): text for number, text in enumerate(list_queries(query))}
        ranking = self._rank(texts, lambda t: self.system.retrieve(t, k, names, with_shares=True))
        every = [_hits(self, text, number, ranking) for number, text in texts.items()]
        return every[0] if isinstance(query, str) else every

    def text_of(self, tokens: tuple[int, ...] | str) -> str:
        """Returns tokens as text; see `gr_mvdr.tokenizers.readable`."""
        return readable(self.reader.tokenizer, tokens, self.system.spell)

    @locked
    @checked
    def retrieve(
        self, queries: ById, k: Size = 100, among: Ids | None = None, where: Any = None
    ) -> Ranking:
        """Searches for many queries (id → text), without shares; a blank query finds nothing, with
        a warning. `among` and `where` are those of `search`.
        """
        names = self.collection.choose(among, where)
        return self._rank(queries, lambda table: self.system.retrieve(table, k, names))

    @locked
    @checked
    def rerank(self, queries: ById, candidates: ById) -> Ranking:
        """Orders given indexed documents (query id → ids) for each query (id → text).

        A query without candidates has an empty ranking, with a warning.
        """
        known = self.collection.known
        given = {q: list(dict.fromkeys(known(candidates.get(q, ())))) for q in queries}
        for name in (name for name in queries if not given[name]):
            warnings.warn(f"query {name} has no candidates", stacklevel=4)
        asked = {name: text for name, text in queries.items() if given[name]}
        ranking = self._rank(asked, lambda table: self.system.rerank(table, self.documents, given))
        return Ranking({name: ranking.scores(name) for name in queries}, None, ranking.passages)

    def _rank(self, queries: Mapping[Any, str], search: Callable[[Table], Ranking]) -> Ranking:
        self.collection.require()
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
        scores = {name: ranking.scores(name) for name in queries}
        return Ranking(scores, ranking.shares, ranking.passages)

    # Given pairs ------------------------------------------------------------------------------

    @locked
    @checked
    def align(self, query: str, document: Document, layer: Layer = -1) -> AlignedPair:
        """Returns S and A of a query and a document (Eq. 1), with their tokens.

        Args:
            document: the id of an indexed document, or else a text or a row with title and text.
            layer: a layer of a generative system's decoder; negative numbers count from the last.

        Raises:
            ValueError: the query is empty, the document has no identifier, or there is no such
                layer.
            NotImplementedError: the system's relevance is not a sum over token pairs.
        """
        layers = align_layers(self, query, document)
        if not -len(layers) <= layer < len(layers):
            raise ValueError(f"layer={layer}: must be ≥ {-len(layers)} and < {len(layers)}")
        return layers[layer]

    @locked
    def shares(self, query: str, document: Document) -> tuple[Share, ...]:
        """Splits the pair's score into parts; see `System.shares`, and `align` for arguments."""
        return _named(self, self.system.shares(self.pairs([query], [document]))[0])

    @locked
    def score(self, queries: Queries, documents: Documents) -> "pandas.DataFrame":
        """Returns the scores by which the system reranks, documents as rows, queries as columns.

        Args:
            documents: ids of indexed documents, or texts, rows or a table, as in `add`.
        """
        import pandas

        queries, rows, scores = list_queries(queries), list_documents(documents), []
        pairs = [(query, document) for document in rows for query in queries]
        for start in range(0, len(pairs), _SCORED):
            batch = self.pairs(*zip(*pairs[start : start + _SCORED], strict=True))
            scores += self.system.score(batch).tolist()
        names = [r.get("id", r["text"]) if isinstance(r, Mapping) else id_text(r) for r in rows]
        values = torch.tensor(scores, dtype=torch.float64).view(len(rows), len(queries))
        return pandas.DataFrame(values.numpy(), names, queries)

    def pairs(self, queries: Sequence[str], documents: Sequence[Document]) -> PairBatch:
        """Makes a batch of pairs; the document number of a text that is not indexed is −1."""
        documents = list(map(self.find_passage, queries, documents))
        rows = list(map(self.collection.find, documents))
        asked = map(self.system.cut_query, self.reader.queries(queries)["tokens"])
        given = (self.system.cut_document(_tokens(self, document)) for document in documents)
        return pad_pairs(self.system, list(asked), list(given), rows)

    @locked
    def find_passage(self, query: str, document: Document) -> Document:
        """Returns the passage of an indexed document that has the best score; else `document`."""
        row, name = self.collection.find(document), id_text(document)
        if self.system.passages.options is None or row < 0 or self.documents[row]["id"] == name:
            return document
        best = self.rerank({"": query}, {"": [name]})
        return best.passage("", name) if best.scores("") else self.documents[row]["id"]

    @locked
    def encode_queries(self, texts: Queries) -> list[EncodedText]:
        """Encodes queries as token vectors Q; a generative system returns its encoder's states."""
        tokens = self.reader.queries(list_queries(texts))["tokens"]
        return _encode(self, "queries", [*map(self.system.cut_query, tokens)])

    @locked
    def encode_documents(self, documents: Documents) -> list[EncodedText]:
        """Encodes documents as the token vectors D that an index stores (multi-vector systems)."""
        tokens = [_tokens(self, document) for document in list_documents(documents)]
        return _encode(self, "documents", [*map(self.system.cut_document, tokens)])

    @locked
    def explain(self, query: str, document: str | int) -> Explained:
        """Explains the rank of an indexed document, given by its id."""
        self.collection.row(document)  # raises for an unknown id
        passage = self.find_passage(query, document)
        row = self.collection.row(passage)
        document = document_ids(self.documents)[row]
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
            alignment=self.align(query, passage) if aligns else None,
            path=path,
            text_of=self.text_of,
        )

    # The collection ---------------------------------------------------------------------------

    @locked
    def index(self, documents: Documents) -> None:
        """Indexes these documents instead of all others.

        Args:
            documents: a text, several texts, ids → texts, rows, or a table of rows (pandas, polars,
                pyarrow, datasets). A row has a `text`, perhaps a `title` and an `id`, or their
                usual names (`gr_mvdr.texts.FIELDS`). A document without an id gets its number.
        """
        self._update(self.reader.documents(read_rows(documents)), self.system.index)

    @locked
    def add(self, documents: Documents) -> list[str]:
        """Adds documents (see `index`) to the index; a multi-vector system encodes only these.

        Returns:
            The documents' ids in the given order. A document without an id gets a number that no
            document had before, not even one that was removed.
        """
        rows = read_rows(documents, self.collection.number)
        names = [row["id"] for row in rows]
        for name in names:
            if name in self.collection.documents:
                raise ValueError(f"document={name}: is indexed already, remove it first")
        columns, index = self.reader.documents(rows).columns, self.system.index
        if self.documents is not None:
            former = {FIELDS_COLUMN: [{}] * len(self.documents), **self.documents[:]}
            columns = {n: [*former[n], *new] for n, new in columns.items()}
            index = self.system.update_index
        self._update(TextTable(columns), index, self.collection.number)
        return names

    @locked
    def remove(self, ids: Ids) -> None:
        """Removes documents from the index; NP decoding's output table keeps their rows."""
        gone = {*self.collection.known(ids)}
        if len(gone) == len(self):
            raise ValueError(f"ids: must leave one of the {len(gone):,} documents")
        owners = enumerate(document_ids(self.documents))
        kept = self.documents.select([row for row, name in owners if name not in gone])
        self._update(kept, self.system.update_index, self.collection.number)

    def _update(self, table: Table, index: Callable[[Table], Any], number: int = 0) -> None:
        if isinstance(own := self.reader.tokenizer, WordTokenizer):  # its words are the documents'
            self.reader.tokenizer = build_word_tokenizer(table["text"][:], own.analyzer.language)
            table = TextTable({**table[:], "tokens": self.reader.tokenise(table["text"][:])})
        self.system.passages = Passages(self.reader.passages, table)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            index(table)
        self.documents, self.collection = table, Collection(self.label, table, number)


@locked
def align_layers(retriever: Retriever, query: str, document: Document) -> list[AlignedPair]:
    """Returns what `Retriever.align` returns for every layer; a multi-vector system has one."""
    title = make_printable(f"{retriever.label}: {query}")[:100]
    system, tokenizer = retriever.system, retriever.reader.tokenizer
    explained = system.explain(retriever.pairs([query], [document]))

    def strings(tokens: Sequence[int]) -> list[str]:
        return token_strings(tokenizer, tokens, system.spell)

    return [AlignedPair.of(layer, strings, title) for layer in explained.layers]


def _named(retriever: Retriever, shares: Sequence[Share]) -> tuple[Share, ...]:
    return tuple(share._replace(text=retriever.text_of(share.tokens)) for share in shares)


def _hits(retriever: Retriever, query: str, number: str, ranking: Ranking) -> Hits:
    hits = []
    for rank, (name, score) in enumerate(ranking.scores(number).items(), start=1):
        best = ranking.passage(number, name)
        row, shares = retriever.document(best), _named(retriever, ranking.shares[number][name])
        passage, text = None, row.pop("text")
        if ranking.passages:
            start = retriever.documents[retriever.collection.row(best)]["start"]
            passage = Passage(best, start, start + len(text))
        title, snippet = row.pop("title"), find_snippet(query, text)
        del row["id"]
        hits.append(Hit(rank, name, title, snippet, score, shares, row, passage))
    return Hits(str(query) if isinstance(query, str) else "", hits)


def _tokens(retriever: Retriever, document: Document) -> list[int]:
    """Returns the tokens of an indexed document, given by its id, or of a text.

    Raises:
        ValueError: the text is not indexed, and the system scores only indexed documents.
    """
    if (row := retriever.collection.find(document)) >= 0:
        return retriever.documents[row]["tokens"]
    if not retriever.system.scores_texts:
        raise ValueError(
            f"document={document!r:.80}: must be the id of an indexed document for "
            f"{retriever.label}, add(documents) indexes a text"
        )
    return retriever.reader.documents(read_rows([document]), splits=False)["tokens"][0]


def _encode(retriever: Retriever, side: str, texts: list[list[int]]) -> list[EncodedText]:
    system, encoded = retriever.system, {}
    for places in batch_by_length([*map(len, texts)]):
        batch = [texts[place] for place in places]
        ids, mask = (part.to(system.device) for part in pad(batch))
        if isinstance(system, GenerativeSystem) and side == "queries":
            vectors = TokenVectors(system.encode(ids, mask), mask, ids)
        elif not isinstance(system, MultiVector):
            raise NotImplementedError(f"{retriever.label}: has no token vectors of {side}")
        elif side == "queries":
            vectors = system.encode_queries(ids, mask)
        else:
            vectors = system.encode_texts(batch)
        vectors = vectors.to("cpu").float()
        for row, place in enumerate(places):
            text = vectors.unpad(row)
            tokens = token_strings(retriever.reader.tokenizer, text.ids.tolist(), system.spell)
            encoded[place] = EncodedText(tokens, text.vectors, text.salience)
    return [encoded[place] for place in range(len(texts))]
