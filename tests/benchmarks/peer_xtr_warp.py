"""Searches given vectors with xtr-warp-rs, in the peers' environment; see `bench_index`.

    .peers/bin/python tests/benchmarks/peer_xtr_warp.py FOLDER

Prints JSON: for every setting its name, seconds of the build, seconds a query, and the rankings.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from xtr_warp.search import XTRWarp

PROBES, DEPTH = (1, 4, 16, 64, 256), 100


def main(folder: str) -> None:
    torch.set_num_threads(1)
    lengths = json.loads(Path(folder, "lengths.json").read_text())
    documents, queries = (
        torch.from_numpy(np.load(f"{folder}/{name}.npy")).split(own)
        for name, own in zip(("documents", "queries"), lengths, strict=True)
    )
    index, start, rows = XTRWarp(f"{folder}/index"), time.process_time(), []
    index.create(list(documents), device="cpu", show_progress=False)
    built = time.process_time() - start
    index.load("cpu")
    for probes in PROBES:
        options = dict(top_k=DEPTH, nprobe=probes, show_progress=False)
        index.search(queries[0][None], **options)
        start = time.process_time()
        found = [index.search(query[None], **options)[0] for query in queries]
        seconds = (time.process_time() - start) / len(queries)
        rankings = [[number for number, _ in own] for own in found]
        rows.append((f"nprobe = {probes}", built, seconds, rankings))
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1])
