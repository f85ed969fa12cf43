"""Collections on disk: written once as Arrow tables with a manifest, memory-mapped from then on."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features

from data_modules.collection import DOCUMENTS, JUDGEMENTS, QUERIES, Collection
from data_modules.formats.files import sha256
from data_modules.formats.layout import Layout, LayoutChecks, NamedPair
from data_modules.tables import cache_folder, open_table, short_hash, write_once, write_table
from gr_mvdr.files import checksum, read_json, verify, write_json
from gr_mvdr.progress import track

VERSION = 1  # of what is written: raise it when the same layout should give other tables
MANIFEST = "manifest.json"


def collect(
    layout: Layout, store: str | Path | None = None, empty_documents: str = "refuse"
) -> Collection:
    """The collection of a layout: read and checked the first time, opened from then on.

    Args:
        store: where collections are kept; None = next to the cache of ``datasets``.
        empty_documents: "refuse", or "keep" those that have neither title nor text.

    Raises:
        ValueError: a rule that every collection keeps is broken, named with ``file:line``; counts
            differ from those that were expected; nothing is left behind.
        OSError: the disk is full; nothing is left behind.
    """
    place = Path(store).expanduser() if store else cache_folder("collections")
    sources = {str(file): _hash(file) for file in track(layout.files, f"hashing {layout.name}")}
    options = {**layout.options, "empty_documents": empty_documents}
    key = _key(sources, options)
    folder = place / f"{layout.name}-{key[:12]}"
    with write_once(folder) as partial:
        if partial is not None:
            partial.mkdir()
            try:
                counts = _write(layout, partial, LayoutChecks(layout, empty_documents))
            except pa.ArrowException as error:
                raise OSError(f"data.store={place}: could not be written: {error}") from None
            content = {
                "name": layout.name,
                "format": VERSION,
                "made": datetime.now(UTC).isoformat(timespec="seconds"),
                "sources": sources,
                "options": options,
                "splits": [split for split in layout.judgements if split in counts],
                "counts": counts,
                "files": {
                    str(file.relative_to(partial)): checksum(file)
                    for file in sorted(partial.rglob("*"))
                    if file.is_file()
                },
            }
            write_json(partial / MANIFEST, content)
    return open_collection(folder)


def _key(sources: Mapping[str, str], options: Mapping[str, Any]) -> str:
    """Of all that makes the tables: the files' contents, not where they lie."""
    contents = sorted((Path(name).name, value) for name, value in sources.items())
    made_from = [VERSION, contents, sorted(options.items())]
    return hashlib.sha256(json.dumps(made_from, default=str).encode()).hexdigest()


def _hash(file: Path) -> str:
    """The SHA-256 of a file, which is remembered as long as the file does not change."""
    state = file.stat()
    name = short_hash(str(file.resolve()), state.st_size, state.st_mtime_ns)
    with write_once(cache_folder("hashes") / name) as partial:
        if partial is not None:
            partial.write_text(sha256(file))
    return (cache_folder("hashes") / name).read_text()


def _write(layout: Layout, folder: Path, checks: LayoutChecks) -> dict[str, int]:
    """All tables and runs of a layout; returns how many rows each has."""

    def write(name: str, features: Features, rows: Iterable[Mapping]) -> int:
        rows = track(rows, f"{layout.name}: {Path(name).name}")
        return write_table(folder / f"{name}.arrow", features, rows)

    counts = {"documents": write("documents", DOCUMENTS, checks.documents())}
    counts["queries"] = write("queries", QUERIES, checks.queries())
    (folder / "qrels").mkdir()
    for split in layout.judgements:
        if count := write(f"qrels/{split}", JUDGEMENTS, checks.judgements(split)):
            counts[split] = count
        else:
            (folder / f"qrels/{split}.arrow").unlink()
            print(f"{layout.name}: the split {split!r} is empty and is left out")
    for kind, runs in (("candidates", layout.candidates), ("negatives", layout.negatives)):
        for name, ranked in runs.items():
            (folder / kind).mkdir(exist_ok=True)
            counts[f"{kind}/{name}"] = write_run(
                checks.ranked(kind, ranked), folder / kind / f"{name}.trec"
            )
    return counts


def write_run(ranked: Iterable[NamedPair], file: Path, tag: str = "given") -> int:
    """Writes a TREC run, ``query Q0 document rank score tag``; returns how many lines it has.

    Args:
        ranked: a query's documents together, in the order of their ranks.
    """
    count = 0
    with file.open("w", encoding="utf-8") as run:
        for query, documents in groupby(ranked, key=lambda row: row.query_id):
            for rank, row in enumerate(documents, start=1):
                run.write(f"{query} Q0 {row.document_id} {rank} {row.score!r} {tag}\n")
                count += 1
    return count


def open_collection(folder: Path) -> Collection:
    """A collection that `collect` wrote, memory-mapped.

    Raises:
        ValueError: the folder is not as it was written.
    """
    try:
        manifest = read_json(folder / MANIFEST)
        if manifest["format"] != VERSION:
            raise ValueError(f"of format {manifest['format']}, not {VERSION}")
        for name, expected in manifest.get("files", {}).items():
            verify(folder / name, expected)

        def table(name: str, features: Features) -> Dataset:
            fingerprint = hashlib.sha256(f"{folder.name}-{name}".encode()).hexdigest()[:32]
            return open_table(folder / f"{name}.arrow", features, fingerprint)

        qrels = {split: table(f"qrels/{split}", JUDGEMENTS) for split in manifest["splits"]}
        runs = {
            kind: {file.stem: file for file in sorted((folder / kind).glob("*.trec"))}
            for kind in ("candidates", "negatives")
        }
        return Collection(
            manifest["name"],
            table("documents", DOCUMENTS),
            table("queries", QUERIES),
            qrels,
            manifest["sources"],
            folder,
            **runs,
        )
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(
            f"data.store: {folder} is damaged ({reason}): remove it, and it is built again"
        ) from None
