"""Opens mutated folders through every door, each in a fork whose audit hook watches what it does.

python -m tests.security.doors MADE AREA FIRST LAST      a line of JSON for each mutant
"""

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from importlib.metadata import packages_distributions
from pathlib import Path

import datasets

from analysis.compare import compare
from analysis.run import analyse_again
from analysis.runs.run_folder import read_run
from analysis.tables.report import write_report
from models.export.folder import load_exported
from models.finished_run import restore_run
from models.rerank_pipeline import RerankPipeline
from models.weights import find_weights
from tests.security.conftest import MODELS
from tests.security.mutations import mutate

NOTHING = {"pairs": 0, "questions": {}, "precision": "float32"}
FORBIDDEN = {"os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn",
             "socket.connect", "socket.getaddrinfo"}  # fmt: skip
CHANGING = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.chmod",
            "os.truncate", "shutil.rmtree"}  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SECONDS, MEMORY = 300, 12 * 2**30


class Watch:
    """An audit hook: what a fork does that no folder may make it do."""

    def __init__(self, allowed: list[Path], known: set[str]):
        self.allowed = [str(path.resolve()) for path in allowed]
        self.known, self.violations, self.active = known, [], False

    def __call__(self, event: str, arguments: tuple) -> None:
        if not self.active or event not in {*FORBIDDEN, *CHANGING, "open", "import", "compile"}:
            return
        self.active = False  # what follows here is no folder's doing
        try:
            if found := self._violation(event, arguments):
                self.violations.append(found)
        finally:
            self.active = True

    def _violation(self, event: str, arguments: tuple) -> str | None:
        if event in FORBIDDEN:
            return f"{event} {arguments!r}"[:300]
        if event == "import":
            top = str(arguments[0]).split(".")[0]
            return None if top in self.known else f"import {arguments[0]}"
        if event == "compile":
            source = arguments[0] if isinstance(arguments[0], str | bytes) else b""
            text = source if isinstance(source, str) else source.decode(errors="replace")
            return f"compile {text[:200]}" if "marker" in text else None
        if event == "open":
            path, _, flags = arguments
            if not (isinstance(flags, int) and flags & WRITING):
                return None
            paths = [path]
        else:
            paths = [part for part in arguments if isinstance(part, str | bytes | os.PathLike)]
        outside = [path for path in paths if not self._is_inside(path)]
        return f"{event} {outside!r}"[:300] if outside else None

    def _is_inside(self, path: object) -> bool:
        if isinstance(path, int) or os.fspath(path) in ("/dev/null", b"/dev/null"):
            return True
        text = os.fsdecode(path)
        if not os.path.isabs(text):
            return "/" not in text  # relative to a folder that is open: rmtree's way
        return any(
            f"{os.path.realpath(text)}/".startswith(f"{allowed}/") for allowed in self.allowed
        )


def run_doors(folder: Path, out: Path, system, data) -> dict:
    """The ways to open a run; those that must leave the folder as it is come first."""

    def weights() -> None:
        find_weights("weights", str(folder)).give(system, data.tokenizer)

    def stage() -> None:
        model = RerankPipeline([{"run": str(folder)}])
        model.prepare(data.documents, data.known_documents, out / "identifiers")
        model.index(data.documents, out / "one" / "index")

    return {
        "read_run": lambda: read_run(folder),
        "compare": lambda: compare([folder], out / "comparison"),
        "weights": weights,
        "stage": stage,
        "restored": lambda: restore_run(folder),
        "analyse": lambda: analyse_again(folder, NOTHING),
        "report": lambda: write_report(folder),
    }


def state(folder: Path) -> dict[str, tuple[int, int]]:
    found = {file: file.lstat() for file in folder.rglob("*")}
    return {str(file): (of.st_mtime_ns, of.st_size) for file, of in found.items()}


def opened(doors: dict, folder: Path, watch: Watch) -> tuple[list[str], list[str]]:
    """Faults: a traceback that is no ValueError or OSError, a message without words, a write.

    And the doors that refused the folder.
    """
    faults, refused, before = [], [], state(folder)
    for name, door in doors.items():
        if name == "analyse" and state(folder) != before:
            faults.append("something was written into the folder")
        watch.active = True
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                door()
        except (ValueError, OSError) as error:
            refused.append(name)
            if not str(error).strip() or str(error).rstrip().endswith(": "):
                faults.append(f"{name}: no reason is said: {error!r}")
        except Exception:
            faults.append(f"{name}: {traceback.format_exc()[-1500:]}")
        finally:
            watch.active = False
    return faults + watch.violations, refused


def one(made: Path, area: Path, number: int, system, data, watch: Watch) -> dict:
    """One mutant in a fork; what it was and what went wrong."""
    rng, room = random.Random(number), area / str(number)
    name = rng.choice(MODELS * 2 + tuple(f"{model}-export" for model in MODELS))
    folder, out, marker = room / "foreign" / name, room / "out", area / "outside" / "marker"
    shutil.copytree(made / name, folder)
    done = mutate(folder, rng, marker)
    reader, writer = os.pipe()
    if not (child := os.fork()):
        sys.dont_write_bytecode = True  # an import's own cache is no folder's doing
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        tempfile.tempdir = str(room / "tmp")
        (room / "tmp").mkdir()
        watch.allowed += [str(room.resolve())]
        if name.endswith("-export"):
            doors = {"load_exported": lambda: load_exported(folder)}
        else:
            doors = run_doors(folder, out, system, data)
        faults, refused = opened(doors, folder, watch)
        found = {"faults": [fault[-2000:] for fault in faults[:20]], "refused": refused}
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        found = stream.read()
    _, status = os.waitpid(child, 0)
    result = json.loads(found) if found else {"faults": [f"ended with status {status}"]}
    if marker.exists():
        result["faults"].append("the marker was written")
        marker.unlink()
    shutil.rmtree(room)
    return {"number": number, "folder": name, "changes": done, **result}


def main(made: Path, area: Path, first: int, last: int) -> None:
    datasets.config.HF_DATASETS_CACHE = made / "cache"
    outside = area / "outside"
    outside.mkdir(parents=True)
    (outside / "precious").write_text("mine")
    system, data = restore_run(made / "t5_colbert")
    warm = area / "warm"
    for name in MODELS:  # everything that is imported lazily, is
        folder = Path(shutil.copytree(made / name, warm / name))
        for door in run_doors(folder, warm / f"{name}-out", system, data).values():
            with contextlib.suppress(ValueError), contextlib.redirect_stdout(io.StringIO()):
                door()
        load_exported(made / f"{name}-export")
    known = {
        *sys.stdlib_module_names,
        *packages_distributions(),
        "google",
    }  # protobuf, if it is there
    known |= {name.split(".")[0] for name in sys.modules}
    watch = Watch([made / "cache"], known - {"antigravity", "this"})
    sys.addaudithook(watch)
    for number in range(first, last):
        print(json.dumps(one(made, area, number, system, data, watch)), flush=True)
    assert (outside / "precious").read_text() == "mine" and len(list(outside.iterdir())) == 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
