"""One way to show progress: a bar where a person watches, a line where a log is kept."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Item = TypeVar("Item")

QUIET_SECONDS = 2.0  # shorter work leaves no line in a log
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Within it, `track` shows nothing: what is done takes a moment, many times."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def track(iterable: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items of ``iterable`` and show how far it has come.

    On an interactive terminal with rich installed this is a bar, and bars nest. Elsewhere one line
    with the count and the seconds is printed at the end if it took longer than 2 s. The other
    processes of a distributed run show nothing.

    Args:
        iterable: a sequence, or any iterator (then pass ``total`` for a bar that knows its end).
        description: what is being done, such as "encoding documents".
        total: number of items; by default ``len(iterable)`` where there is one.
    """
    if _quiet.get() or os.environ.get("LOCAL_RANK", "0") != "0":
        yield from iterable
    elif (console := _terminal()) is not None:
        yield from _with_bar(iterable, description, total, console)
    else:
        yield from _with_line(iterable, description)


def _terminal() -> Any:
    """rich's shared console on an interactive terminal; None elsewhere, and without rich."""
    try:
        from rich import get_console
    except ImportError:
        return None
    console = get_console()  # the shared one: two consoles would draw over each other's bars
    return console if console.is_interactive else None


def _with_bar(
    iterable: Iterable[Item], description: str, total: int | None, console: Any
) -> Iterator[Item]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield from progress.track(iterable, total=total, description=description)


def _with_line(iterable: Iterable[Item], description: str) -> Iterator[Item]:
    start = time.perf_counter()
    count = 0
    for item in iterable:
        yield item
        count += 1
    seconds = time.perf_counter() - start
    if seconds > QUIET_SECONDS:
        print(f"{description}: {count:,} in {seconds:.1f} s", flush=True)
