"""Work is shown on a terminal; short work and other ranks leave nothing."""

from gr_mvdr import progress
from gr_mvdr.progress import track


def test_nested_work_is_shown_and_other_ranks_show_nothing(capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    items = (n for n in range(3))
    pairs = [(a, b) for a in track(items, "outer", total=3) for b in track(range(2), "inner")]
    assert pairs == [(a, b) for a in range(3) for b in range(2)]
    shown = capsys.readouterr().err
    assert "outer: 100%" in shown and "3/3" in shown and "inner:   0%" in shown
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert list(track([1, 2], "silent")) == [1, 2]
    assert not capsys.readouterr().err


def test_short_work_leaves_no_line_in_a_log(capsys):
    with track(None, "training", total=8, initial=4) as bar:
        bar.update(4)
    assert bar.n == 8 and capsys.readouterr().err == ""
