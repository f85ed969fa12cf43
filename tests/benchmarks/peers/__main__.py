"""Ours next to other libraries, each in an environment of its own, on equal inputs.

    python -m tests.benchmarks.peers maxsim_cpu [bm25s …]     or `all`

A peer is one file here, which both sides run in processes of their own:

    REQUIREMENTS    what pip installs into `.venv/peers/NAME`; empty: our own environment
    inputs()        name → array, made by us
    ours(arrays)    what is measured → a function of no arguments that does it and returns an array,
    peer(arrays)    or None. What has the same name on both sides must return the same numbers.
    TOLERANCE       to so much, absolute

Imports are within the functions: neither environment has what the other needs. The sides take
turns; a figure is the median processor time of one thread, of all rounds.
"""

import ast
import os
import statistics
import subprocess
import sys
import time
import venv
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TURNS, ROUNDS = 2, 5

Results = dict[str, tuple[list[float], np.ndarray]]  # milliseconds, and what was returned


def main() -> None:
    names = sys.argv[1:]
    if names[:1] == ["--side"]:
        measure_side(*names[1:])
        return
    known = sorted(path.stem for path in HERE.glob("*.py") if path.stem[0] != "_")
    for name in known if names == ["all"] else names or known[:0]:
        compare(name)
    if not names:
        sys.exit(f"python -m tests.benchmarks.peers NAME [NAME …]: of {', '.join(known)}, or all")


def compare(name: str) -> None:
    """Measures both sides in turns, checks that they agree, and prints a line for each figure."""
    settings = read_settings(name)
    pythons = {"ours": sys.executable, "peer": prepare(name, settings["REQUIREMENTS"])}
    found: dict[str, Results] = {"ours": {}, "peer": {}}
    with TemporaryDirectory() as folder:
        np.savez(f"{folder}/inputs.npz", **import_module(f"{__package__}.{name}").inputs())
        for _ in range(TURNS):
            for side, python in pythons.items():
                run_side(python, name, side, Path(folder))
                for what, (times, output) in read_side(Path(folder), side).items():
                    kept = found[side].setdefault(what, ([], output))
                    kept[0].extend(times)
    for side, results in found.items():
        for what, (times, _) in results.items():
            print(f"{name}: {side}, {what}: {statistics.median(times):.3g} ms", flush=True)
    for what in found["ours"].keys() & found["peer"].keys():
        mine, other = found["ours"][what][1], found["peer"][what][1]
        largest = float(np.abs(mine.astype(float) - other).max()) if mine.size else 0.0
        print(f"{name}: {what}: largest difference {largest:.1e}")
        assert largest <= settings.get("TOLERANCE", 1e-4)


def read_settings(name: str) -> dict:
    """The constants of a peer's file, which this environment may be unable to import."""
    tree = ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))
    assigned = (node for node in tree.body if isinstance(node, ast.Assign))
    named = {ast.unparse(node.targets[0]): node.value for node in assigned}
    wanted = named.keys() & {"REQUIREMENTS", "TOLERANCE"}
    return {key: ast.literal_eval(named[key]) for key in wanted}


def prepare(name: str, requirements: list[str]) -> str:
    """The Python of the peer's environment, which is made unless it is there."""
    if not requirements:
        return sys.executable
    folder = ROOT / ".venv" / "peers" / name
    python, done = folder / "bin" / "python", folder / ".installed"
    if not done.is_file() or done.read_text() != repr(requirements):
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
        done.write_text(repr(requirements))
    return str(python)


def run_side(python: str, name: str, side: str, folder: Path) -> None:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    threads |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": "."}
    command = [python, "-m", "tests.benchmarks.peers", "--side", name, side, str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **threads}, check=True)


def measure_side(name: str, side: str, folder: str) -> None:
    """One side's figures, in its own process and environment."""
    module = import_module(f"tests.benchmarks.peers.{name}")
    with np.load(f"{folder}/inputs.npz") as arrays:
        works = getattr(module, side)(dict(arrays))
    kept = {}
    for number, (what, work) in enumerate(works.items()):
        output, times = work(), []  # it is warm
        for _ in range(ROUNDS):
            start = time.process_time()
            output = work()
            times.append(1000 * (time.process_time() - start))
        returned = np.zeros(0) if output is None else np.asarray(output)
        kept |= {f"name{number}": what, f"times{number}": times, f"output{number}": returned}
    np.savez(f"{folder}/{side}.npz", **kept)


def read_side(folder: Path, side: str) -> Results:
    with np.load(folder / f"{side}.npz") as kept:
        return {
            str(kept[f"name{n}"]): (kept[f"times{n}"].tolist(), kept[f"output{n}"])
            for n in range(len(kept) // 3)
        }


if __name__ == "__main__":
    main()
