"""Writes a `TokenStore`: as a stream, append-only, and whole at every moment or not there at all.

Data files only grow, and the header, replaced as a whole, says how much of them counts.
"""

import errno
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from gr_mvdr.files import (
    Checksum,
    checksum,
    continued,
    read_sealed,
    resumable_folder,
    verify,
    with_samples,
    write_sealed,
)
from gr_mvdr.progress import track
from gr_mvdr.token_index.quantiser import (
    ProductQuantiser,
    Quantiser,
    ResidualQuantiser,
    default_bytes,
    sample_size,
    save,
)
from gr_mvdr.token_index.store import (
    CODED,
    DTYPES,
    HEADER,
    Header,
    TokenStore,
    columns_of,
    empty_header,
)
from gr_mvdr.token_vectors import PackedTokens

# Batches of documents in order, or a function that gives those from document n on.
Stream = Iterable[PackedTokens] | Callable[[int], Iterable[PackedTokens]]

_SECONDS = 30.0  # of work that a killed build loses
# Vectors that are quantised at once.
_BLOCK = 262_144


def create(
    directory: Path,
    document_ids: Sequence[str],
    encoded: Stream,
    dtype: str = "float32",
    pq_bytes: int | None = None,
    fingerprint: dict[str, str] | None = None,
    seed: int = 0,
    lists: int | None = None,
    vocabulary: int | None = None,
) -> None:
    """Writes a store from a stream, never holding more than one batch of it.

    A build that was killed goes on where it stopped, if it has a fingerprint and a stream that can
    begin anywhere. Codes are learned from the first `sample_size` vectors of the stream, which are
    best a fair sample of it.

    Args:
        directory: is created, or replaced once the new store is complete.
        document_ids: D ids in the stream's order.
        encoded: batches of documents, or a function that gives those from document n on.
        dtype: stored type of vectors: "float32", "float16", "pq": product-quantised to `pq_bytes`
            bytes, "residual": one of `lists` centroids, and so many bytes for what that leaves;
            with `seed` for the sample and the k-means.
        pq_bytes: None = one for 8 dimensions under "pq", for 4 under "residual".
        fingerprint: what the store depends on, such as {"model": …, "collection": …}.
        lists: None = as many as `n_clusters` says.
        vocabulary: number of token ids; 2 bytes hold an id of a small one. None = unknown.

    Raises:
        ValueError: the documents are not as many as the ids, an id comes twice, a document has no
            token, an unknown type, or bytes that do not divide the vectors.
        OSError: the disk is full; nothing half-written remains.
    """
    if dtype not in DTYPES:
        raise ValueError(f"model.search.dtype={dtype}: must be one of {', '.join(DTYPES)}")
    _check_different(directory, document_ids)
    header = empty_header("float16" if dtype in CODED else dtype, fingerprint or {}, vocabulary)
    header["plan"] = [dtype, pq_bytes, seed, lists, zlib.crc32("\n".join(document_ids).encode())]
    can_resume = fingerprint and callable(encoded)
    with (
        _disk_full(directory, len(document_ids)) as written,
        resumable_folder(directory, HEADER if can_resume else None) as folder,
    ):
        header = _begun(folder, header)
        held = len(header["document_ids"])
        stream = iter(encoded(held) if callable(encoded) else encoded)
        if header["dtype"] != dtype:
            beginning = _beginning(stream, header, len(document_ids), dtype, lists)
            header = _append(folder, header, document_ids[held:], beginning, written, {}, True)
            write_sealed(folder / HEADER, header)
            _quantise(folder, dtype, len(document_ids), written)
        quantisers = {}
        if dtype in CODED:
            store = TokenStore(folder)
            header, quantisers = store.header, store.quantisers
        rest = document_ids[len(header["document_ids"]) :]
        header = _append(folder, header, rest, stream, written, quantisers, True)
        _check_count(directory, len(document_ids), held + written.documents)
        del header["plan"]
        write_sealed(folder / HEADER, {**header, "revision": 1})


