"""One way to show progress: a bar where a person watches, lines where a log is kept."""

import html
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from operator import length_hint
from typing import Any, TypeVar

Item = TypeVar("Item")

QUIET_SECONDS = 2.0  # shorter work leaves no line in a log
FIRST_LINE = 10.0  # seconds until the first, and at least between two of them
REDRAWN = 0.2  # seconds between two states of a bar
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Within it, `track` shows nothing: what is done takes a moment, many times."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Within it, transformers shows no progress bars of its own; also a decorator."""
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled() and not are_progress_bars_disabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def track(iterable: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items of ``iterable`` and show how far it has come.

    On an interactive terminal with rich installed this is a bar, and bars nest; in a notebook it is
    a line that changes. Elsewhere one line with the count and the seconds is printed at the end if
    it took longer than 2 s. The other processes of a distributed run show nothing.

    Args:
        iterable: a sequence, or any iterator (then pass ``total`` for a bar that knows its end).
        description: what is being done, such as "encoding documents".
        total: number of items; by default ``len(iterable)`` where there is one.
    """
    progress = Progress(description, total or length_hint(iterable) or None)
    whole, count = False, 0
    try:
        for count, item in enumerate(iterable, start=1):
            yield item
            progress.report(count)
        whole = True
    finally:
        progress.close(whole)


class Progress:
    """How far some work has come, for work that is no loop over items; see `track`.

    Attributes:
        done, total: items so far, and in all (None: unknown).
        note: what else is shown, made when it is.
        seconds: since the start.
    """

    def __init__(
        self, description: str, total: int | None = None, done: int = 0, lines: bool = False
    ):
        """
        Args:
            description, total: see `track`.
            done: items that an earlier process did.
            lines: print lines while the work goes on, too: ever fewer of them.
        """
        self.description, self.total, self.done = description, total, done
        self._make_note: Callable[[], str] = str
        self._first, self._start, self._due = done, time.perf_counter(), 0.0
        self._screen = _choose_screen(self, lines)

    def report(self, done: int, note: Callable[[], str] = str) -> None:
        """So many items are done now."""
        self.done, self._make_note = done, note
        if (now := time.perf_counter()) >= self._due:
            self._due = now + self._screen.show(self)

    def close(self, whole: bool = True) -> None:
        """Ends the display; `whole` where the work was done to its end."""
        self._screen.close(self, whole)

    @property
    def note(self) -> str:
        return self._make_note()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def __str__(self) -> str:
        count = f"{self.done:,}" + (f" of {self.total:,}" if self.total else "")
        left = self._describe_rest()
        return ", ".join(filter(None, [f"{self.description}: {count}", self.note, left]))

    def _describe_rest(self) -> str:
        here = self.done - self._first
        if not self.total or not here:
            return ""
        return f"{describe_duration(self.seconds * (self.total - self.done) / here)} left"


def describe_duration(seconds: float) -> str:
    """A duration for people: "12 s", "3 min 20 s", "2 h 5 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class _Nothing:
    """What the other ranks show, and who is to be quiet."""

    def show(self, progress: Progress) -> float:
        """Shows a state; returns after how many seconds the next one is wanted."""
        return inf

    def close(self, progress: Progress, whole: bool) -> None:
        pass


class _Lines(_Nothing):
    """Lines of a log: at the end, and in between where that is wanted."""

    def __init__(self, between: bool, write: Callable[[str], None]):
        self.between, self.write = between, write

    def show(self, progress: Progress) -> float:
        if not self.between:
            return inf
        if (seconds := progress.seconds) < FIRST_LINE:
            return FIRST_LINE - seconds
        self.write(str(progress))
        return max(FIRST_LINE, seconds / 10)

    def close(self, progress: Progress, whole: bool) -> None:
        if whole and (seconds := progress.seconds) > QUIET_SECONDS:
            said = f"{progress.description}: {progress.done:,} in {seconds:.1f} s"
            self.write(", ".join(filter(None, [said, progress.note])))


class _Notebook(_Lines):
    """One line of a notebook's cell, which changes."""

    def __init__(self) -> None:
        super().__init__(True, self._write)
        self.handle: Any = None

    def show(self, progress: Progress) -> float:
        if progress.seconds > QUIET_SECONDS:
            self._write(str(progress), progress.done / progress.total if progress.total else None)
        return REDRAWN

    def _write(self, text: str, share: float | None = None) -> None:
        from IPython.display import display

        bar = "" if share is None else f'<progress value="{share:.3f}"></progress> '
        shown = {"text/plain": text, "text/html": f"<span>{bar}{html.escape(text)}</span>"}
        if self.handle is None:
            self.handle = display(shown, raw=True, display_id=True)
        else:
            self.handle.update(shown, raw=True)


class _Bar(_Nothing):
    """A bar of a terminal."""

    def __init__(self, console: Any, progress: Progress):
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        self.bars = Bars(*columns, console=console, speed_estimate_period=600)
        self.bars.start()
        self.task = self.bars.add_task(
            progress.description, total=progress.total, completed=progress.done, note=""
        )

    def show(self, progress: Progress) -> float:
        self.bars.update(self.task, completed=progress.done, note=progress.note)
        return REDRAWN

    def close(self, progress: Progress, whole: bool) -> None:
        self.show(progress)
        self.bars.stop()


def _choose_screen(progress: Progress, lines: bool) -> _Nothing:
    if _quiet.get() or os.environ.get("LOCAL_RANK", "0") != "0":
        return _Nothing()
    if (console := _terminal()) is not None:
        return _Bar(console, progress)
    return _Notebook() if _is_notebook() else _Lines(lines, _print)


def _print(text: str) -> None:
    print(text, flush=True)


def _is_notebook() -> bool:
    """Whether this process is a notebook's kernel, which shows what IPython displays."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _terminal() -> Any:
    """rich's shared console on an interactive terminal; None elsewhere, and without rich."""
    try:
        from rich import get_console
    except ImportError:
        return None
    console = get_console()  # the shared one: two consoles would draw over each other's bars
    return console if console.is_interactive else None
