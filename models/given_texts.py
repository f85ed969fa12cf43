"""Texts as a person gives them → what a system reads: ids, rows, tokens, pairs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from tokenizers.models import WordLevel
from torch import Tensor

from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.evaluation.bm25 import split_words
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.texts import TextReader, TextTable, check_id, text_without_title
from gr_mvdr.tokenizers import build_word_tokenizer
from models.base import System, Table

# Texts as a person has them: one, a list, id → text, or rows with id (or _id), title and text.
Document = str | Mapping[str, str]
Documents = Document | Sequence[Document] | Mapping[str, str]

LONGEST_QUERY = 4096  # words
_SNIPPET = 30  # words
_SCORED = 64  # pairs scored at once


class IndexedDocuments:
    """A table of documents whose rows are found by id.

    Attributes:
        table: with `id`, `title`, `text`, `tokens`, `title_tokens`.
        rows: id → its number in the table.
    """

    def __init__(self, table: Table):
        self.table = table
        self.rows = {name: row for row, name in enumerate(table["id"][:])}

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: Any) -> bool:
        return isinstance(name, str) and name in self.rows

    def __getitem__(self, name: str) -> dict[str, Any]:
        """A document's row.

        Raises:
            ValueError: there is no such id.
        """
        return self.table[self.rows[self.known(name)]]

    def known(self, name: str) -> str:
        """The id itself, if there is such a document; else ValueError."""
        if name not in self:
            raise ValueError(f"document={name}: no such id among the {len(self):,} documents")
        return name

    def read(self, name: str) -> tuple[str, str]:
        """Title and text of a document."""
        row = self[name]
        return row.get("title") or "", text_without_title(row)

    def with_rows(self, table: Table) -> TextTable:
        """A table of these documents and further ones.

        Raises:
            ValueError: an id is there already.
        """
        for name in table["id"]:
            if name in self:
                raise ValueError(f"document={name}: is indexed already, remove it first")
        return TextTable({n: [*self.table[n][:], *column] for n, column in table.columns.items()})

    def without(self, names: Iterable[str]) -> Table:
        """The table of the other documents.

        Raises:
            ValueError: there is no such id, or none would be left.
        """
        gone = {self.rows[self.known(name)] for name in names}
        if len(gone) == len(self):
            raise ValueError(f"ids: must leave one of the {len(self):,} documents")
        return self.table.select([row for row in range(len(self)) if row not in gone])


class GivenTexts:
    """Turns plain texts and ids into tables and batches of one system.

    Attributes:
        reader: makes tables of texts. documents: those that are indexed; None = none are.
    """

    def __init__(self, system: System, reader: TextReader, documents: Table | None, label: str):
        self.system, self.reader, self.label = system, reader, label
        self.documents = None if documents is None else IndexedDocuments(documents)

    @property
    def indexed(self) -> IndexedDocuments:
        """The indexed documents; ValueError if there are none."""
        if self.documents is None:
            raise ValueError(f"{self.label}: no documents are indexed, index(documents) does it")
        return self.documents

    def queries(self, texts: Sequence[str]) -> TextTable:
        """A table of queries, whose ids are their numbers.

        Raises:
            ValueError: a query is empty, too long, or no text.
        """
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"query={text!r}: must be a text with at least one word")
            if (words := len(text.split())) > LONGEST_QUERY:
                raise ValueError(f"query of {words:,} words: must have at most {LONGEST_QUERY:,}")
        return self.reader.queries(texts)

    def rank(self, queries: dict[str, str], search: Callable[[Table], Ranking]) -> Ranking:
        """What a search finds for queries, id → text; for one without words nothing.

        Args:
            search: takes a table of the others; of an endless one the first words count.
        """
        asked = {name: text for name, text in queries.items() if text.strip()}
        if not (len(self.indexed) and asked):
            return Ranking({name: {} for name in queries})
        words = [(text, text.split()) for text in asked.values()]
        table = self.reader.queries(
            [" ".join(w[:LONGEST_QUERY]) if len(w) > LONGEST_QUERY else text for text, w in words]
        )
        found = search(TextTable({**table.columns, "id": list(asked)}))
        return Ranking({name: found.scores(name) for name in queries})

    def rerank(self, queries: dict[str, str], candidates: dict[str, list[str]]) -> Ranking:
        """Indexed documents, query id → ids, as the system orders them.

        Raises:
            ValueError: there is no such document.
        """
        given = {name: list(dict.fromkeys(candidates.get(name, ()))) for name in queries}
        for document in set().union(*given.values()):
            self.indexed.known(document)
        asked = {name: text for name, text in queries.items() if given[name]}
        table = self.indexed.table
        found = self.rank(asked, lambda rows: self.system.rerank(rows, table, given))
        return Ranking({name: found.scores(name) for name in queries})

    def with_own_words(self, table: Table) -> Table:
        """The documents' table; where tokens are whole words, those of these documents."""
        model = getattr(self.reader.tokenizer, "backend_tokenizer", None)
        if model is None or not isinstance(model.model, WordLevel):
            return table
        self.reader.tokenizer = build_word_tokenizer(table["text"][:])
        return TextTable({**table[:], "tokens": self.reader.tokenise(table["text"][:])})

    def pairs(self, queries: Sequence[str], documents: Sequence[Document]) -> PairBatch:
        """The pairs as the system reads them; a document's number is −1 where it is a text."""
        asked = self.padded(self.queries(queries)["tokens"], "query")
        given = self.padded([self.tokens(d) for d in documents], "document")
        rows = self.documents.rows if self.documents is not None else {}
        index = [rows.get(d, -1) if isinstance(d, str) else -1 for d in documents]
        return PairBatch(*asked, *given, torch.tensor(index, device=self.system.device))

    def scores(self, documents: Sequence[Document], queries: Sequence[str]) -> Tensor:
        """(documents, queries) fp64 on the CPU: `System.score` of every pair."""
        pairs, found = [(q, d) for d in documents for q in queries], []
        for start in range(0, len(pairs), _SCORED):
            asked, given = zip(*pairs[start : start + _SCORED], strict=True)
            found.append(self.system.score(self.pairs(asked, given)).double().cpu())
        values = torch.cat(found) if found else torch.empty(0)
        return values.view(len(documents), len(queries))

    def padded(self, texts: list[list[int]], side: str) -> tuple[Tensor, Tensor]:
        """Ids and mask of texts as the system reads them, cut at its own limit, on its device."""
        template = self.system.template
        read = template.read_query if side == "query" else template.read_document
        limit = self.system.hparams.get(f"{side}_length") or template.least + max(map(len, texts))
        ids, mask = pad([read(text, limit) for text in texts])
        return ids.to(self.system.device), mask.to(self.system.device)

    def tokens(self, document: Document) -> list[int]:
        """The tokens of an indexed document by its id, else of a text.

        Raises:
            ValueError: the text has no identifier, and the system scores nothing else.
        """
        if self.documents is not None and document in self.documents:
            return self.documents[document]["tokens"]
        if not self.system.scores_texts:
            raise ValueError(
                f"document={document!r:.80}: {self.label} scores what it has indexed: must be the "
                "id of a document, add(documents) adds one"
            )
        return self.reader.documents(read_rows(document))["tokens"][0]


