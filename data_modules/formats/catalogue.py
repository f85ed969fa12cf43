"""The formats of published collections as data: the files of each, and their readers."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from data_modules.formats import dpr, layout, one_table, readers, rows
from data_modules.formats.layout import Document, Layout
from data_modules.formats.named_pairs import read_negatives, read_pairs
from data_modules.formats.readers import (
    find_all,
    json_lines,
    missing,
    plain_name,
    split_of,
)
from data_modules.formats.rows import DPR, documents, queries, table_documents
from gr_mvdr.options import show


def _of_split(split: str, files: list[Path]) -> list[Path]:
    """The files whose `split_of` is the split, else those where it ends with the split.

    For "2019", "test2019" counts. A split that is a word must not follow a letter, and a number
    must not follow a digit: "latest" does not count for "test".
    """
    kind = r"(?<![^\W\d_])" if split[:1].isalpha() else r"(?<!\d)"
    ends = re.compile(rf".*{kind}{re.escape(split)}")
    exact = [file for file in files if split_of(file) == split]
    return exact or [file for file in files if ends.fullmatch(split_of(file))]


@dataclass(frozen=True)
class Format:
    """A format as data: its files of documents, queries and judgements, and their readers.

    A module with the functions `recognises` and `read` may also serve as a format.

    Attributes:
        reader: name and version of the reader; the name of a stored collection depends on it.
        signs: alternatives, each a list of signs. A path has this format if all signs of one
            alternative are met. A sign is met if a file matches one of its patterns, which are
            separated by blanks.
        documents: pattern → reader of the file of documents; the first pattern that matches counts.
        queries: patterns of the files of queries: one file of all queries, or one for each split.
        judgements: patterns of the files of judgements; a file's name contains its split.
        read_queries: reads the files of queries.
        read_judgements: reads one file of judgements.
        triples: pattern of a file of triples. They give negatives, and the training pairs if there
            are no training judgements.
        runs: patterns of candidates for the split that the file's name contains; if a split has
            several files, the first counts.
        candidates: possible names of a file of candidates for all splits except train; it replaces
            the runs.
    """

    reader: str
    signs: Sequence[Sequence[str]]
    documents: Mapping[str, Callable[[Path], Iterator[Document]]]
    queries: Sequence[str]
    judgements: Sequence[str]
    read_queries: Callable[..., Any] = rows.table_queries
    read_judgements: Callable[..., Any] = rows.trec_judgements
    triples: str = ""
    runs: Sequence[str] = ()
    candidates: Sequence[str] = ()

    def recognises(self, path: Path) -> bool:
        """Whether a folder or a file looks like the format, complete or not."""
        return any(all(find_all(path, *sign.split()) for sign in some) for some in self.signs)

    def read(self, path: Path) -> Layout:
        """The layout of a folder, or of a file if one file is enough.

        Raises:
            FileNotFoundError: a file of the format is missing.
            ValueError: two files have the same split; (on reading) a line breaks the format: the
                message names ``file:line`` and what was expected.
        """
        folder = path.parent if path.is_file() else path
        file, read = self.find_documents(path)
        qrels = readers.find_splits(folder, *self.judgements)
        triples = find_all(folder, self.triples)
        if not qrels and not triples:
            raise missing(folder, *self.judgements, *filter(None, [self.triples]))
        asking = {"train": triples[0], **qrels} if triples else qrels
        judged = {split: partial(self.read_judgements, file) for split, file in qrels.items()}
        if triples and "train" not in qrels:
            judged = {"train": partial(_positive_pairs, triples[0]), **judged}
        asked = _query_files(folder, asking, *self.queries)
        ranked = find_all(folder, *self.runs)
        runs = {split: run[0] for split in judged if (run := _of_split(split, ranked))}
        if given := find_all(folder, *self.candidates):
            runs = {split: given[0] for split in judged if split != "train"}
        return Layout(
            name=path.resolve().name if path.is_dir() else plain_name(path),
            files=tuple(dict.fromkeys([file, *asked, *qrels.values(), *triples, *runs.values()])),
            options={"reader": self.reader},
            documents=partial(read, file),
            queries=partial(self.read_queries, *asked),
            judgements=judged,
            candidates={s: partial(read_negatives, run) for s, run in runs.items()},
            negatives={
                plain_name(file).removesuffix(".tsv"): partial(read_negatives, file, triples=True)
                for file in triples
            },
        )

    def find_documents(self, path: Path) -> tuple[Path, Callable[[Path], Iterator[Document]]]:
        """The file of documents, and its reader.

        Raises:
            FileNotFoundError: no file matches.
            ValueError: several files match the same pattern.
        """
        for pattern, read in self.documents.items():
            files = find_all(path, pattern)
            if len(files) > 1:
                names = ", ".join(file.name for file in files)
                raise ValueError(
                    f"data.path={path}: expected one file {pattern}, found {names}: name one of "
                    f"them, data.path={files[0]}"
                )
            if files:
                return files[0], read
        raise missing(path, *self.documents)


def _query_files(folder: Path, splits: Mapping[str, Path], *patterns: str) -> tuple[Path, ...]:
    """The files with the queries of the judged splits.

    A file of all queries (``queries.all.tsv``) is used alone if there is one. Otherwise each split
    has its own file (see `_of_split`). Files of other splits are not read, since they may repeat
    queries of these splits.

    Raises:
        FileNotFoundError: a split has no file of queries.
    """
    files = find_all(folder, *patterns)
    if everything := [file for file in files if split_of(file) in ("", "all")]:
        return (min(everything, key=split_of),)
    named = {split: _of_split(split, files)[:1] for split in splits}
    for split, own in named.items():
        if not own:
            raise FileNotFoundError(
                f"data.path={folder}: the queries ({' or '.join(patterns)}) of the split "
                f"{split!r}, which {splits[split].name} judges, are missing"
            )
    return tuple(dict.fromkeys(chain(*named.values())))


def _positive_pairs(file: Path) -> Iterator[layout.Judgement]:
    """Yields the (query, document) pairs that triples call relevant, with grade 1."""
    for where, query, document, _, positive in read_pairs(file, triples=True):
        if positive:
            yield layout.Judgement(where, query, document, 1)


FORMATS: dict[str, Any] = {
    "beir": Format(
        reader="beir/2",
        signs=[["corpus.jsonl"]],
        documents={
            "corpus.jsonl": partial(documents, json_lines, id="_id", text="text", title="title")
        },
        queries=["queries.jsonl"],
        judgements=["qrels/*.tsv"],
        read_queries=partial(queries, json_lines, id="_id", text="text"),
        read_judgements=rows.beir_judgements,
    ),
    # The files that the scripts of gr_as_mvdr read.
    "wu": Format(
        reader="wu/1",
        signs=[["collection.tsv", "qrel.*.tsv triples.*.tsv"]],
        documents={"collection.tsv": partial(table_documents, order=DPR)},
        queries=["queries*.tsv"],
        judgements=["qrel.*.tsv"],
        triples="triples.*.tsv",
        candidates=["candidate.json", "candidates.json"],
    ),
    # NCI's NQ320k. Semantic ids are not read, since every system here makes its own.
    "nci": Format(
        reader="nci/1",
        signs=[["*_doc_newid.tsv"]],
        documents={"[Nn][Qq]_doc_content.tsv": rows.nci_documents},
        queries=["*_doc_newid.tsv"],
        judgements=["*_doc_newid.tsv"],
        read_queries=rows.nci_queries,
        read_judgements=rows.nci_judgements,
    ),
    "dpr": dpr,
    # MS MARCO's official files, and other files with TREC judgements.
    "trec": Format(
        reader="trec/1",
        signs=[["msmarco-docs.tsv"], ["collection.tsv", "*qrels*.tsv *qrels*.txt"]],
        documents={
            "msmarco-docs.tsv": partial(table_documents, order=rows.MSMARCO),
            "collection.tsv": partial(table_documents, order=("id", "text")),
        },
        queries=["*queries*.tsv"],
        judgements=["*qrels*.tsv", "*qrels*.txt"],
        runs=["*top100*", "*.trec", "*.run"],
    ),
    "table": one_table,
}


def read_layouts(
    paths: str | Sequence[str],
    format: str | None = None,
    columns: Mapping[str, str | int] | None = None,
) -> Layout:
    """Calls `read_layout` for a path; joins the collections of several paths (`join_layouts`).

    Raises:
        ValueError: two collections have the same name.
    """
    if isinstance(paths, str):
        return read_layout(paths, format, columns)
    read = [read_layout(path, format, columns) for path in paths]
    layouts = {one.name: one for one in read}
    if len(layouts) < len(read):
        names = ", ".join(one.name for one in read)
        raise ValueError(f"data.path: must be folders of different names, got {names}")
    return layout.join_layouts("+".join(layouts), layouts)


def read_layout(
    path: str | Path, format: str | None = None, columns: Mapping[str, str | int] | None = None
) -> Layout:
    """Finds the collection in a folder or file.

    Args:
        path: as the user typed it.
        format: one of `FORMATS`; None = the format that recognises the files. A file that can be a
            table is always read as one if it is given alone.
        columns: the columns of a table, see `one_table.read`.

    Raises:
        FileNotFoundError: there is no such path, or one of the format's files is missing.
        ValueError: the format is unknown; no format or several recognise the path; or `columns`
            is given for a format other than table.
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"data.format={format}: must be one of {', '.join(FORMATS)}")
    place = Path(path).expanduser()
    known = [format] if format else [n for n, reader in FORMATS.items() if reader.recognises(place)]
    if "table" in known:
        return one_table.read(place, columns)
    if columns:
        names = " or ".join(known) or "unknown"
        raise ValueError(f"data.columns={show(columns)}: must be null, the format is {names}")
    if len(known) == 1:
        return FORMATS[known[0]].read(place)
    if known:
        raise ValueError(f"data.path={path}: may be {' or '.join(known)}: say data.format=…")
    names = sorted(file.name for file in place.iterdir()) if place.is_dir() else [place.name]
    content = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "an empty folder"
    raise ValueError(
        f"data.path={path}: no known format in {content}; name it with data.format= "
        f"({', '.join(FORMATS)})"
    )
