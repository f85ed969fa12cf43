import pytest

from data_modules.formats.registry import read_layout
from data_modules.store import collect
from tests.data_modules.formats.miniature import (
    MINIATURES,
    assert_refused,
    copied,
    found_pairs,
    pairs,
    rewritten,
)

TRIPLES = "triples.train.2.squeeze.tsv"


def test_ids_candidates_and_negatives():
    layout = read_layout(MINIATURES / "wu")
    assert [document.id for document in layout.documents()] == [str(n) for n in range(24)]
    assert [query.id for query in layout.queries()][:2] == ["1000", "1001"]
    (negatives,) = layout.negatives.values()
    assert [row[1:] for row in negatives()][:3] == [
        ("1000", "5", 0.0),
        ("1000", "9", -1.0),
        ("1001", "6", 0.0),
    ]
    candidates = [row[1:] for row in layout.candidates["dev"]()]
    assert candidates[:2] == [("5000", "9", 0.0), ("5000", "6", -1.0)] and len(candidates) == 52


def test_an_id_that_is_no_text_is_an_unknown_one(tmp_path, capsys):
    folder = copied("wu", tmp_path)
    rewritten(folder / "candidate.json", lambda text: text.replace("{", '{"\\ud800": ["1"], ', 1))
    collect(read_layout(folder), tmp_path / "store")
    assert r'candidate.json: "\ud800": 1 of 53 candidates' in capsys.readouterr().out


def test_a_triple_that_returns_is_one_training_pair(tmp_path):
    folder = copied("wu", tmp_path)
    rewritten(folder / TRIPLES, lambda text: text + text)
    assert found_pairs(read_layout(folder), "train") == pairs("train")


def test_given_training_judgements_take_the_place_of_the_triples(tmp_path):
    folder = copied("wu", tmp_path)
    (folder / "qrel.train.tsv").write_text("1000\t0\t23\t1\n")
    (judgement,) = read_layout(folder).judgements["train"]()
    assert judgement[1:] == ("1000", "23", 1) and "qrel.train.tsv:1" in judgement.where


def test_a_collection_without_titles(tmp_path):
    folder = copied("wu", tmp_path)
    (folder / "collection.tsv").write_text("".join(f"{n}\ttext {n}\n" for n in range(24)))
    assert next(read_layout(folder).documents())[1:] == ("0", "", "text 0")


def test_each_split_may_have_its_own_queries_but_no_id_twice(tmp_path):
    folder = copied("wu", tmp_path)
    (folder / "queries.all.tsv").rename(folder / "queries.train.tsv")
    rewritten(folder / "queries.train.tsv", lambda text: "".join(text.splitlines(True)[:20]))
    assert found_pairs(read_layout(folder), "dev") == pairs("dev")
    rewritten(folder / "queries.train.tsv", lambda text: text + "5000\tonce more?\n")
    with pytest.raises(ValueError, match=r"the query '5000' is already at .*queries\.train"):
        collect(read_layout(folder), tmp_path / "store")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "collection.tsv",
            lambda t: t.replace("is a port", "is\ta port"),
            r":1: expected 3 columns",
        ),
        (
            "collection.tsv",
            lambda t: "pid\ttext\ttitle\n" + t,
            r":1: expected a document, got the header 'pid\\ttext\\ttitle': remove this line",
        ),
        ("collection.tsv", "ID\tPassage\n1\tx\n", r":1: expected a document, got the header"),
        ("queries.all.tsv", "7\n", r":1: expected 2 columns .*\(qid, query\), got 1"),
        ("qrel.dev.tsv", lambda t: t + "5000\t3\n", r":15: expected 'query 0 document grade'"),
        ("qrel.dev.tsv", lambda t: t + "5000\t0\t3\tx\n", r":15: expected an integer grade, got"),
        (TRIPLES, lambda t: t + "1000\t3\n", r":21: expected 'query positive negative …', got"),
        ("candidate.json", '{"5000": "3"}', r'"5000": expected .*got "3"'),
        ("candidate.json", '{"5000": [1, {}]}', r"expected a document's id, got {}"),
        ("candidate.json", lambda t: t[:-9], r"candidate\.json:1: expected JSON, but"),
    ],
)
def test_a_broken_line_is_named(file, content, message, tmp_path):
    assert_refused(copied("wu", tmp_path), file, content, message)


def test_titles_in_the_place_of_texts_are_refused(tmp_path):
    def swapped(text: str) -> str:
        rows = [line.split("\t") for line in text.replace("\r", "").splitlines()]
        return "".join(f"{pid}\t{title}\t{passage}\n" for pid, passage, title in rows)

    message = r"collection\.tsv:1: expected the columns id text title"
    assert_refused(copied("wu", tmp_path), "collection.tsv", swapped, message)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("collection.tsv", r"^data\.path=.*wu: the file collection\.tsv is missing"),
        ("queries.all.tsv", r"the queries \(queries\*\.tsv\) of the split 'train'.*are missing"),
    ],
)
def test_a_missing_file_is_named(file, message, tmp_path):
    folder = copied("wu", tmp_path)
    (folder / file).unlink()
    with pytest.raises(FileNotFoundError, match=message):
        read_layout(folder, "wu")