def append(store: TokenStore, document_ids: Sequence[str], encoded: Iterable[PackedTokens]) -> None:
    """Adds documents to a store on disk, which stays as it was if anything goes wrong.

    Raises: as `create`, and ValueError for an id that the store holds already.
    """
    _check_different(store.directory, document_ids)
    known = {store.document_ids[number] for number in store.live.nonzero()[:, 0].tolist()}
    for name in document_ids:
        if name in known:
            raise ValueError(f"index={store.directory}: document {name!r} is in it already")
    try:
        _cut(store.directory, store.header)  # what an interrupted `append` left behind
        with _disk_full(store.directory, len(document_ids)) as written:
            how = store.header, document_ids, encoded, written, store.quantisers
            header = _append(store.directory, *how)
            _check_count(store.directory, len(document_ids), written.documents)
            write_sealed(store.directory / HEADER, header)
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


def _check_different(directory: Path, document_ids: Sequence[str]) -> None:
    if len(set(document_ids)) != len(document_ids) or not len(document_ids):
        raise ValueError(
            f"index={directory}: {len(document_ids)} ids, {len(set(document_ids))} of them "
            "different: must be at least one, and all different"
        )


def _check_count(directory: Path, ids: int, documents: int) -> None:
    if documents != ids:
        raise ValueError(f"index={directory}: {ids} ids but {documents} documents")


def _begun(folder: Path, header: Header) -> Header:
    """The header of what a killed process wrote of the same store, or else of an empty one."""
    try:
        found = read_sealed(folder / HEADER)
        same = all(found.get(key) == header[key] for key in ("plan", "fingerprint"))
        for name, expected in found["files"].items() if same else ():
            verify(folder / name, expected)
    except (OSError, ValueError, KeyError):
        same = False
    if same:
        _cut(folder, found)
        return found
    for path in folder.iterdir():
        path.unlink()
    return header


def _beginning(
    stream: Iterator[PackedTokens], header: Header, documents: int, dtype: str, lists: int | None
) -> Iterator[PackedTokens]:
    """The batches of a stream until the quantiser of so many documents can learn from them."""
    held, tokens = len(header["document_ids"]), header["tokens"]
    while not held or tokens < sample_size(dtype, tokens * documents // held, lists):
        batch = next(stream, None)
        if batch is None:
            return
        held, tokens = held + len(batch.counts), tokens + len(batch.vectors)
        yield batch


def _append(
    directory: Path,
    header: Header,
    document_ids: Sequence[str],
    encoded: Iterable[PackedTokens],
    written: _Progress,
    quantisers: dict[str, Quantiser],
    resumable: bool = False,
) -> Header:
    """Writes a stream behind the rows that the header counts; returns the new header.

    Args:
        document_ids: of the stream's documents, and of those that come behind it.
        resumable: write the header from time to time, so that all until then counts.
    """
    header, sums = {**header, "revision": header["revision"] + 1}, dict(header.get("files", {}))
    held, count, due = header["document_ids"], 0, time.monotonic() + _SECONDS
    with ExitStack() as files:
        opened: dict[str, BinaryIO] = {}
        for batch in encoded:
            header = _fitting(header, batch, document_ids[count:])
            arrays = _arrays(batch, header, quantisers)
            count += len(batch.counts)
            written.documents += len(batch.counts)
            written.bytes += sum(array.nbytes for array in arrays.values())
            for name, array in arrays.items():
                if name not in opened:
                    path = directory / f"{name}.bin"
                    # Unbuffered, so that closing it cannot fail.
                    opened[name] = files.enter_context(open(path, "ab", buffering=0))
                _write(opened[name], array)
                sums[f"{name}.bin"] = continued(sums.get(f"{name}.bin", {}), array)
            header["tokens"] += len(batch.vectors)
            if resumable and time.monotonic() > due:
                header["document_ids"] = [*held, *document_ids[:count]]
                write_sealed(directory / HEADER, _flushed(directory, header, opened, sums))
                due = time.monotonic() + _SECONDS
        header["document_ids"] = [*held, *document_ids[:count]]
        return _flushed(directory, header, opened, sums)


def _flushed(
    directory: Path, header: Header, opened: dict[str, BinaryIO], sums: dict[str, Checksum]
) -> Header:
    """The header with the checksums of files, which are on the disk before it."""
    for file in opened.values():
        os.fsync(file.fileno())
    if "files" not in header:  # an index of an earlier version has no checksums
        return header
    return {**header, "files": {name: with_samples(directory / name, sums[name]) for name in sums}}


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
    batch: PackedTokens, header: Header, quantisers: dict[str, Quantiser]
) -> dict[str, np.ndarray]:
    """The rows of every column, as they are stored."""
    parts = {name: part.cpu() for name, part in batch._asdict().items() if part is not None}
    columns = columns_of(header)
    arrays: dict[str, torch.Tensor] = {}
    for name, part in parts.items():
        stored = quantisers[name].encode(part) if name in quantisers else (part,)
        arrays |= dict(zip((name, f"{name}_centroids"), stored, strict=False))
    return {n: np.ascontiguousarray(part.numpy(), columns[n].dtype) for n, part in arrays.items()}


