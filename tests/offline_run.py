"""What an offline run of wandb would upload, read from its `.wandb` file: no account, no server.

The file is a LevelDB log of wandb's own records (`wandb.proto`), which `wandb sync` sends.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

HEADER, BLOCK = 7, 2**15  # bytes: of the file's and each record's header, and of a block
WHOLE, LAST = 1, 4  # kinds of records; the others are parts that go on


@dataclass
class OfflineRun:
    """A run as the web page would show it.

    Attributes:
        files: the folder with its media. history: every logged row.
        artefacts: name → type. started: nanoseconds since 1970.
    """

    files: Path
    id: str = ""
    name: str = ""
    started: int = 0
    group: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    artefacts: dict[str, str] = field(default_factory=dict)

    def values(self, key: str) -> list[tuple[float, float]]:
        """(step, value) of a curve; the step is the trainer's where the row has one."""
        rows = [row for row in self.history if isinstance(row.get(key), int | float)]
        return [(row.get("trainer/global_step", row["_step"]), row[key]) for row in rows]

    def media(self, key: str) -> list[dict[str, Any]]:
        """The tables or pictures that were logged under a key, with their `path` in `files`."""
        return [row[key] for row in self.history if isinstance(row.get(key), dict)]

    def table(self, key: str) -> tuple[list[str], list[list[Any]]]:
        """The columns and rows of a logged table."""
        found = json.loads((self.files / self.media(key)[-1]["path"]).read_text())
        return found["columns"], found["data"]

    def picture(self, key: str) -> Path:
        """The file of a logged picture."""
        return self.files / self.media(key)[-1]["filenames"][0]


def read_offline_runs(folder: Path) -> list[OfflineRun]:
    """The runs below a folder, the oldest first.

    Names of folders tell seconds alone, and a small run may end in the second in which it began.
    """
    files = Path(folder).rglob("offline-run-*/run-*.wandb")
    return sorted(map(_read_offline_run, files), key=lambda run: run.started)


def _read_offline_run(file: Path) -> OfflineRun:
    found = OfflineRun(file.parent / "files")
    for record in map(Record.FromString, _records(file.read_bytes())):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            found.id, found.name, found.group = run.run_id, run.display_name, run.run_group
            found.started = run.start_time.ToNanoseconds()
            found.tags = list(run.tags)
            found.config |= _values(run.config.update)
        elif kind == "config":
            found.config |= _values(record.config.update)
        elif kind == "history":
            found.history.append(_values(record.history.item))
        elif kind == "artifact":
            found.artefacts[record.artifact.name] = record.artifact.type
        elif kind == "request" and record.request.HasField("log_artifact"):
            artefact = record.request.log_artifact.artifact
            found.artefacts[artefact.name] = artefact.type
    return found


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log, their parts put together again."""
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:  # the rest of a block that no header fits into
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + HEADER : place + HEADER + size]
        place += HEADER + size
        if kind in (WHOLE, LAST):
            yield parts
            parts = b""


def _values(items: Any) -> dict[str, Any]:
    """Keys and their JSON values; media are dictionaries, which wandb writes field by field."""
    found: dict[str, Any] = {}
    for item in items:
        key, *field_of = item.nested_key or [item.key]
        value = json.loads(item.value_json)
        if field_of:
            found.setdefault(key, {})["/".join(field_of)] = value
        else:
            found[key] = value
    return found
