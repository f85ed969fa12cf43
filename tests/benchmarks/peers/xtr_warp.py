"""Search of token vectors: xtr-warp-rs, which imputes. It brings a torch with CUDA, 5 GB."""

from tests.benchmarks.peers._search import inputs, named, ours, split

__all__ = ["inputs", "ours", "peer"]
REQUIREMENTS = ["xtr-warp-rs==2.1.0.2110", "numpy"]


def peer(arrays):
    import tempfile

    import torch
    from xtr_warp import XTRWarp

    documents = [torch.from_numpy(rows) for rows in split(arrays["vectors"], arrays["counts"])]
    index = XTRWarp(tempfile.mkdtemp(), "cpu")
    index.create(documents, "cpu", show_progress=False)
    index.load("cpu", mmap=False)

    def search(**options):
        def best(rows):
            query = torch.from_numpy(rows)[None]
            found = index.search(query, top_k=100, show_progress=False, **options)
            return [number for number, _ in found[0]]

        return best

    wide = {"centroid_score_threshold": 0.0, "t_prime": 100_000, "max_candidates": 140_000}
    searches = {"its own choice": search()}
    for probes in (4, 8, 16, 32):
        searches[f"{probes} probes"] = search(nprobe=probes, bound=64 * probes, **wide)
    return named(arrays, searches)
