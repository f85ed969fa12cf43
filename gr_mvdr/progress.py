"""Progress of long tasks, shown by tqdm: a bar on a terminal, one line a minute in a log."""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import length_hint
from typing import Any

from tqdm.auto import tqdm

DELAY = 1.0  # seconds: shorter work shows nothing
_LOG_INTERVAL = 60.0  # seconds between two lines of a log
# Stage of the current run → its seconds in this process.
SPENT: dict[str, float] = defaultdict(float)


def track(
    iterable: Iterable[Any] | None, description: str, total: int | None = None, initial: int = 0
) -> tqdm:
    """Returns a tqdm bar over ``iterable``; only rank 0 shows it.

    Args:
        iterable: items to loop over; None = the caller calls `update` and `close`.
        description: such as "encoding documents".
        total: number of items; by default ``len(iterable)`` if it has a length.
        initial: number of items that an earlier process finished.
    """
    is_watched = sys.stderr.isatty() or hasattr(sys, "ps1")  # ps1: an interactive shell, a notebook
    return tqdm(
        iterable,
        description,
        total or length_hint(iterable) or None,
        initial=initial,
        leave=None,
        delay=DELAY,
        mininterval=0.1 if is_watched else _LOG_INTERVAL,
        maxinterval=10 if is_watched else _LOG_INTERVAL,
        disable=os.environ.get("LOCAL_RANK", "0") != "0",
    )


@contextmanager
def timed(stage: str) -> Iterator[None]:
    """Adds the block's seconds, without those of stages in it, to `SPENT`; also a decorator."""
    start, before = time.perf_counter(), sum(SPENT.values())
    try:
        yield
    finally:
        within = sum(SPENT.values()) - before
        SPENT[stage] += time.perf_counter() - start - within


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hides transformers' progress bars and warnings inside the block; also usable as decorator."""
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled() and not are_progress_bars_disabled()
    level = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
