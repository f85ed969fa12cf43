"""Writes a `TokenStore`: as a stream, append-only, and whole at every moment or not there at all.

Data files only grow, and the header, replaced as a whole, says how much of them counts.
"""

import errno
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from gr_mvdr.files.arrays import Checksum, checksum, with_samples, write_array, write_sealed
from gr_mvdr.files.writing import new_folder
from gr_mvdr.token_index.store import (
    DTYPES,
    HEADER,
    Header,
    ProductQuantiser,
    TokenStore,
    columns_of,
    empty_header,
)
from gr_mvdr.token_vectors import PackedTokens

# Vectors that are quantised at once.
_BLOCK = 262_144


def create(
    directory: Path,
    document_ids: Sequence[str],
    encoded: Iterable[PackedTokens],
    dtype: str = "float32",
    pq_bytes: int = 16,
    fingerprint: dict[str, str] | None = None,
    seed: int = 0,
) -> None:
    """Writes a store from a stream, never holding more than one batch of it.

    Args:
        directory: is created, or replaced once the new store is complete.
        document_ids: D ids in the stream's order.
        encoded: batches of documents.
        dtype: stored type of vectors: "float32", "float16", or "pq": product-quantised to
            `pq_bytes` bytes, with `seed` for the sample and the k-means.
        fingerprint: what the store depends on, such as {"model": …, "collection": …}.

    Raises:
        ValueError: the documents are not as many as the ids, an id comes twice, a document has no
            token, an unknown type, or bytes that do not divide the vectors.
        OSError: the disk is full; nothing half-written remains.
    """
    if dtype not in DTYPES:
        raise ValueError(f"model.search.dtype={dtype}: must be one of {', '.join(DTYPES)}")
    with (
        _disk_full(directory, len(document_ids)) as written,
        new_folder(directory, replace=True) as folder,
    ):
        header = empty_header("float16" if dtype == "pq" else dtype, fingerprint or {})
        header = _append(folder, header, document_ids, encoded, written, {})
        write_sealed(folder / HEADER, header)
        if dtype == "pq":
            _quantise(TokenStore(folder), pq_bytes, seed, written)


def append(store: TokenStore, document_ids: Sequence[str], encoded: Iterable[PackedTokens]) -> None:
    """Adds documents to a store on disk, which stays as it was if anything goes wrong.

    Raises: as `create`, and ValueError for an id that the store holds already.
    """
    known = {store.document_ids[number] for number in store.live.nonzero()[:, 0].tolist()}
    for name in document_ids:
        if name in known:
            raise ValueError(f"index={store.directory}: document {name!r} is in it already")
    try:
        _cut(store.directory, store.header)  # what an interrupted `append` left behind
        with _disk_full(store.directory, len(document_ids)) as written:
            how = store.header, document_ids, encoded, written, store.quantisers
            write_sealed(store.directory / HEADER, _append(store.directory, *how))
    except BaseException:
        _cut(store.directory, store.header)
        raise


def delete(store: TokenStore, document_ids: Sequence[str]) -> None:
    """Declares documents of a store deleted; their bytes remain.

    Raises:
        ValueError: an id that is not in the store.
    """
    numbers = sorted({*store.header["deleted"], *store.numbers(document_ids).tolist()})
    change = {"deleted": numbers, "revision": store.header["revision"] + 1}
    write_sealed(store.directory / HEADER, {**store.header, **change})


class _Progress:
    """What has been written or was about to be: how many documents, in how many bytes."""

    documents = 0
    bytes = 0


@contextmanager
def _disk_full(directory: Path, documents: int) -> Iterator[_Progress]:
    """Says what would have been needed where the disk is full."""
    written = _Progress()
    try:
        yield written
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        needed = written.bytes * documents // max(written.documents, 1)
        free = shutil.disk_usage(directory.parent).free
        raise OSError(
            error.errno,
            f"index={directory}: the disk is full: {documents:,} documents need about "
            f"{needed:,} bytes, {free:,} are free",
        ) from error


