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


def test_without_identifiers_the_statistics_are_zeros():
    found = Identifiers(["a"], [[]]).statistics()
    assert found.pop("documents") == 1
    assert set(found.values()) == {0}


def test_identifiers_come_back_from_their_folder(tmp_path):
    SHARED.save(tmp_path / "identifiers")
    loaded = Identifiers.load(tmp_path / "identifiers", hash_collection(IDS))
    assert loaded == SHARED and loaded.hash == SHARED.hash
    assert loaded.of(1) == [7, 6, 9] and loaded.of(3) == []
    assert loaded.of(loaded.document_ids.index("e")) == [8]


def test_a_collections_hash_tells_ids_and_their_order():
    different = [IDS, IDS[::-1], IDS[:-1], ["ab", "c", "d", "e"], ["a", "b", "c", "d,e"]]
    assert len({hash_collection(ids) for ids in different}) == len(different)
    assert hash_collection(tuple(IDS)) == hash_collection(IDS)


def test_identifiers_of_another_collection_are_refused_by_name(tmp_path):
    SHARED.save(tmp_path / "identifiers")
    own, other = hash_collection(IDS), hash_collection(["z"])
    message = f"{tmp_path}/identifiers: .*{own}, must be of collection {other}"
    with pytest.raises(ValueError, match=message):
        Identifiers.load(tmp_path / "identifiers", other)


def test_a_missing_folder_and_a_second_writing_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        Identifiers.load(tmp_path / "none", hash_collection(IDS))
    SHARED.save(tmp_path / "identifiers")
    with pytest.raises(ValueError, match="exists already"):
        SHARED.save(tmp_path / "identifiers")
