"""Indexes that were damaged, or made by hand, are refused with the name of the file at fault."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gr_mvdr.files import (
    read_arrays,
    read_checkpoint,
    read_tensors,
    write_arrays,
)
from gr_mvdr.token_index.codec import Storage
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.search import SearchOptions
from gr_mvdr.token_vectors import PackedTokens

LISTS = SearchOptions("gather", lists=4)


def packed(documents=30, tokens=10):
    generator = torch.Generator().manual_seed(0)
    total = documents * tokens
    vectors = torch.randn(total, 8, generator=generator)
    counts = torch.full((documents,), tokens)
    return PackedTokens(vectors, counts, torch.ones(total, dtype=torch.long))


def names(kind):
    return [f"{kind}{number}" for number in range(30)]


BINARY = (".safetensors", ".npy")


@pytest.mark.parametrize("dtype", ["float32", "residual"])
def test_a_flipped_bit_anywhere_in_a_token_index_is_found(dtype, tmp_path):
    storage = Storage(dtype, pq_bytes=2)
    index = TokenIndex.build(tmp_path / "i", names("d"), lambda ids: [packed()], storage)
    index.add(names("e"), lambda ids: [packed()])
    index.delete(["d3"])
    index.proposer(LISTS)
    places = random.Random(0)
    for file in [path for path in (tmp_path / "i").rglob("*") if path.suffix in BINARY]:
        whole = file.read_bytes()
        for place in [0, len(whole) - 2, *(places.randrange(len(whole) - 1) for _ in range(5))]:
            file.write_bytes(
                whole[:place]
                + bytes([whole[place] ^ 1 << places.randrange(6)])
                + whole[place + 1 :]
            )
            with pytest.raises(ValueError, match=f"{file.parent.name}/{file.name}"):
                TokenIndex(tmp_path / "i").proposer(LISTS)
        file.write_bytes(whole)
    TokenIndex(tmp_path / "i").proposer(LISTS)


def test_a_file_without_read_permission_is_not_called_damaged(tmp_path, monkeypatch):
    torch.save({"state_dict": {}}, tmp_path / "last.ckpt")
    save_file({"x": torch.zeros(2)}, tmp_path / "model.safetensors")
    write_arrays(tmp_path / "arrays", {"a": np.zeros(2)}, {})
    readers = {
        "last.ckpt": read_checkpoint,
        "model.safetensors": read_tensors,
        "arrays/arrays.json": lambda file: read_arrays(file.parent, ("a",)),
    }
    for file in readers:
        (tmp_path / file).chmod(0)
    (tmp_path / "arrays").chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    user = os.geteuid()
    if not user:  # root may read every file
        os.seteuid(65534)
    try:
        for file, read in readers.items():
            with pytest.raises(PermissionError, match=file):
                read(Path(file))
    finally:
        os.seteuid(user)
