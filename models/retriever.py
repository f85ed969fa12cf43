"""One class for a person: a finished run or an exported folder that is asked in plain texts.

r = Retriever.load("outputs/RUN")
r.search("who wrote …", k=10)        # documents, and what made their scores
r.align("a query", "a document")     # S and A of the pair (Eq. 1); .plot() draws it
r.explain("a query", "d17")          # why d17 has its rank
"""

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar
from weakref import WeakSet

import torch

from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.files import remove_with, temporary_folder
from gr_mvdr.run_files import CONFIG
from gr_mvdr.texts import TextReader
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_vectors import TokenVectors
from gr_mvdr.tokenizers import load_tokenizer, token_strings
from models.base import Share, System, Table
from models.collection_tokens import find_continuations, find_nearest
from models.constrained_search import ConstrainedSearch
from models.export.folder import SETTINGS, load_exported, read_texts
from models.export.sentence_transformers import (
    build_published,
    find_folder,
    is_published,
    read_published,
)
from models.finished_run import FinishedRun, restore_run
from models.generative import GenerativeSystem
from models.given_texts import (
    Document,
    Documents,
    GivenTexts,
    IndexedDocuments,
    find_snippet,
    list_documents,
    read_rows,
)
from models.multi_vector import MultiVector
from models.reasons import add_path, describe_reason
from models.results import (
    AlignedPair,
    EncodedText,
    Explained,
    Hit,
    Hits,
    NearToken,
    NextToken,
    Scores,
    TextShare,
    count_of,
)

DEPTH = 100  # documents among which `explain` looks for a rank

Verb = TypeVar("Verb", bound=Callable[..., Any])
_alive: "WeakSet[Retriever]" = WeakSet()


def _renew_locks() -> None:
    """In a forked child: a thread of the parent may hold a lock, and is not there to release it."""
    for retriever in _alive:
        retriever._lock = RLock()


os.register_at_fork(after_in_child=_renew_locks)


def _locked(verb: Verb) -> Verb:
    """One call at a time: a model's parts are not made to be used by several threads."""

    @wraps(verb)
    def call(self: "Retriever", *arguments: Any, **named: Any) -> Any:
        with self._lock, torch.inference_mode():
            if self._closed:
                raise ValueError(f"Retriever of {self.label}: is closed, load it again")
            return verb(self, *arguments, **named)

    return call  # type: ignore[return-value]


