"""Runs a function of a test module in two processes that are connected as torchrun's are."""

import importlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from gr_mvdr.distributed.ranks import join, rank
from tests.float64 import compute_in

ROOT = Path(__file__).parents[1]


def in_two_processes(function: Any, folder: Path) -> list[Any]:
    """What `function()` returns on rank 0 and on rank 1: tensors, numbers, lists, dicts.

    Both have the default dtype of this process.

    Args:
        function: at the top of a module that both processes import.
        folder: an empty one.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dtype = str(torch.get_default_dtype()).removeprefix("torch.")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", __name__, function.__module__, function.__name__, str(folder)]
    started = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ
            | address
            | {"RANK": str(number), "OMP_NUM_THREADS": "1", "DTYPE": dtype},
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = [process.communicate(timeout=600)[1] for process in started]
    assert not any(process.returncode for process in started), "\n".join(said)
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(2)]


if __name__ == "__main__":
    module, name, folder = sys.argv[1:]
    compute_in(getattr(torch, os.environ["DTYPE"]))
    join()
    file = Path(folder) / f"{rank()}.pt"
    torch.save(getattr(importlib.import_module(module), name)(), file)
