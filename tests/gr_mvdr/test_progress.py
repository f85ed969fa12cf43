import io
import sys

import pytest
from rich.console import Console

from gr_mvdr import progress
from gr_mvdr.progress import track


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves on."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def no_terminal(monkeypatch):
    monkeypatch.setattr(progress, "_terminal", lambda: None)


@pytest.fixture
def terminal(monkeypatch) -> io.StringIO:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(progress, "_terminal", lambda: console)
    return screen


def test_long_work_leaves_one_line_in_a_log_and_short_work_none(no_terminal, clock, capsys):
    for seconds, printed in ((1.9, ""), (3.21, "encoding: 1,200 in 3.2 s\n")):
        start = clock[0]
        for item in track(range(1200), "encoding"):
            clock[0] = start + seconds * (item + 1) / 1200
        assert capsys.readouterr().out == printed


def test_generators_and_nested_loops_pass_through(no_terminal, capsys):
    pairs = [(a, b) for a in track(iter("xy"), "outer") for b in track(range(2), "inner")]
    assert pairs == [("x", 0), ("x", 1), ("y", 0), ("y", 1)]
    assert capsys.readouterr().out == ""


def test_a_terminal_shows_bars_that_nest_and_end(terminal):
    items = (n for n in range(3))
    pairs = [(a, b) for a in track(items, "outer", total=3) for b in track(range(2), "inner")]
    assert len(pairs) == 6
    shown = terminal.getvalue()
    assert "outer" in shown and "inner" in shown and "3/3" in shown


def test_an_abandoned_bar_gives_the_terminal_back(terminal):
    items = track(range(10), "searching")
    next(items)
    items.close()
    assert terminal.getvalue().endswith("\x1b[?25h"), "the cursor is shown again"


def test_other_processes_and_machines_without_rich_still_iterate(monkeypatch, capsys, clock):
    monkeypatch.setitem(sys.modules, "rich", None)
    assert list(track([1, 2], "alone")) == [1, 2]
    monkeypatch.setenv("LOCAL_RANK", "1")
    for _ in track([1], "silent"):
        clock[0] += 9
    assert capsys.readouterr().out == ""
