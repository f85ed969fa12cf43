"""Token vectors as plain arrays, which other search engines read: the format of docs/export.md."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gr_mvdr.alignment import MaxSim
from gr_mvdr.files import name_errors, temporary_folder, write_array, write_json
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.store import TokenStore
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, stack
from models.multi_vector import MultiVector
from models.token_search import EncodedQueries

FORMAT = 1
MANIFEST = "manifest.json"
# Texts in a file, the fewest that xtr-warp reads together; texts in memory together.
_FILE, _BLOCK = 25_000, 500


def write_token_arrays(
    system: MultiVector, queries: dict[str, EncodedQueries], folder: Path
) -> dict[str, Any]:
    """Writes the indexed documents of a system and some queries, a block at a time.

    Args:
        system: it has a `TokenIndex`; deleted documents are left out.
        queries: by the name of their folder, such as "queries".
        folder: exists and is empty.

    Returns: what the manifest says.

    Raises:
        ValueError: its alignment is made of keys, which no engine has.
    """
    store = system.searcher.store
    if "keys" in store.sizes:
        raise ValueError(
            "vectors=true: the system aligns by separate keys, must align by its vectors"
        )
    manifest = {
        "format": FORMAT,
        "dimension": store.sizes["vectors"],
        "dtype": _dtype(store).name,
        "alignment": str(system.scoring.alignment),
        "normaliser": system.scoring.normaliser,
        "maxsim": system.scoring.alignment == MaxSim() and not store.has_salience,
        **store.fingerprint,
        "documents": _write_texts(store, folder / "documents", _dtype(store)),
    }
    for name, encoded in queries.items():
        vectors = dict(encoded)
        encode = partial(_pack, vectors)
        held = TokenIndex.build(temporary_folder("queries"), list(vectors), encode)
        manifest[name] = _write_texts(held.store, folder / name, _dtype(store))
    write_json(folder / MANIFEST, manifest)
    return manifest


def _pack(vectors: dict[str, TokenVectors], names: Sequence[str]) -> Iterator[PackedTokens]:
    yield stack([vectors[name] for name in names]).pack()


def _dtype(store: TokenStore) -> np.dtype:
    """What codes stand for has no more digits than fp16 has."""
    return np.dtype(np.float32 if store.dtype == "float32" else np.float16)


def _write_texts(store: TokenStore, folder: Path, dtype: np.dtype) -> dict[str, int]:
    """`folder` with the vectors, and next to it the ids and, where there are any, saliences."""
    folder.mkdir()
    live = store.live.nonzero()[:, 0]
    counts = store.counts[live]
    for number, texts in enumerate(live.split(_FILE)):
        shape = (int(store.counts[texts].sum()), store.sizes["vectors"])
        blocks = (store.read(block).vectors for block in texts.split(_BLOCK))
        _write_blocks(folder / f"vectors_{number:05}.npy", dtype, shape, blocks)
        write_array(folder / f"vectors_{number:05}.doclens.npy", store.counts[texts].numpy())
    if store.has_salience:
        blocks = (store.read(block).salience for block in live.split(_BLOCK))
        path = folder.with_name(f"{folder.name}_salience.npy")
        _write_blocks(path, np.dtype(np.float32), (int(counts.sum()),), blocks)
    ids = [store.document_ids[number] for number in live.tolist()]
    write_json(folder.with_name(f"{folder.name}.json"), ids, indent=None)
    return {"count": len(ids), "tokens": int(counts.sum())}


def _write_blocks(
    file: Path, dtype: np.dtype, shape: tuple[int, ...], blocks: Iterable[Tensor]
) -> None:
    """A `.npy` file of a known shape, written block by block."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with name_errors(file), file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for block in blocks:
            stream.write(np.ascontiguousarray(block.numpy(), dtype).data)
