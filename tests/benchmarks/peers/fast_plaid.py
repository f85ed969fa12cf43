"""Search of token vectors: fast-plaid, residuals of centroids. It brings CUDA, 5 GB."""

from tests.benchmarks.peers._search import inputs, named, ours, split

__all__ = ["inputs", "ours", "peer"]
REQUIREMENTS = ["fast-plaid==1.7.0.2110", "numpy"]


def peer(arrays):
    import tempfile

    import torch
    from fast_plaid import search as plaid

    documents = [torch.from_numpy(rows) for rows in split(arrays["vectors"], arrays["counts"])]
    index = plaid.FastPlaid(tempfile.mkdtemp(), "cpu")
    index.create(documents_embeddings=documents)

    def search(**options):
        def best(rows):
            query = [torch.from_numpy(rows)]
            found = index.search(query, top_k=100, show_progress=False, n_processes=1, **options)
            return [number for number, _ in found[0]]

        return best

    settings = {"its defaults": {}, "500 scored": {"n_full_scores": 500}}
    settings["2 probes, 500 scored"] = {"n_full_scores": 500, "n_ivf_probe": 2}
    return named(arrays, {name: search(**options) for name, options in settings.items()})
