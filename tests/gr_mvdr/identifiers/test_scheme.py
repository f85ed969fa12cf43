import pytest

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
