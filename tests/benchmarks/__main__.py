"""Runs every benchmark in a process of one thread, and writes what they print into the docs.

    python -m tests.benchmarks

Times are CPU time. Peers that need another torch run in `.peers`, which `make bench` creates.
"""

import os
import platform
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

from tests.benchmarks.rows import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
START = "<!-- rows: make bench -->"


def machine() -> str:
    """The processor's name and number of cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def main() -> None:
    rows, failed, started = [], [], time.perf_counter()
    for file in sorted(Path(__file__).parent.glob("bench_*.py")):
        command = [sys.executable, "-m", f"tests.benchmarks.{file.stem}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                rows += [line] if line.startswith("|") else []
        failed += [file.stem] if process.returncode else []
    minutes = (time.perf_counter() - started) / 60
    text, _, _ = PAGE.read_text().partition(START)
    made = f"{date.today():%d %B %Y}, {machine()}, {minutes:.0f} minutes:"
    table = "| work | ours | compared with | ours / the other |\n|---|---:|---:|---:|\n"
    PAGE.write_text(f"{text}{START}\n{made}\n\n{table}{''.join(rows)}")
    if failed:
        sys.exit(f"a bar is missed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