def _quantise(directory: Path, dtype: str, documents: int, written: _Progress) -> None:
    """Replaces a store's fp16 vectors by codes that are learned from a sample of them.

    Args:
        documents: that the store will hold.
    """
    store = TokenStore(directory)
    _, n_bytes, seed, lists, _ = store.header["plan"]
    tokens = store.n_tokens * documents // len(store)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(store.n_tokens, generator=generator)[: sample_size(dtype, tokens, lists)]
    if n_bytes is None:
        n_bytes = default_bytes(dtype, store.sizes["vectors"])
    header, new = {**store.header, "dtype": dtype, "pq_bytes": n_bytes, "unit": []}, []
    for name in store.sizes:
        sample = store.vectors(name, rows)
        quantiser: Quantiser
        if dtype == "pq":
            quantiser = ProductQuantiser.train(sample, n_bytes, seed)
        else:
            quantiser = ResidualQuantiser.train(sample, n_bytes, seed, tokens, lists)
            header["unit"] += [name] if quantiser.is_unit else []
        new += save(quantiser, directory, name)
        new += _encode(store, name, quantiser, written)
    for name in store.sizes:
        (directory / f"{name}.codes").replace(directory / f"{name}.bin")
    header["files"] |= {name: checksum(directory / name) for name in new}
    write_sealed(directory / HEADER, header)


def _encode(store: TokenStore, name: str, quantiser: Quantiser, written: _Progress) -> list[str]:
    """Writes the codes of a column, under another name than the vectors'; returns the files."""
    parts = {f"{name}.bin": f"{name}.codes", f"{name}_centroids.bin": f"{name}_centroids.bin"}
    parts = dict(list(parts.items())[: len(quantiser.encode(store.vectors(name, slice(0, 1))))])
    with ExitStack() as stack:
        files = [
            stack.enter_context(open(store.directory / part, "wb", buffering=0))
            for part in parts.values()
        ]
        for start in track(range(0, store.n_tokens, _BLOCK), "coding vectors"):
            codes = quantiser.encode(store.vectors(name, slice(start, start + _BLOCK)))
            for file, part in zip(files, codes, strict=True):
                written.bytes += part.numpy().nbytes
                _write(file, part.numpy())
    return list(parts)


def _write(file: BinaryIO, array: np.ndarray) -> None:
    rest = array.reshape(-1).data.cast("B")
    while len(rest):  # an unbuffered file may take less than all
        rest = rest[file.write(rest) :]


def _cut(directory: Path, header: Header) -> None:
    """Removes the rows behind those that the header counts."""
    for name, column in columns_of(header).items():
        os.truncate(directory / f"{name}.bin", column.size)
