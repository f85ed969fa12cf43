"""The BEIR benchmark's collections: a folder, the official zip archive, or the hub's copy."""

import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_modules.builders.hub import hub_rows
from data_modules.formats import beir
from data_modules.formats.layout import Document, Judgement, Layout, Query
from data_modules.formats.lines import page_hint, unpacking
from data_modules.room import check_room
from data_modules.written_once import written_once

# The judgements on the hub by split; its "validation" is BEIR's dev.
_HUB_SPLITS = {
    "train dev test": "msmarco nfcorpus hotpotqa fiqa fever",
    "train test": "scifact",
    "dev test": "quora dbpedia-entity",
    "test": "trec-covid nq arguana webis-touche2020 scidocs climate-fever",
}
SPLITS = {name: of.split() for of, names in _HUB_SPLITS.items() for name in names.split()}


def read(name: str, path: Path | None) -> Layout:
    """One collection of the benchmark.

    Args:
        name: such as "scifact"; in a local copy also "cqadupstack/android".
        path: the collection's folder, one that holds it, or a zip archive; None = the hub.

    Raises:
        FileNotFoundError: the copy lacks a file.
        ValueError: the hub has no such collection, or the archive cannot be unpacked.
        OSError: there is no room to unpack it.
    """
    if path is None:
        return _on_hub(name)
    folder = _unpacked(path) if path.suffix == ".zip" else path
    places = [folder / name, folder / Path(name).name, folder]
    return beir.read(next((place for place in places if beir.recognises(place)), folder))


def _unpacked(archive: Path) -> Path:
    """The folder beside an archive that holds its files, made the first time."""
    folder = archive.with_suffix("")
    with written_once(folder) as partial_folder:
        if partial_folder is not None:
            try:
                with zipfile.ZipFile(archive) as content, unpacking(archive):
                    needed = sum(member.file_size for member in content.infolist())
                    check_room(f"data.path={archive}: unpacked, it", archive.parent, needed)
                    content.extractall(partial_folder)
            except (zipfile.BadZipFile, zlib.error) as error:
                raise ValueError(
                    f"{archive}: a damaged archive ({error}){page_hint(archive)}: fetch it again"
                ) from None
            print(f"{archive}: unpacked into {folder}")
    return folder


def _on_hub(name: str) -> Layout:
    if name not in SPLITS:
        raise ValueError(
            f"data.name=beir/{name}: must be one of {', '.join(sorted(SPLITS))}, "
            "or a local copy: data.path=FOLDER"
        )
    return Layout(
        name=name,
        files=(),
        options={"reader": "beir hub/1", "hub": [f"BeIR/{name}", f"BeIR/{name}-qrels"]},
        documents=partial(_documents, name),
        queries=partial(_queries, name),
        judgements={split: partial(_judgements, name, split) for split in SPLITS[name]},
    )


def _documents(name: str) -> Iterator[Document]:
    for where, row in hub_rows(f"BeIR/{name}", "corpus", "corpus"):
        yield Document(where, str(row["_id"]), row["title"] or "", row["text"] or "")


def _queries(name: str) -> Iterator[Query]:
    for where, row in hub_rows(f"BeIR/{name}", "queries", "queries"):
        yield Query(where, str(row["_id"]), row["text"] or "")


def _judgements(name: str, split: str) -> Iterator[Judgement]:
    for where, row in hub_rows(f"BeIR/{name}-qrels", split=split.replace("dev", "validation")):
        query, document = (str(row[column]) for column in ("query-id", "corpus-id"))
        yield Judgement(where, query, document, int(row["score"]))
