import json
import shutil
from dataclasses import replace

import pytest

from data_modules.collection import collect
from data_modules.formats.layout import Document, Judgement, Layout, NamedPair, Query
from gr_mvdr.evaluation.ranking import Ranking
from tests.data_modules.tiny import make_collection


def test_without_a_name_the_split_test_is_measured_or_dev_or_the_only_other():
    def chosen(*splits):
        collection = make_collection(["x"], {"q": "x"}, qrels={s: [("q", "d0")] for s in splits})
        return collection.default_test_split("train")

    assert chosen("train", "dev", "test") == "test" and chosen("train", "dev", "old") == "dev"
    assert chosen("train", "2019") == "2019"
    with pytest.raises(ValueError, match="data.test_split=null: must be one of 2019, 2020, the sp"):
        chosen("train", "2019", "2020")
    with pytest.raises(ValueError, match="data.train_split=train: must leave a split to test on"):
        chosen("train")


def test_queries_that_nothing_can_answer_are_counted():
    judged = {
        "train": [("a", "d0")],
        "test": [("b", "d0", 0), ("c", "d9"), ("d", "d1"), ("d", "d9"), ("d", "d0", 0)],
    }
    collection = make_collection(["x", "y"], dict.fromkeys("abcdef", "x"), qrels=judged)
    found = collection.unjudged(["train", "test"])
    assert found == {"in no split": 2, "test: none relevant": 2}
    assert make_collection(["x"], {}).unjudged([]) == {}


# On disk

DOCUMENTS = [("a", "", "x"), ("b", "B", "y z"), ("c", "C", "")]
QUERIES = [("1", "x?"), ("2", "y?")]
JUDGED = [("1", "a", 1), ("2", "b", 2), ("2", "a", 0)]


def rows(kind, content, file="f"):
    """A callable over rows that stand on the lines of a file."""
    return lambda: (kind(f"{file}:{n}", *row) for n, row in enumerate(content, start=1))


@pytest.fixture
def layout(tmp_path) -> Layout:
    file = tmp_path / "source.txt"
    file.write_text("all of it")
    return Layout(
        name="three",
        files=(file,),
        options={"reader": "test/1"},
        documents=rows(Document, DOCUMENTS, "d"),
        queries=rows(Query, QUERIES, "q"),
        judgements={"train": rows(Judgement, JUDGED, "j")},
    )


def folders(place):
    return sorted(path.name for path in place.iterdir() if path.is_dir() and path.name[0] != ".")


def test_a_layout_becomes_tables_and_a_manifest(layout, tmp_path):
    found = collect(layout, tmp_path / "store")
    assert [tuple(row.values()) for row in found.documents] == DOCUMENTS
    assert [tuple(row.values()) for row in found.queries] == QUERIES
    assert found.judgements("train") == {"1": {"a": 1}, "2": {"b": 2, "a": 0}}
    manifest = json.loads((found.folder / "manifest.json").read_text())
    assert manifest["counts"] == {"documents": 3, "queries": 2, "train": 3}
    assert manifest["options"] == {"reader": "test/1", "empty_documents": "refuse"}
    assert manifest["sources"] == found.sources and len(*found.sources.values()) == 64


def test_another_option_or_another_content_is_another_collection(layout, tmp_path):
    place = tmp_path / "store"
    collect(layout, place)
    collect(replace(layout, options={"reader": "test/2"}), place)
    assert len(folders(place)) == 2
    layout.files[0].write_text("all of that")
    last = collect(layout, place)
    assert len(folders(place)) == 3
    moved = tmp_path / "elsewhere" / "source.txt"
    moved.parent.mkdir()
    shutil.move(layout.files[0], moved)
    assert collect(replace(layout, files=(moved,)), place).folder == last.folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"documents": rows(Document, [*DOCUMENTS, ("a", "", "y")], "d")},
            r"d:4: another document has",
        ),
        ({"documents": rows(Document, [("a", " ", "\n")], "d")}, r"d:1: document 'a' is empty"),
        ({"documents": rows(Document, [])}, r"three holds no documents"),
        ({"documents": rows(Document, []), "judgements": {}}, r"three holds no documents"),
        ({"judgements": {"dev": rows(Judgement, [("1", "a", 0)])}}, r"'dev' names no relevant doc"),
        (
            {"judgements": {"dev": rows(Judgement, [("1", "y", 1), ("2", "z", 1)], "j")}},
            r"j:1: document 'y' is not in the collection: 2 of the 2 .* judges another collection",
        ),
        (
            {"judgements": {"dev": rows(Judgement, [*JUDGED, ("1", "a", 2)], "j")}},
            r"j:4: .* 1 before",
        ),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_left(layout, tmp_path, change, message):
    place = tmp_path / "store"
    with pytest.raises(ValueError, match=message):
        collect(replace(layout, **change), place)
    assert folders(place) == []


