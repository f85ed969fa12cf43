import json

import numpy as np
import pytest

from gr_mvdr.files import checksum
from gr_mvdr.identifiers.scheme import Identifiers, hash_collection

IDS = ["a", "b", "c", "d", "e"]
# Two documents share [7, 5], one has no identifier.
SHARED = Identifiers(IDS, [[7, 5], [7, 6, 9], [7, 5], [], [8]])


def test_statistics_of_five_documents_counted_by_hand():
    assert SHARED.statistics() == {
        "documents": 5,
        "assigned": 4,
        "collision_rate": 2 / 4,
        "mean_length": 2.0,
        "min_length": 1,
        "max_length": 3,
        # Prefixes 7, 8, 75, 76, 769; what can be followed: nothing yet, 7 and 76.
        "branching": 5 / 3,
    }
    result = Identifiers(["a"], [[]]).statistics()
    assert result.pop("documents") == 1 and set(result.values()) == {0}


def test_identifiers_come_back_from_their_folder_for_the_same_documents(tmp_path):
    SHARED.save(tmp_path / "identifiers")
    loaded = Identifiers.load(tmp_path / "identifiers", IDS)
    assert loaded == SHARED and loaded.hash == SHARED.hash
    for other in (IDS[::-1], IDS[:-1], ["ab", "c", "d", "e"]):
        message = f"identifiers: .*{hash_collection(IDS)}, must be .* {hash_collection(other)}"
        with pytest.raises(ValueError, match=message):
            Identifiers.load(tmp_path / "identifiers", other)
    with pytest.raises(FileNotFoundError, match="no such file"):
        Identifiers.load(tmp_path / "none", IDS)


def test_identifiers_of_an_earlier_version_are_read_as_they_are(tmp_path):
    older = tmp_path / "identifiers"
    older.mkdir()
    lengths = [len(sequence) for sequence in SHARED.sequences]
    np.save(older / "starts.npy", np.cumsum([0, *lengths]))
    np.save(older / "tokens.npy", np.concatenate(SHARED.sequences).astype(np.int64))
    files = {file.name: checksum(file) for file in older.iterdir()}
    contents = {"settings": {"document_ids": IDS}, "files": files}
    (older / "arrays.json").write_text(json.dumps(contents))
    assert Identifiers.load(tmp_path / "identifiers.safetensors", IDS) == SHARED
    for name in ("tokens.npy", "arrays.json"):
        content = (older / name).read_bytes()
        for damaged in (content[:-1], content[:-1] + b"x"):
            (older / name).write_bytes(damaged)
            with pytest.raises(ValueError, match="identifiers: is damaged"):
                Identifiers.load(tmp_path / "identifiers.safetensors", IDS)
        (older / name).write_bytes(content)
    (older / "tokens.npy").unlink()
    with pytest.raises(ValueError, match="identifiers: is damaged.*tokens.npy"):
        Identifiers.load(tmp_path / "identifiers.safetensors", IDS)
