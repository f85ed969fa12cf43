import pytest

from data_modules.collection import collect
from data_modules.formats.catalogue import read_layout, read_layouts
from tests.data_modules.formats.miniature import MINIATURES, copied
from tests.runs import write_beir


def test_an_unknown_format_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"^data\.format=csv: must be one of beir, wu, .*trec"):
        read_layout(MINIATURES / "wu", "csv")


def test_unknown_files_are_named(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"no known format in notes\.txt; name it with data\.form"):
        read_layout(tmp_path)


def test_two_formats_in_a_folder_have_to_be_told_apart(tmp_path):
    folder = copied("wu", tmp_path)
    for file in (MINIATURES / "genret").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match=r"may be wu or genret: say data\.format="):
        read_layout(folder)
    assert read_layout(folder, "genret").options["reader"] == "genret/1"


def made(folder, texts, splits):
    """A folder in BEIR layout: document n and query n belong together in every split."""
    rows = [{"_id": str(n), "text": text} for n, text in enumerate(texts)]
    pairs = [(row["_id"], row["_id"]) for row in rows]
    return str(write_beir(folder, rows, rows, dict.fromkeys(splits, pairs)))


def test_several_folders_are_one_collection(tmp_path):
    one = made(tmp_path / "one", ["pear", "plum"], ["train", "test"])
    two = made(tmp_path / "two", ["oak"], ["train"])
    found = collect(read_layouts([one, two]), tmp_path / "store")
    assert found.name == "one+two"
    assert found.documents["id"][:] == found.queries["id"][:] == ["one/0", "one/1", "two/0"]
    assert found.documents["text"][:] == ["pear", "plum", "oak"]
    assert found.judgements("train")["two/0"] == {"two/0": 1} and len(found.qrels["test"]) == 2
    with pytest.raises(ValueError, match="must be folders of different names, got one, one"):
        read_layouts([one, one])