def test_judgements_of_unknown_documents_are_kept_and_counted(layout, tmp_path, capsys):
    outside = [*JUDGED, ("1", "z", 1), ("2", "z", 1), ("2", "y", 1)]
    found = collect(replace(layout, judgements={"train": rows(Judgement, outside, "j")}), tmp_path)
    assert found.judgements("train") == {
        "1": {"a": 1, "z": 1},
        "2": {"b": 2, "a": 0, "z": 1, "y": 1},
    }
    said = [line for line in capsys.readouterr().out.splitlines() if "not in the" in line]
    assert len(said) == 1 and said[0].startswith("j:4: document 'z'") and "3 of the 6 j" in said[0]


def test_what_is_there_twice_word_for_word_counts_once(layout, tmp_path, capsys):
    twice = replace(
        layout,
        documents=rows(Document, [*DOCUMENTS, *DOCUMENTS], "d"),
        queries=rows(Query, [*QUERIES, QUERIES[0]], "q"),
        judgements={"train": rows(Judgement, JUDGED * 2, "j")},
    )
    found = collect(twice, tmp_path)
    assert [tuple(row.values()) for row in found.documents] == DOCUMENTS
    assert [tuple(row.values()) for row in found.queries] == QUERIES
    assert [tuple(row.values()) for row in found.qrels["train"]] == JUDGED
    said = capsys.readouterr().out
    for repeated in ("d:4: 3 documents", "q:3: 1 queries", "j:4: 3 judgements"):
        assert f"{repeated}, from this line on, repeat earlier ones" in said


def test_candidates_and_negatives_become_runs(layout, tmp_path, capsys):
    ranked = [("1", "b", 2.0), ("1", "a", 1.0), ("2", "a", 1.0), ("9", "a", 1.0)]
    runs = {"train": rows(NamedPair, ranked)}
    found = collect(replace(layout, candidates=runs, negatives={"given": runs["train"]}), tmp_path)
    expected = Ranking({"1": {"b": 2.0, "a": 1.0}, "2": {"a": 1.0}})
    assert Ranking.read(found.candidates["train"]) == expected
    assert Ranking.read(found.negatives["given"]) == expected
    assert "f:4: 1 of 4 candidates, from this line on" in capsys.readouterr().out
    others = rows(NamedPair, [("8", "x", 1.0), ("9", "a", 1.0)])
    with pytest.raises(ValueError, match=r"^f:1: none of the 2 negatives "):
        collect(replace(layout, negatives={"given": others}), tmp_path / "other")


def flip(file):
    """Changes a bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "manifest.json").write_text('{"name'),
        lambda folder: (folder / "manifest.json").write_text('{"files": {}}'),
        lambda folder: (folder / "documents.arrow").write_bytes(b""),
        lambda folder: shutil.copy(folder / "queries.arrow", folder / "documents.arrow"),
        lambda folder: flip(folder / "documents.arrow"),
    ],
)
def test_a_damaged_collection_is_named_with_what_to_do(layout, tmp_path, damage):
    folder = collect(layout, tmp_path).folder
    damage(folder)
    with pytest.raises(ValueError, match=rf"{folder} is damaged \(.*\): remove it"):
        collect(layout, tmp_path)
