"""Mutated folders through every door: nothing runs, nothing is written elsewhere, errors are lines.

Each mutant is opened in a fork, whose audit hook sees what the fork does.
"""

import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from analysis.compare import compare
from analysis.run import analyse_again
from analysis.runs.run_folder import read_run
from analysis.tables.report import write_report
from models.rerank_pipeline import RerankPipeline
from models.saved_model import find_weights, open_model, restore_run
from tests.faults.forked import Child
from tests.security.conftest import MODELS, NOTHING

MUTANTS = 24
FORBIDDEN = {"os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn",
             "socket.connect", "socket.getaddrinfo"}  # fmt: skip
CHANGING = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.chmod",
            "os.truncate", "shutil.rmtree"}  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """An audit hook: what a process does that no folder may make it do.

    Args:
        allowed: folders that may change. known: packages that may be imported.
    """

    def __init__(self, allowed: list[Path], known: set[str]):
        self.allowed = [str(path.resolve()) for path in allowed]
        self.known, self.violations, self.active = known, [], True

    def __call__(self, event: str, arguments: tuple) -> None:
        if self.active and event in {*FORBIDDEN, *CHANGING, "open", "import", "compile"}:
            self.active = False  # what follows here is no folder's doing
            if self._violates(event, arguments):
                self.violations.append(f"{event} {arguments!r}"[:300])
            self.active = True

    def _violates(self, event: str, arguments: tuple) -> bool:
        if event in FORBIDDEN:
            return True
        if event == "import":
            return arguments[0].split(".")[0] not in self.known
        if event == "compile":
            return "marker" in str(arguments[0])
        if event == "open":
            path, _, flags = arguments
            return bool((flags or 0) & WRITING) and not self._is_inside(path)
        paths = [part for part in arguments if isinstance(part, str | bytes | os.PathLike)]
        return not all(map(self._is_inside, paths))

    def _is_inside(self, path: Any) -> bool:
        if isinstance(path, int) or os.fspath(path) in ("/dev/null", b"/dev/null"):
            return True
        text = os.fsdecode(path)
        if not os.path.isabs(text):
            return "/" not in text  # relative to a folder that is open: rmtree's way
        return any(f"{os.path.realpath(text)}/".startswith(f"{one}/") for one in self.allowed)


# Changes to a folder that its maker could make ------------------------------------------------

SIZES = ("num_layers", "num_decoder_layers", "num_heads")  # more of them is only slower
TELLING = ("config.yaml", "last.ckpt", "gr_mvdr.json", "provenance.json")  # most depends on them


def payloads(marker: Path) -> list[dict[str, Any]]:
    """Configurations of parts that would leave a marker if they ran."""
    writer = "gr_mvdr.evaluation.ranking.write_qrels"
    return [
        {"_target_": "os.system", "command": f"touch {marker}"},
        {"_target_": "payload_module.Part"},
        {"_target_": writer, "qrels": {}, "path": str(marker)},
        {"_target_": "hydra.utils.instantiate", "config": {"_target_": "os.system"}},
    ]


def values(marker: Path) -> list[Any]:
    """Of another type, of another place, or too deep."""
    deep: Any = "x"
    for _ in range(3000):
        deep = [deep]
    texts = [str(marker), f"../../../{marker.name}", "/dev/null", "a\0b", "${oc.env:HOME}"]
    return [None, True, -1, 2.5, float("nan"), "", "x" * 5000, [], {}, [None], *texts, deep]


def places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of nested dicts and lists."""
    if isinstance(content, dict | list):
        for key in [*content] if isinstance(content, dict) else range(len(content)):
            if key not in SIZES:
                yield content, key
                yield from places(content[key])


def change_data(file: Path, rng: random.Random, marker: Path) -> None:
    """A value, a part, or a tensor of a YAML or JSON file or of a checkpoint."""
    read = {".ckpt": lambda f: torch.load(f, weights_only=True), ".json": json.load}
    with file.open("rb") as stream:
        content = read.get(file.suffix, yaml.safe_load)(stream)
    if file.suffix == ".ckpt" and rng.random() < 0.2:
        name = rng.choice([*content["state_dict"]])
        content["state_dict"][name] = rng.choice([torch.zeros(3), "x", None])
    else:
        every = [*places(content.get("hyper_parameters", content))]
        parts = [(c, k) for c, k in every if isinstance(c[k], dict) and "_target_" in c[k]]
        attack = parts and rng.random() < 0.5
        container, key = rng.choice(parts if attack else every)
        container[key] = rng.choice(payloads(marker) if attack else values(marker))
    if file.suffix == ".ckpt":
        torch.save(content, file)
    else:
        file.write_text((yaml.safe_dump if file.suffix == ".yaml" else json.dumps)(content))


def change_bytes(file: Path, rng: random.Random, marker: Path) -> None:
    """Some are flipped, the end is cut off, or all are replaced."""
    content = bytearray(file.read_bytes() or b"x")
    for _ in range(4):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    cut = content[: rng.randrange(len(content))]
    file.write_bytes(rng.choice([content, cut, rng.randbytes(300)]))


def change_entry(file: Path, rng: random.Random, marker: Path) -> None:
    """The file is a link out of the folder, a folder, a pipe, a device without an end, or gone."""
    file.unlink()
    precious = marker.with_name("precious")
    links = [lambda to=to: file.symlink_to(to) for to in (precious, marker, "/dev/zero")]
    rng.choice([*links, file.mkdir, lambda: os.mkfifo(file), lambda: None])()


def mutate(folder: Path, rng: random.Random, marker: Path) -> None:
    """Changes a folder in one to three places."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        files = sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix)
        change = rng.choice([change_data] * 5 + [change_bytes] * 3 + [change_entry])
        described = [file for file in files if file.suffix in (".yaml", ".json", ".ckpt")]
        described += [file for file in described if file.name in TELLING] * 8
        file = rng.choice(described if change is change_data else files)
        try:
            change(file, rng, marker)
        except Exception:  # it was broken already, or its value cannot be written
            file.write_text("a: " + "[" * 3000)


