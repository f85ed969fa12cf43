"""What the benchmarks share: CPU times, and the rows of docs/benchmarks.md."""

import resource
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def print_row(work: str, ours: str, other: str = "", ratio: float | None = None) -> None:
    """Prints one row of the page: what was measured, ours, another's, and ours over the other's."""
    print(f"| {work} | {ours} | {other} | {'' if ratio is None else f'{ratio:.2f}'} |", flush=True)


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of its finished children."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def compare(
    work: str, steps: Mapping[str, Callable[[], Any]], bar: float | None = None, rounds: int = 5
) -> None:
    """Prints a row for each step other than "ours": the median CPU times of both, and their ratio.

    The steps alternate, after one warm-up each.

    Args:
        bar: the largest ratio of ours to the first other; AssertionError above it.
    """
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            started = cpu_seconds()
            step()
            if number:
                taken[name].append(cpu_seconds() - started)
    others = {name: statistics.median(seconds) for name, seconds in taken.items()}
    ours = others.pop("ours")
    for name, seconds in others.items():
        print_row(work, show(ours), f"{name}: {show(seconds)}", ours / seconds)
    ratio = ours / next(iter(others.values()))
    assert bar is None or ratio <= bar, f"{work}: {ratio:.2f} of {next(iter(others))}, bar {bar}"


def show(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
