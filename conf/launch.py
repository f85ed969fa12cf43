"""Several processes for one run: `trainer.devices=2` starts what torchrun would start."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_class
from omegaconf import DictConfig, ListConfig, OmegaConf
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from gr_mvdr.ranks import world_size

TRAIN = Path(__file__).parents[1] / "train.py"
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def choose_precision(accelerator: str) -> str:
    """Returns bf16-mixed if the hardware multiplies matrices in bf16, else 32-true.

    A GPU that emulates bf16 is slower in it than in fp32. AVX-512's bf16 instructions do not
    count: products of a MiniLM take 1.6 times as long as in fp32, with autocast around them 1.8
    times (Intel Xeon without AMX).
    """
    if accelerator != "cpu" and torch.cuda.is_available():
        is_native = torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16-mixed" if is_native else "32-true"
    flags = Path("/proc/cpuinfo")
    return "bf16-mixed" if flags.is_file() and "amx_bf16" in flags.read_text() else "32-true"


def choose_strategy() -> str | dict[str, Any]:
    """Returns DDP in one of several processes, else Lightning's choice.

    Buffers are equal in all processes: DDP would send them at every forward, NP's table too.
    """
    if world_size() == 1:
        return "auto"
    return {"_target_": "pytorch_lightning.strategies.DDPStrategy", "broadcast_buffers": False}


def processes_to_start(config: DictConfig) -> int:
    """Returns the number of processes that this job starts; 1 = it trains in its own process.

    A process that torchrun (or `launch`) started starts no others, and a system that is not trained
    needs only one.

    Raises:
        ValueError: there are several nodes, on each of which the user must start torchrun.
    """
    if "LOCAL_RANK" in os.environ or not get_class(config.model._target_).trainable:
        return 1
    nodes = config.trainer.get("num_nodes", 1)
    if nodes > 1:
        raise ValueError(
            f"trainer.num_nodes={nodes}: start torchrun on each of the nodes, see docs/training.md"
        )
    devices = config.trainer.devices  # as Lightning reads them
    if str(devices) in ("auto", "-1"):
        return max(1, torch.cuda.device_count()) if config.trainer.accelerator != "cpu" else 1
    if isinstance(devices, ListConfig):
        return len(devices)
    return len(devices.strip(",").split(",")) if "," in str(devices) else int(devices)


def launch(processes: int, trainer: DictConfig) -> None:
    """Runs this Hydra job in several processes on this machine, and prints a line about it.

    Args:
        trainer: the configuration of the trainer.

    Raises:
        SystemExit: a process failed and has printed the reason; the status is that of the process.
    """
    print(f"trainer.devices={trainer.devices}: {processes} processes start", flush=True)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    command = ["--standalone", f"--nproc-per-node={processes}", str(TRAIN), *job_arguments()]
    with _restore_signal_handlers():
        try:
            run(parse_args(command))
        except ChildFailedError as error:
            sys.exit(max(1, error.get_first_failure()[1].exitcode))  # negative if it was killed
        except SignalException:  # Ctrl-C, which all processes receive
            sys.exit(1)


def job_arguments() -> list[str]:
    """Returns the command line of this job alone, without its sweep."""
    hydra = HydraConfig.get()
    sources = hydra.runtime.config_sources
    folders = [s.path for s in sources if s.provider == "command-line" and s.schema == "file"]
    options = [option for folder in folders for option in ("--config-dir", folder)]
    number = [f"hydra.job.num={hydra.job.num}"] if is_in_sweep() else []
    return [*options, *hydra.overrides.task, "hydra.mode=RUN", *number]


def is_in_sweep() -> bool:
    """Whether this job belongs to a sweep, whose jobs Hydra numbers."""
    return HydraConfig.initialized() and not OmegaConf.is_missing(HydraConfig.get().job, "num")


@contextmanager
def _restore_signal_handlers() -> Iterator[None]:
    """Undoes the signal handlers that torch's launcher installs, and silences its log."""
    kept = {number: signal.getsignal(number) for number in _SIGNALS}
    logger = logging.getLogger("torch.distributed.elastic")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for number, handler in kept.items():
            signal.signal(number, handler)