def _append(
    directory: Path,
    header: Header,
    document_ids: Sequence[str],
    encoded: Iterable[PackedTokens],
    written: _Progress,
    quantisers: dict[str, ProductQuantiser],
) -> Header:
    """Writes a stream behind the rows that the header counts; returns the new header."""
    if len(set(document_ids)) != len(document_ids) or not len(document_ids):
        raise ValueError(
            f"index={directory}: {len(document_ids)} ids, {len(set(document_ids))} of them "
            "different: must be at least one, and all different"
        )
    tokens, sums = header["tokens"], dict(header.get("files", {}))
    with ExitStack() as files:
        opened: dict[str, BinaryIO] = {}
        for batch in encoded:
            header = _fitting(header, batch, document_ids[written.documents :])
            arrays = _arrays(batch, header, quantisers)
            written.documents += len(batch.counts)
            written.bytes += sum(array.nbytes for array in arrays.values())
            for name, array in arrays.items():
                if name not in opened:
                    path = directory / f"{name}.bin"
                    # Unbuffered, so that closing it cannot fail.
                    opened[name] = files.enter_context(open(path, "ab", buffering=0))
                _write(opened[name], array)
                sums[f"{name}.bin"] = _continued(sums.get(f"{name}.bin"), array)
            tokens += len(batch.vectors)
        for file in opened.values():  # before the header that counts these rows
            os.fsync(file.fileno())
    if written.documents != len(document_ids):
        raise ValueError(
            f"index={directory}: {len(document_ids)} ids but {written.documents} documents"
        )
    if "files" in header:  # an index of an earlier version has no checksums
        header["files"] = {name: with_samples(directory / name, sums[name]) for name in sums}
    names, revision = [*header["document_ids"], *document_ids], header["revision"] + 1
    return {**header, "document_ids": names, "tokens": tokens, "revision": revision}


def _continued(known: Checksum | None, array: np.ndarray) -> Checksum:
    """The checksum of a file to which these rows were added."""
    known = known or {"bytes": 0, "crc32": 0}
    crc = zlib.crc32(array.reshape(-1).data.cast("B"), known["crc32"])
    return {"bytes": known["bytes"] + array.nbytes, "crc32": crc}


def _fitting(header: Header, batch: PackedTokens, names: Sequence[str]) -> Header:
    """The header, which takes its sizes from the first batch; refuses a batch that is different."""
    vectors = {"vectors": batch.vectors, "keys": batch.keys}
    sizes = {name: part.shape[1] for name, part in vectors.items() if part is not None}
    has_salience = batch.salience is not None
    if header["sizes"] and (header["sizes"], header["salience"]) != (sizes, has_salience):
        raise ValueError(
            f"token index: vectors of {sizes}, salience {has_salience}; those in the index are of "
            f"{header['sizes']}, salience {header['salience']}"
        )
    if (batch.counts < 1).any():
        name = names[int((batch.counts < 1).nonzero()[0])]
        raise ValueError(f"token index: document {name!r} has no token vector, must have one")
    for part in (batch.vectors, batch.keys, batch.salience):
        if part is not None and not part.isfinite().all():
            row = int((~part.isfinite()).nonzero()[0, 0])
            name = names[int(torch.searchsorted(batch.counts.cumsum(0), row, right=True))]
            raise ValueError(f"token index: document {name!r} has a vector that is not finite")
    return {**header, "sizes": sizes, "salience": has_salience}


def _arrays(
    batch: PackedTokens, header: Header, quantisers: dict[str, ProductQuantiser]
) -> dict[str, np.ndarray]:
    """The rows of every column, as they are stored."""
    parts = {name: part.cpu() for name, part in batch._asdict().items() if part is not None}
    parts |= {name: quantiser.encode(parts[name]) for name, quantiser in quantisers.items()}
    columns = columns_of(header)
    return {n: np.ascontiguousarray(part.numpy(), columns[n].dtype) for n, part in parts.items()}


def _quantise(store: TokenStore, n_bytes: int, seed: int, written: _Progress) -> None:
    """Replaces a store's fp16 vectors by codes that are learned from a sample of all of them."""
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randperm(store.n_tokens, generator=generator)[: ProductQuantiser.sample_size()]
    for name in store.sizes:
        quantiser = ProductQuantiser.train(store.vectors(name, sample.sort().values), n_bytes, seed)
        write_array(store.directory / f"{name}.codebook.npy", quantiser.codebooks.numpy())
        codes = store.directory / f"{name}.codes"
        with open(codes, "wb", buffering=0) as file:
            for start in range(0, store.n_tokens, _BLOCK):
                array = quantiser.encode(store.vectors(name, slice(start, start + _BLOCK))).numpy()
                written.bytes += array.nbytes
                _write(file, array)
        codes.replace(store.directory / f"{name}.bin")
    header = {**store.header, "dtype": "pq", "pq_bytes": n_bytes}
    quantised = [f"{name}.{part}" for name in store.sizes for part in ("bin", "codebook.npy")]
    header["files"] |= {name: checksum(store.directory / name) for name in quantised}
    write_sealed(store.directory / HEADER, header)


def _write(file: BinaryIO, array: np.ndarray) -> None:
    rest = array.reshape(-1).data.cast("B")
    while len(rest):  # an unbuffered file may take less than all
        rest = rest[file.write(rest) :]


def _cut(directory: Path, header: Header) -> None:
    """Removes the rows behind those that the header counts."""
    for name, column in columns_of(header).items():
        os.truncate(directory / f"{name}.bin", column.size)