class Retriever:
    """A trained system, its tokeniser and its documents, behind plain texts.

    Every verb can be called from several threads, and after a fork. A retriever cannot be pickled:
    each process that is started otherwise loads its own. A cross-encoder has no alignment: a verb
    that a system lacks raises NotImplementedError.

    `close`, also as the end of a `with` block, removes the temporary files of `load`; so does
    Python's garbage collector when it takes the retriever.

    Attributes:
        system: the model. label: its name in tables. documents: a table, None = none are indexed.
        data: the run's data module; None of an exported folder.
    """

    def __init__(
        self,
        system: System,
        reader: TextReader,
        documents: Table | None = None,
        label: str = "",
        data: Any = None,
        seed: int = 0,
    ):
        """
        Args:
            system: it has indexed the documents.
            reader: makes tables of texts as those were made that the system was trained on.
            seed: of what is drawn where documents are indexed.
        """
        self.system, self.reader, self.data = system.eval(), reader, data
        self.label, self.seed, self._lock = label or type(system).__name__, seed, RLock()
        self._given = GivenTexts(system, reader, documents, self.label)
        self._folder: Path | None = None  # of links to the index, and of what search needs besides
        self._closed = False
        _alive.add(self)

    @classmethod
    def load(
        cls,
        folder: "str | os.PathLike[str]",
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        tokenizer: Any = None,
        seed: int = 0,
        trust: bool = False,
    ) -> "Retriever":
        """Opens a finished run, with the index that it made, or a model without documents.

        Args:
            folder: `outputs/RUN`, what `train` returned; or a folder of `analysis.export`, or a
                published multi-vector model (its folder, or its name on the hub:
                `models.export.published`), which have no documents: give them some with `index`.
            device: "cpu", "cuda"; None = a GPU where there is one.
            dtype: of the weights, such as `torch.bfloat16`; None = as they were saved.
            tokenizer: a tokeniser, or the path of one, in place of the folder's own.
            seed: of what is drawn where documents are indexed.
            trust: whether the folder may name classes that are not this library's: they run.

        Raises:
            FileNotFoundError: there is no such folder; ValueError: the run in it is unfinished or
                damaged, or its documents are no longer there.
        """
        retriever = cls._open(os.fspath(folder), trust)
        if tokenizer is not None:
            own = load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
            retriever.reader.tokenizer = own
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        retriever.system.to(device=device, dtype=dtype)
        retriever.seed = seed
        return retriever

    @classmethod
    def _open(cls, name: str, trust: bool) -> "Retriever":
        path = find_folder(name)
        if (path / SETTINGS).is_file():
            reader = TextReader(load_tokenizer(path), **read_texts(path))
            return cls(load_exported(path, trust), reader)
        if not (path / CONFIG).is_file() and is_published(path):
            published = read_published(path)
            prefix_space = published.settings["tokenizer.prefix_space"]
            reader = TextReader(load_tokenizer(path, prefix_space))
            return cls(build_published(published), reader, label=Path(name).name)
        return cls._finished(path, trust)

    @classmethod
    def _finished(cls, path: Path, trust: bool) -> "Retriever":
        run = FinishedRun.read("run", path, trust)
        system, data = restore_run(path, trust=trust)
        folder = temporary_folder("index")
        remove_with(system, folder)
        run.open_index(system, data.documents, folder)
        reader = TextReader(data.tokenizer, data.text_fields, data.cleaning, tuple(data.views))
        retriever = cls(system, reader, data.documents, run.provenance["system"], data)
        retriever._folder = folder
        return retriever

    def close(self) -> None:
        """Removes the temporary files; no verb can be called afterwards."""
        with self._lock:
            self._closed = True
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Retriever":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        rule = "cannot be pickled or copied, call Retriever.load(folder) in each process"
        raise TypeError(f"Retriever of {self.label}: {rule}")

    @property
    def paradigm(self) -> str:
        return self.system.paradigm

    @property
    def tokenizer(self) -> Any:
        return self.reader.tokenizer

    @property
    def documents(self) -> Table | None:
        """The indexed documents: `id`, `title`, `text`, `tokens`; None without any."""
        found = self._given.documents
        return None if found is None else found.table

    def read(self, name: str) -> tuple[str, str]:
        """Title and text of an indexed document, by its id."""
        return self._given.indexed.read(name)

    def __repr__(self) -> str:
        return (
            f"Retriever of {self.label}, {count_of(len(self._given.documents or ()), 'document')}"
        )

    # Search -----------------------------------------------------------------------------------

    @_locked
    def search(
        self, query: str | Sequence[str], k: int = 10, among: Iterable[str] | None = None
    ) -> Hits | list[Hits]:
        """The k best documents of a query, and what each of its parts gave to their scores.

        Args:
            query: a text, or several (then a list is returned).
            among: ids of the documents that can be found; None = all.

        Raises:
            ValueError: an empty query, k below 1, an unknown id, or no documents are indexed.
        """
        texts = [query] if isinstance(query, str) else list(query)
        if k < 1:
            raise ValueError(f"k={k}: must be ≥ 1")
        indexed = self._given.indexed
        among = None if among is None else [indexed.known(name) for name in among]
        found, shares = self.system.retrieve_with_shares(self._given.queries(texts), k, among)
        every = []
        for number, text in enumerate(texts):
            own, scores = shares[str(number)], found.scores(str(number))
            rows = enumerate(scores.items(), start=1)
            hits = tuple(self._hit(text, rank, *row, own[row[0]]) for rank, row in rows)
            every.append(Hits(text, hits))
        return every[0] if isinstance(query, str) else every

    @_locked
    def retrieve(self, queries: dict[str, str], k: int = 100) -> Ranking:
        """`search` for many queries, id → text, without shares; one without words finds nothing."""
        return self._given.rank(queries, lambda table: self.system.retrieve(table, k))

    @_locked
    def rerank(self, queries: dict[str, str], candidates: dict[str, list[str]]) -> Ranking:
        """Indexed documents, query id → ids, ordered by `score`; one that has none is left out."""
        return self._given.rerank(queries, candidates)

    def _hit(self, query: str, rank: int, name: str, score: float, shares: list[Share]) -> Hit:
        title, text = self._given.indexed.read(name)
        parts = tuple(TextShare(self.text_of(s.tokens), s.value, s.view) for s in shares)
        return Hit(rank, name, title, find_snippet(query, text), score, parts)

    def text_of(self, tokens: tuple[int, ...] | str) -> str:
        """A share's tokens as they are written: one as the tokeniser has it, several as a text."""
        if isinstance(tokens, str):
            return tokens
        if len(tokens) == 1 or max(tokens) >= len(self.tokenizer):
            return " ".join(token_strings(self.tokenizer, tokens))
        return self.tokenizer.decode(list(tokens)).strip()

    # Given pairs ------------------------------------------------------------------------------

    @_locked
    def align(self, query: str, document: Document, layer: int = -1) -> AlignedPair:
        """S and A of a query and a document (Eq. 1), with their tokens.

        Args:
            document: the id of an indexed document, else a text, or a row with title and text.
            layer: of a generative system's decoder; negative counts from the last.

        Raises:
            ValueError: an empty query, a document that has no identifier, or no such layer.
            NotImplementedError: the system's relevance is no sum over token pairs.
        """
        batch = self._given.pairs([query], [document])
        generative = isinstance(self.system, GenerativeSystem)
        if not isinstance(layer, int) or not (generative or layer in (-1, 0)):
            rule = "a whole number" if generative else "-1 or 0: there are no decoder layers"
            raise ValueError(f"layer={layer}: must be {rule}")
        pair = self.system.align(batch, layer) if generative else self.system.align(batch)
        names = ("similarity", "alignment", "normaliser", "relevance", "score")
        tensors = {name: getattr(pair, name).float().cpu() for name in names}
        rows, columns = pair.document_mask[0].cpu(), pair.query_mask[0].cpu()
        for name in ("similarity", "alignment"):
            tensors[name] = tensors[name][:, :, rows][..., columns]
        ids = pair.document_ids.cpu()[:, rows], pair.query_ids.cpu()[:, columns]
        for side, own in zip(("document", "query"), ids, strict=True):
            tensors |= {f"{side}_ids": own, f"{side}_mask": torch.ones_like(own, dtype=torch.bool)}
        return AlignedPair(
            **tensors,
            query_tokens=token_strings(self.tokenizer, ids[1][0].tolist()),
            document_tokens=token_strings(self.tokenizer, ids[0][0].tolist()),
            title=f"{self.label}: {query}"[:100],
        )

    @_locked
    def shares(self, query: str, document: Document) -> list[TextShare]:
        """What the pair's score is made of; see `align` for the arguments, `System.shares`."""
        found = self.system.shares(self._given.pairs([query], [document]))[0]
        return [TextShare(self.text_of(share.tokens), share.value) for share in found]

    @_locked
    def score(self, queries: str | Sequence[str], documents: Documents) -> Scores:
        """What the system reranks by, of every query with every document.

        Args:
            documents: ids of indexed documents, or texts, or rows with title and text.
        """
        queries = [queries] if isinstance(queries, str) else list(queries)
        rows = list_documents(documents)
        names = [row if isinstance(row, str) else row.get("text", "") for row in rows]
        return Scores(self._given.scores(rows, queries), names, queries)

    @_locked
    def examine(self, look: Callable, queries: Sequence[str], documents: Sequence[Document]) -> Any:
        """`look(system, pairs)`; meanwhile no other verb runs: it may hook into the modules."""
        return look(self.system, self._given.pairs(queries, documents))

    # Vectors ----------------------------------------------------------------------------------

    @_locked
    def encode_queries(self, texts: str | Sequence[str]) -> list[EncodedText]:
        """The token vectors Q of queries; of a generative system its encoder's states."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        sides = self._given.padded(self._given.queries(texts)["tokens"], "query")
        if isinstance(self.system, MultiVector):
            return self._encoded(self.system.encode_queries(*sides))
        if isinstance(self.system, GenerativeSystem):
            return self._encoded(TokenVectors(self.system.encode(*sides), sides[1], sides[0]))
        raise NotImplementedError(f"{self.label}: has no token vectors of queries")

    @_locked
    def encode_documents(self, documents: Documents) -> list[EncodedText]:
        """The token vectors D of documents, of a multi-vector system."""
        if not isinstance(self.system, MultiVector):
            raise NotImplementedError(f"{self.label}: has no token vectors of documents")
        tokens = [self._given.tokens(document) for document in list_documents(documents)]
        return self._encoded(self.system.encode_documents(*self._given.padded(tokens, "document")))

    def _encoded(self, texts: TokenVectors) -> list[EncodedText]:
        texts, tokenizer = texts.to("cpu").float(), self.tokenizer
        every = (texts.unpad(number) for number in range(len(texts)))
        named = ((token_strings(tokenizer, own.ids.tolist()), own) for own in every)
        return [EncodedText(names, own.vectors, own.salience) for names, own in named]

    @_locked
    def nearest_tokens(self, query: str, token: int, k: int = 20) -> list[NearToken]:
        """The collection's tokens nearest to one of `align(…).query_tokens`, by its place there."""
        index = getattr(self.system, "searcher", None)
        if not isinstance(index, TokenIndex):
            raise NotImplementedError(f"{self.label}: keeps no vectors of document tokens")
        ((_, found),) = self.system.encoded_queries(self._given.queries([query]))
        return find_nearest(index, found, token, k, self.tokenizer, lambda n: self.read(n)[0])

    @_locked
    def continuations(self, query: str, prefix: Sequence[int] = (), k: int = 20) -> list[NextToken]:
        """What a generative system would write after a prefix (token ids), and where it leads."""
        if not isinstance(self.system, GenerativeSystem):
            raise NotImplementedError(f"{self.label}: generates nothing")
        tokens = self._given.queries([query])["tokens"][0]
        return find_continuations(self.system, tokens, list(prefix), k, self.text_of)

    # Why --------------------------------------------------------------------------------------

    @_locked
    def explain(self, query: str, document: str) -> Explained:
        """Why a search ranks an indexed document where it does.

        Args:
            document: its id.

        Raises:
            ValueError: an empty query, or an unknown id.
        """
        self._given.indexed.known(document)
        every = self.search(query, DEPTH)
        rank = next((hit.rank for hit in every if hit.id == document), None)
        alone = every[rank - 1 : rank] if rank else self.search(query, 1, [document])
        hit = alone[0] if alone else None
        found = Explained(
            query=query,
            id=document,
            rank=rank,
            score=hit.score if hit else None,
            hit=hit,
            best=every[0] if every else None,
            alignment=self.align(query, document) if self._aligns(document) else None,
        )
        if isinstance(self.system, ConstrainedSearch) and self._aligns(document):
            tokens = self._given.queries([query])["tokens"][0]
            path = self.system.explain_search(tokens, self._given.indexed.rows[document], query)
            found = add_path(found, path, self.text_of, self.documents["id"])
        return replace(found, reason=describe_reason(found, DEPTH, self.text_of))

    def _aligns(self, document: str) -> bool:
        return self.system.alignable and self.system.covers(self._given.indexed.rows[document])

    # The collection ---------------------------------------------------------------------------

    @_locked
    def index(self, documents: Documents) -> None:
        """Indexes these documents in the place of all others."""
        self._update(self.reader.documents(read_rows(documents)), self.system.index)

    @_locked
    def add(self, documents: Documents) -> list[str]:
        """Adds documents to the index; a multi-vector system encodes these alone.

        Returns:
            Their ids in the given order: those that they came with, else new numbers.

        Raises:
            ValueError: an id is indexed already, or holds white space; a document has no text.
        """
        held = self._given.documents
        rows = read_rows(documents, taken=len(held or ()))
        table = self.reader.documents(rows)
        if held is None:
            self._update(table, self.system.index)
        else:
            self._update(held.with_rows(table), self.system.update_index)
        return [row["id"] for row in rows]

    @_locked
    def remove(self, ids: str | Iterable[str]) -> None:
        """Removes documents; an output table of NP decoding keeps the rows of their tokens.

        Raises:
            ValueError: an unknown id, or no document would be left.
        """
        table = self._given.indexed.without([ids] if isinstance(ids, str) else ids)
        self._update(table, self.system.update_index)

    def _update(self, table: Table, index: Callable[[Table], Any]) -> None:
        table = self._given.with_own_words(table)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            index(table)
        self._given.documents = IndexedDocuments(table)