# The doors ------------------------------------------------------------------------------------


def doors(folder: Path, out: Path, run: tuple) -> tuple[list[Callable], list[Callable]]:
    """The ways to open a folder: those that leave it as it is, and those that write into it."""
    system, data = run
    if folder.name.endswith("-export"):
        return [lambda: open_model(folder)], []

    def stage() -> None:
        model = RerankPipeline([{"run": str(folder)}])
        model.prepare(data.documents, data.known_documents, out / "identifiers")
        model.index(data.documents, out / "one" / "index")

    reading = [
        lambda: read_run(folder),
        lambda: compare([folder], out / "comparison"),
        lambda: find_weights("weights", str(folder)).give(system, data.tokenizer),
        stage,
        lambda: restore_run(folder),
    ]
    return reading, [lambda: analyse_again(folder, NOTHING), lambda: write_report(folder)]


def state(folder: Path) -> dict[Path, tuple[int, int]]:
    found = {file: file.lstat() for file in folder.rglob("*")}
    return {file: (of.st_mtime_ns, of.st_size) for file, of in found.items()}


def open_all(room: Path, folder: Path, run: tuple, planted: Path, cache: Path) -> None:
    """A fork's job: raises unless every door opens, or ends in an error that gives a reason."""
    sys.dont_write_bytecode = True  # an import's own cache is no folder's doing
    tempfile.tempdir = str(room)
    known = {*sys.stdlib_module_names, *packages_distributions(), "google"}
    known |= {name.split(".")[0] for name in sys.modules}
    sys.path.insert(0, str(planted))
    watch, before = Watch([room, cache], known - {"antigravity", "this"}), state(folder)
    sys.addaudithook(watch)
    for kind in doors(folder, room / "out", run):
        assert state(folder) == before, "something was written into the folder"
        for door in kind:
            try:
                door()
            except (ValueError, OSError) as error:
                (room / "refused").touch()
                assert str(error).strip() and not str(error).rstrip().endswith(": "), repr(error)
    watch.active = False
    assert not watch.violations, watch.violations


@pytest.mark.slow
def test_mutated_folders_run_nothing_and_end_in_a_line(made, tmp_path):
    run, outside, planted = restore_run(made / "t5_colbert"), tmp_path / "outside", tmp_path / "in"
    for place in (outside, planted):
        place.mkdir()
    (outside / "precious").write_text("mine")
    for name in MODELS:  # what libraries import late or look for, they do now
        folder = Path(shutil.copytree(made / name, tmp_path / "warm" / name))
        for door in chain(*doors(folder, tmp_path / f"warm-{name}", run)):
            with suppress(ValueError):
                door()
    marker, refused = outside / "marker", 0
    (planted / "payload_module.py").write_text(f"open({str(marker)!r}, 'w')")
    for number in range(MUTANTS):
        rng, room = random.Random(number), tmp_path / str(number)
        name = rng.choice(MODELS * 2 + tuple(f"{model}-export" for model in MODELS))
        folder = Path(shutil.copytree(made / name, room / "foreign" / name))
        mutate(folder, rng, marker)
        job = partial(open_all, room, folder, run, planted, made / "cache")
        child = Child(job, made / "cache", after=300, notes=room)
        assert child.status() == 0, (number, child.said)
        refused += (room / "refused").exists()
        assert [file.name for file in outside.iterdir()] == ["precious"], number
        shutil.rmtree(room)
    assert (outside / "precious").read_text() == "mine"
    assert refused > MUTANTS / 3, "mutations hardly matter"


def test_the_watch_sees_what_a_payload_would_do(tmp_path):
    """What the fuzz relies on: each of these events is a violation, and only outside the area."""
    watch = Watch([tmp_path / "area"], {"json"})
    inside, outside = str(tmp_path / "area/x"), str(tmp_path / "x")
    (tmp_path / "area").mkdir()
    (tmp_path / "area/link").symlink_to(tmp_path)
    harmless = [("open", (inside, "w", os.O_WRONLY)), ("open", (outside, "r", os.O_RDONLY)),
                ("import", ("json.decoder",)), ("os.rename", (inside, inside + "y")),
                ("compile", ("1 + 1", "<string>"))]  # fmt: skip
    for event, arguments in harmless:
        watch(event, arguments)
    assert not watch.violations
    harmful = [("open", (outside, "w", os.O_WRONLY | os.O_CREAT)), ("os.system", (b"touch x",)),
               ("open", (str(tmp_path / "area/link/x"), "w", os.O_WRONLY)),
               ("open", (str(tmp_path / "area/../x"), "a", os.O_APPEND)),
               ("subprocess.Popen", ("touch", ["touch"], None, None)), ("import", ("planted.x",)),
               ("os.rename", (inside, outside)), ("shutil.rmtree", (outside, None)),
               ("compile", ("open('marker')", "<string>")),
               ("socket.connect", (None, 1))]  # fmt: skip
    for number, (event, arguments) in enumerate(harmful, start=1):
        watch(event, arguments)
        assert len(watch.violations) == number, event
