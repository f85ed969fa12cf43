"""The formats of published collections as data: which files each has, and who reads them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from data_modules.builders import nq320k
from data_modules.formats import dpr, kilt, layout, passages, readers, rows
from data_modules.formats.layout import Asked, Document, Layout
from data_modules.formats.named_pairs import RANKING, RUN, TRIPLE, read_negatives, read_pairs
from data_modules.formats.readers import (
    find_all,
    json_lines,
    json_value,
    missing,
    plain_name,
    split_of,
)
from data_modules.formats.rows import DPR, documents, queries, table_documents


def _of_split(split: str, files: list[Path]) -> list[Path]:
    """The files whose names name just the split, else those that say more: "test2019" of "2019".

    "latest" is not of the split "test".
    """
    kind = r"(?<![^\W\d_])" if split[:1].isalpha() else r"(?<!\d)"
    ends = re.compile(rf".*{kind}{re.escape(split)}")
    exact = [file for file in files if split_of(file) == split]
    return exact or [file for file in files if ends.fullmatch(split_of(file))]


@dataclass(frozen=True)
class Format:
    """A format as data: which files it has, and how they are read.

    A module may be a format, too: it has `recognises` and `read`.

    Attributes:
        reader: name and version, part of what a stored collection is named after.
        signs: a folder is of this format if it has a file of every pattern in one of them.
        documents: pattern → reader; the one file of the first pattern that is there is read.
    """

    reader: str
    signs: Sequence[Sequence[str]]
    documents: Mapping[str, Callable[[Path], Iterator[Document]]]

    def recognises(self, path: Path) -> bool:
        """Whether a folder or a file looks like the format, complete or not."""
        return any(all(find_all(path, *sign.split()) for sign in some) for some in self.signs)

    def read(self, path: Path) -> Layout:
        """The collection in a folder, or in a file if one file is enough.

        Raises:
            FileNotFoundError: one of its files is missing.
            ValueError: two files are of one split; (on reading) a line breaks the format, named
                with ``file:line`` and what was expected.
        """
        raise NotImplementedError

    def find_documents(self, path: Path) -> tuple[Path, Callable[[Path], Iterator[Document]]]:
        """The file of documents, and its reader.

        Raises:
            FileNotFoundError: no file matches.
            ValueError: several match.
        """
        for pattern, read in self.documents.items():
            found = find_all(path, pattern)
            if len(found) > 1:
                names = ", ".join(file.name for file in found)
                raise ValueError(
                    f"data.path={path}: expected one file {pattern}, found {names}: name one of "
                    f"them, data.path={found[0]}"
                )
            if found:
                return found[0], read
        raise missing(path, *self.documents)


@dataclass(frozen=True)
class Judged(Format):
    """A format with documents, queries and judgements in files of their own.

    Attributes:
        queries: patterns of the files of queries: one of all, or one for each split.
        judgements: patterns of the files of judgements, one a split that the name names.
        read_queries, read_judgements: read one of them.
        triples: pattern: negatives, and training pairs where nothing else has any.
        runs: patterns: candidates of the split that the name names; of several the first.
        candidates: names of a file of candidates for every split but train.
        known_only: see `Layout`.
    """

    queries: Sequence[str]
    judgements: Sequence[str]
    read_queries: Callable[..., Any] = rows.table_queries
    read_judgements: Callable[..., Any] = rows.trec_judgements
    triples: str = ""
    runs: Sequence[str] = ()
    candidates: Sequence[str] = ()
    known_only: bool = False

    def read(self, path: Path) -> Layout:
        folder = _folder(path)
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
        if given := readers.find(folder, *self.candidates):
            runs = {split: given for split in judged if split != "train"}
        return Layout(
            name=_name(path),
            files=(file, *asked, *qrels.values(), *triples, *dict.fromkeys(runs.values())),
            options={"reader": self.reader},
            documents=partial(read, file),
            queries=partial(self.read_queries, *asked),
            judgements=judged,
            candidates={s: partial(read_negatives, run, RUN, RANKING) for s, run in runs.items()},
            negatives={
                plain_name(file).removesuffix(".tsv"): partial(read_negatives, file, TRIPLE)
                for file in triples
            },
            known_only=self.known_only,
        )


@dataclass(frozen=True)
class AskedTogether(Format):
    """A format whose lines hold a query and its documents.

    Attributes:
        splits: patterns of the files of queries, one a split (`find_splits`).
        asked: reads one of them, by its split.
        part: which queries of a split another file names ("dev_seen" of "dev"), by their ids or
            texts → where it names them; None = a split that is called so is like any other.
    """

    splits: Sequence[str]
    asked: Callable[[Path, str], Iterator[Asked]]
    part: Callable[[Path, str], Mapping[str, str]] | None = None

    def read(self, path: Path) -> Layout:
        file, read = self.find_documents(path)
        if not (found := readers.find_splits(_folder(path), *self.splits)):
            raise missing(path, *self.splits)
        whole_of = {split: re.sub("_(un)?seen$", "", split) for split in found if self.part}
        parts = {split: w for split, w in whole_of.items() if w != split and w in found}
        splits = {s: partial(self.asked, f, s) for s, f in found.items() if s not in parts}
        return layout.asked_layout(
            name=_name(path),
            files=(file, *found.values()),
            options={"reader": self.reader},
            documents=partial(read, file),
            splits=splits,
            parts={s: partial(self._part, splits[w], found[s], w) for s, w in parts.items()},
        )

    def _part(
        self, asked: Callable[[], Iterator[Asked]], file: Path, split: str
    ) -> Iterator[Asked]:
        wanted, found = self.part(file, split), set()
        for row in asked():
            if named := wanted.keys() & {row.id, row.text}:
                found |= named
                yield row
        for name, where in wanted.items():
            if name not in found:
                raise ValueError(f"{where}: the query {name[:60]!r} is not in the split {split!r}")


def _folder(path: Path) -> Path:
    return path.parent if path.is_file() else path


def _name(path: Path) -> str:
    return path.resolve().name if path.is_dir() else plain_name(path).removesuffix(".json")


def _query_files(folder: Path, splits: Mapping[str, Path], *patterns: str) -> tuple[Path, ...]:
    """The files with the queries of the judged splits.

    One file of all queries (``queries.all.tsv``) is enough; otherwise each split has its own, whose
    name may say more ("test2019" for "2019"). Files of other splits are not read: they may hold
    queries of these splits once more.

    Raises:
        FileNotFoundError: a split has none.
    """
    found = find_all(folder, *patterns)
    if everything := [file for file in found if split_of(file) in ("", "all")]:
        return (min(everything, key=split_of),)
    named = {split: _of_split(split, found)[:1] for split in splits}
    for split, own in named.items():
        if not own:
            raise FileNotFoundError(
                f"data.path={folder}: the queries ({' or '.join(patterns)}) of the split "
                f"{split!r}, which {splits[split].name} judges, are missing"
            )
    return tuple(dict.fromkeys(chain(*named.values())))


def _positive_pairs(file: Path) -> Iterator[layout.Judgement]:
    """The pairs of a query and a document that triples call relevant."""
    for where, query, document, _, positive in read_pairs(file, TRIPLE):
        if positive:
            yield layout.Judgement(where, query, document, 1)


def _genret_part(file: Path, split: str) -> dict[str, str]:
    """The ids of the queries at the places that an array holds."""
    places = json_value(file)
    if not isinstance(places, list) or not all(map(rows.is_place, places)):
        raise ValueError(f"{file}: expected an array of places in {split}.json")
    return {f"{split}-{place}": str(file) for place in places}


def _glen_part(file: Path, split: str) -> dict[str, str]:
    """The texts of the queries that a file repeats, as GLEN finds them."""
    return {asked.text: asked.where for asked in rows.glen_queries(file, split)}


# The first pattern of documents has the fullest texts.
FORMATS: dict[str, Any] = {
    "beir": Judged(
        reader="beir/2",
        signs=[["corpus.jsonl"]],
        documents={
            "corpus.jsonl": partial(documents, json_lines, id="_id", text="text", title="title")
        },
        queries=["queries.jsonl"],
        judgements=["qrels/{*}.tsv"],
        read_queries=partial(queries, json_lines, id="_id", text="text"),
        read_judgements=rows.beir_judgements,
    ),
    # The scripts of gr_as_mvdr.
    "wu": Judged(
        reader="wu/1",
        signs=[["collection.tsv", "qrel.*.tsv triples.*.tsv"]],
        documents={"collection.tsv": partial(table_documents, order=DPR)},
        queries=["queries*.tsv"],
        judgements=["qrel.*.tsv"],
        triples="triples.*.tsv",
        candidates=["candidate.json", "candidates.json"],
    ),
    # NQ320k as GenRet has it; ids are places.
    "genret": AskedTogether(
        reader="genret/1",
        signs=[["corpus_lite.json"]],
        documents={"corpus_lite.json": rows.genret_documents},
        splits=[*(f"{{{s}}}.json" for s in ("train", "dev", "test")), "{*}.json.{seen|unseen}"],
        asked=rows.genret_queries,
        part=_genret_part,
    ),
    # NQ320k as NCI has it. Semantic ids are not read: every system here makes its own.
    "nci": AskedTogether(
        reader="nci/1",
        signs=[["*_doc_newid.tsv"]],
        documents={
            **dict.fromkeys(["NQ_doc_content.tsv", "nq_doc_content.tsv"], rows.nci_documents),
            "nq_title_abs.tsv": rows.nci_abstracts,
        },
        splits=["nq_{*}_doc_newid.tsv", "{*}_doc_newid.tsv"],
        asked=rows.nci_queries,
    ),
    # A query with several relevant documents is there several times and is scored each time.
    "glen": AskedTogether(
        reader="glen/1",
        signs=[["GTQ_*.tsv"]],
        documents=dict.fromkeys(
            [f"DOC_*_{kind}.tsv" for kind in ("title+content", "collection", "corpus", "first64")],
            rows.glen_documents,
        ),
        splits=["GTQ_*_{*}.tsv"],
        asked=rows.glen_queries,
        part=_glen_part,
    ),
    "dsi_qg": AskedTogether(
        reader="dsi_qg/1",
        signs=[["*_DSI_train_data.json"]],
        documents={
            "*_corpus.tsv": partial(table_documents, order=DPR),
            "*_DSI_train_data.json": rows.dsi_qg_documents,
        },
        splits=["*_DSI_{train}_data.json", "*_DSI_{dev}_data.json"],
        asked=rows.dsi_qg_queries,
    ),
    # Ultron's (WebUltron) and DDRO's part of MS MARCO; the judgements are of the whole.
    "ultron": Judged(
        reader="ultron/1",
        signs=[["*docs-sents*.json"]],
        documents={
            "*docs-sents*.json": partial(
                documents, json_lines, id="docid|id", text="body|contents", title="title"
            )
        },
        queries=["*queries*.tsv"],
        judgements=["*qrels*.tsv"],
        known_only=True,
    ),
    "kilt": kilt,
    "dpr": dpr,
    # MS MARCO's own files, and others with TREC judgements.
    "trec": Judged(
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
    "nq": nq320k,
    "passages": passages,
}


def read_layouts(
    paths: str | Sequence[str],
    format: str | None = None,
    fields: Sequence[str | int] | None = None,
) -> Layout:
    """`read_layout` of a path, or of several, whose collections become one (`join_layouts`).

    Raises:
        ValueError: two of them have the same name.
    """
    if isinstance(paths, str):
        return read_layout(paths, format, fields)
    found = [read_layout(path, format, fields) for path in paths]
    layouts = {one.name: one for one in found}
    if len(layouts) < len(found):
        names = ", ".join(one.name for one in found)
        raise ValueError(f"data.path: must be folders of different names, got {names}")
    return layout.join_layouts("+".join(layouts), layouts)


def read_layout(
    path: str | Path, format: str | None = None, fields: Sequence[str | int] | None = None
) -> Layout:
    """Finds the collection in a folder or file.

    Args:
        path: as the user typed it.
        format: one of `FORMATS`; None = the one that recognises the files; one file of texts alone
            is plain passages.
        fields: of plain passages, see `passages.read`.

    Raises:
        FileNotFoundError: there is no such path, or one of the format's files is missing.
        ValueError: an unknown format; none or several recognise the path; `fields` of another
            format.
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"data.format={format}: must be one of {', '.join(FORMATS)}")
    place = readers.given_path("path", str(path), "folder or file")
    found = [format] if format else [n for n, reader in FORMATS.items() if reader.recognises(place)]
    if "passages" in found:
        return passages.read(place, fields)
    if fields:
        names = " or ".join(found) or "unknown"
        raise ValueError(f"data.fields={list(fields)}: must be null, the format is {names}")
    if len(found) == 1:
        return FORMATS[found[0]].read(place)
    if found:
        raise ValueError(f"data.path={path}: may be {' or '.join(found)}: say data.format=…")
    names = sorted(file.name for file in place.iterdir()) if place.is_dir() else [place.name]
    content = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "an empty folder"
    raise ValueError(
        f"data.path={path}: no known format in {content}; name it with data.format= "
        f"({', '.join(FORMATS)})"
    )
