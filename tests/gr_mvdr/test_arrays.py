"""Damage is found when a file is opened: of small files any, of large ones what reaches a block."""

import numpy as np
import pytest

from gr_mvdr import files
from gr_mvdr.files import checksum, read_sealed, verify, write_sealed


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A file that counts as a large one: 8 blocks of 16 bytes are read of 1,000."""
    for name, value in (("SMALL", 100), ("_SAMPLES", 8), ("_SAMPLE_BYTES", 16)):
        monkeypatch.setattr(files, name, value)
    file = tmp_path / "file"
    file.write_bytes(np.random.default_rng(0).bytes(1000))
    return file


def flipped(file, place):
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_of_a_large_file_blocks_are_read_and_on_request_all(large):
    expected = checksum(large)
    verify(large, expected)
    flipped(large, 50)  # between the first block and the second
    verify(large, expected)
    with pytest.raises(ValueError, match="file: is damaged, its crc32"):
        verify(large, expected, whole=True)
    flipped(large, 50)
    for place in (0, 999):
        flipped(large, place)
        with pytest.raises(ValueError, match="file: is damaged, its sampled"):
            verify(large, expected)
        flipped(large, place)
    large.write_bytes(large.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"999 bytes, expected 1000: it was cut short"):
        verify(large, expected)


def test_a_file_may_have_grown_behind_what_was_summed_up(large):
    expected = checksum(large, 500)
    flipped(large, 600)
    verify(large, expected, whole=True)
    flipped(large, 400)
    with pytest.raises(ValueError, match="is damaged"):
        verify(large, expected, whole=True)


def test_sealed_json_knows_its_content(tmp_path):
    file = tmp_path / "a.json"
    write_sealed(file, {"b": [1, 2], "a": "ä"})
    assert read_sealed(file) == {"a": "ä", "b": [1, 2]}
    file.write_text(file.read_text().replace("2]", "3]"))
    with pytest.raises(ValueError, match=r"a.json: is damaged, its content does not fit"):
        read_sealed(file)
    for text in ("", "[1]", '{"a": '):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"a.json: is damaged, must be a JSON object"):
            read_sealed(file)
