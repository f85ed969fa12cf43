import io
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
from rich.console import Console

from gr_mvdr import progress
from gr_mvdr.progress import Progress, describe_duration, track


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


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_are_in_the_two_units_that_matter(seconds, words):
    assert describe_duration(seconds) == words


def test_work_that_goes_on_leaves_ever_fewer_lines(no_terminal, clock, capsys):
    work = Progress("training", total=2000, done=1000, lines=True)
    for step in range(1001, 2001):
        clock[0] += 1.0
        work.report(step, lambda: "loss 1")
    work.close()
    *lines, last = capsys.readouterr().out.splitlines()
    # So many steps of this process in so many seconds: what an earlier one did counts for no time.
    assert lines[0] == "training: 1,010 of 2,000, loss 1, 16 min 30 s left"
    assert lines[1].startswith("training: 1,020 of 2,000, ")
    assert 10 < len(lines) < 50
    steps = [int(line.split()[1].replace(",", "")) for line in lines]
    gaps = [after - before for before, after in pairwise(steps)]
    assert gaps == sorted(gaps) and gaps[-1] > 50
    assert last == "training: 2,000 in 1000.0 s, loss 1"


def test_work_that_failed_does_not_say_that_it_was_done(no_terminal, clock, capsys):
    work = Progress("training", total=9, lines=True)
    clock[0] += 5
    work.report(1)
    work.close(whole=False)
    assert capsys.readouterr().out == ""


class Notebook:
    """IPython in a kernel: what is displayed, state after state, as plain text and as HTML."""

    def __init__(self, monkeypatch, kernel=True):
        self.shown = []
        shell = SimpleNamespace(kernel=None) if kernel else SimpleNamespace()
        modules = {"IPython": SimpleNamespace(get_ipython=lambda: shell), "IPython.display": self}
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    def display(self, data, raw, display_id):
        self.shown.append([data])
        return self

    def update(self, data, raw):
        self.shown[-1].append(data)


def test_a_notebook_shows_one_line_that_changes(no_terminal, clock, capsys, monkeypatch):
    notebook = Notebook(monkeypatch)
    for _ in track(range(100), "reading <b>"):
        clock[0] += 0.5
    (states,) = notebook.shown
    assert states[0]["text/plain"] == "reading <b>: 5 of 100, 48 s left"
    assert '<progress value="0.050">' in states[0]["text/html"]
    assert "reading &lt;b&gt;: 5 of 100" in states[0]["text/html"]
    assert states[-1]["text/plain"] == "reading <b>: 100 in 50.0 s"
    for _ in track(range(3), "short"):
        clock[0] += 0.5
    assert len(notebook.shown) == 1 and capsys.readouterr().out == ""


def test_ipython_without_a_kernel_is_no_notebook(no_terminal, clock, capsys, monkeypatch):
    notebook = Notebook(monkeypatch, kernel=False)
    for _ in track(range(3), "encoding"):
        clock[0] += 1
    assert not notebook.shown and capsys.readouterr().out == "encoding: 3 in 3.0 s\n"
