"""Runs a function of a test module in two processes that are connected as torchrun's are.

Both are forked from one server, which imports torch and the models once for all tests of a session
and never computes a gradient (after that, autograd cannot be used in a fork).
"""

import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.models.conftest", "torch.nn.parallel"])


def in_two_processes(function: Callable[[], Any], folder: Path) -> list[Any]:
    """What `function()` returns on rank 0 and on rank 1: tensors, numbers, lists, dicts.

    Both have the default dtype of this process.

    Args:
        function: at the top of a module that both processes import.
        folder: an empty one.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    how = function, folder, port, torch.get_default_dtype()
    started = [_SERVER.Process(target=_run, args=(number, *how)) for number in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(600)
        process.kill()
    said = "\n".join(path.read_text() for path in sorted(folder.glob("*.txt")))
    assert not any(process.exitcode for process in started), said
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(2)]


def _run(
    number: int, function: Callable[[], Any], folder: Path, port: int, dtype: torch.dtype
) -> None:
    from gr_mvdr.ranks import join
    from tests.float64 import compute_in

    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= address | {"RANK": str(number)}
    torch.set_num_threads(1)
    compute_in(dtype)
    try:
        join()
        torch.save(function(), folder / f"{number}.pt")
    except BaseException:
        (folder / f"{number}.txt").write_text(traceback.format_exc())
        sys.exit(1)
