"""Benchmark of what a person waits for first: help, an error, the imports, a run of BM25."""

import sys
from itertools import count
from tempfile import TemporaryDirectory

from tests.benchmarks.rows import compare, run_alone

LIBRARIES = "import torch, transformers.modeling_utils, pytorch_lightning, datasets, hydra"


def main() -> None:
    python, train = [sys.executable], [sys.executable, "train.py"]
    for work, key in (("`train.py --help`", "--help"), ("an unknown key", "model.dimensions=8")):
        steps = {"ours": lambda key=key: run_alone([*train, key], check=key == "--help")}
        steps["`import hydra`"] = lambda: run_alone([*python, "-c", "import hydra"])
        compare(work, steps, bar=4)
    compare(
        "`import train`",
        {
            "ours": lambda: run_alone([*python, "-c", "import train"]),
            "the libraries it imports": lambda: run_alone([*python, "-c", LIBRARIES]),
        },
        bar=1.5,
        rounds=3,
    )
    with TemporaryDirectory() as folder:
        run = [*train, "model=bm25", "analysis=none", "logger=none", f"output={folder}"]
        number = count()
        steps = {"ours": lambda: run_alone([*run, f"name={next(number)}"])}
        steps["`import train`"] = lambda: run_alone([*python, "-c", "import train"])
        compare("a run of BM25 on the almanac", steps, rounds=2)


if __name__ == "__main__":
    main()
