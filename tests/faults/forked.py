"""Runs of `train.py` in forked processes: one process imports, its children run and are killed.

A file event is what changes the disk: opening to write, a folder made or removed, a rename, a
removal, a flush. Python tells of them before they happen (audit hooks), so that killing at event n
leaves what the events before n have made.
"""

import gc
import importlib
import io
import json
import os
import resource
import signal
import sys
import traceback
from itertools import count
from pathlib import Path

import datasets
import torch

from tests.runs import compose_config

SMALL = [
    *("experiment=smoke", "logger=none"),
    *("data.max_test_queries=4", "data.max_rerank_queries=2", "data.candidates=5"),
    *("data.test_split=[test]", "trainer.max_steps=-1", "trainer.max_epochs=2"),
    *("analysis=none", "analysis.pairs=2", "analysis.questions=null"),
    *("analysis.curve_pairs=0", "tokenizer.vocab_size=300", "document_length=16"),
    *("trainer.precision=64-true", "data.batch_size=32", "backbone.shape.d_model=16"),
    *("backbone.shape.d_kv=8", "backbone.shape.d_ff=16", "backbone.shape.num_layers=1"),
    "backbone.shape.num_heads=2",
]
_numbers = count()
ALMANAC = ["data.n_documents=50", "data.train_questions=1"]
_WRITES = os.O_WRONLY | os.O_RDWR
_EVENTS = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link"}


class Child:
    """A forked process that runs a job, and may kill itself.

    Args:
        job: without arguments. cache: where its caches lie.
        at_event: kill it before the file event of this number; 0 = at none.
        longest: bytes that a file may have; None = as many as it likes.
        gate: a pipe's end; the job begins when something can be read from it.
    """

    def __init__(self, job, cache, at_event=0, longest=None, gate=None):
        self.files = {name: cache.parent / f"{name}-{next(_numbers)}" for name in ("said", "seen")}
        if not (process := os.fork()):
            gc.freeze()  # what the parent has left is the parent's to close, its folders included
            status = 1
            try:
                _redirect(self.files["said"])
                datasets.config.HF_DATASETS_CACHE = cache
                counted = _counting(at_event)
                if longest:
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (longest, resource.RLIM_INFINITY))
                if gate is not None:
                    os.read(gate, 1)
                job()
                self.files["seen"].write_text(json.dumps([counted[0], sorted(sys.modules)]))
                status = 0
            except BaseException:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
                traceback.print_exc()
            os._exit(status)
        self.process = process

    def status(self) -> int:
        """Waits for its end: the exit status, −9 for killed."""
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    @property
    def said(self) -> str:
        return self.files["said"].read_text()

    @property
    def seen(self) -> tuple[int, list[str]]:
        """How many file events there were, and the modules that were imported."""
        return tuple(json.loads(self.files["seen"].read_text()))


def _redirect(path: Path) -> None:
    said = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout = sys.stderr = io.TextIOWrapper(os.fdopen(1, "wb", 0), write_through=True)
    torch.set_num_threads(1)


def _counting(at_event: int) -> list[int]:
    """Counts this process's file events from now on, and kills it before one of them."""
    seen, flush = [0], os.fsync

    def happens(*_):
        seen[0] += 1
        if seen[0] == at_event:
            os.kill(os.getpid(), signal.SIGKILL)

    def heard(event, arguments):
        if event in _EVENTS or (event == "open" and (arguments[2] or 0) & _WRITES):
            happens()

    def flushed(handle):
        happens()
        flush(handle)

    sys.addaudithook(heard)
    os.fsync = flushed
    return seen


def configuration(folder: Path, *keys: str):
    almanac = [] if any(key.startswith("data=") for key in keys) else ALMANAC
    return compose_config("train", *SMALL, *almanac, f"output={folder}", *keys)


def run(folder: Path, *keys: str):
    """A job: the command with these keys."""

    def job():
        from train import train

        train(configuration(folder, *keys))

    return job


def imported(names: list[str]) -> None:
    """Imports what a run imports late, so that no child has to."""
    for name in names:
        if name.split(".")[0] not in ("__main__", "tests"):
            try:
                importlib.import_module(name)
            except Exception:  # a name that a library makes up
                continue


def metrics(run: Path) -> dict[str, float]:
    """What a finished run measured, without times and sizes of processes."""
    found = json.loads((run / "metrics.json").read_text())
    return {key: value for key, value in found.items() if not key.startswith("cost/")}