def read_rows(documents: Documents, taken: int = 0) -> list[dict[str, str]]:
    """Rows with `id`, `title` and `text`; texts without an id get their numbers.

    Args:
        taken: the first number that is free.

    Raises:
        ValueError: no document, one without text, two of one id, or an id with white space.
    """
    rows = [_read_row(item, taken + n) for n, item in enumerate(list_documents(documents))]
    ids = [row["id"] for row in rows]
    if not rows:
        raise ValueError("documents=[]: must hold at least one document")
    if len(set(ids)) < len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise ValueError(f"document={twice}: two documents have this id")
    return rows


def list_documents(documents: Documents) -> list[Document]:
    """A list of texts and rows."""
    if isinstance(documents, str):
        return [documents]
    if not isinstance(documents, Mapping):
        return list(documents)
    if "text" in documents:
        return [documents]
    return [{"id": name, "text": text} for name, text in documents.items()]


def _read_row(document: Document, number: int) -> dict[str, str]:
    row = {"text": document} if isinstance(document, str) else dict(document)
    found = {
        "id": row.get("id", row.get("_id", str(number))),
        "title": row.get("title") or "",
        "text": row.get("text") or "",
    }
    check_id("documents", "document", found["id"])
    if not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"document={found['id']}: title and text must be texts")
    if not (found["title"] + found["text"]).strip():
        raise ValueError(f"document={found['id']}: must have a text")
    return found


def find_snippet(query: str, text: str, words: int = _SNIPPET) -> str:
    """The passage of so many words that holds most different words of the query."""
    wanted, parts = set(split_words(query)), text.split()
    if len(parts) <= words:
        return " ".join(parts)
    found = [wanted.intersection(split_words(part)) for part in parts]
    starts = range(0, len(parts) - words + 1, max(1, words // 3))
    # Of equal passages the first: `max` keeps it.
    best = max(starts, key=lambda start: len(set().union(*found[start : start + words])))
    passage = " ".join(parts[best : best + words])
    return ("… " if best else "") + passage + ("" if best + words >= len(parts) else " …")
