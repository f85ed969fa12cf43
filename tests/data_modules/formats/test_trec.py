from pathlib import Path

import pytest

from data_modules.formats.registry import read_layout
from data_modules.formats.trec import query_files, split_of
from data_modules.store import collect
from tests.data_modules.formats.miniature import (
    MINIATURES,
    TEXTS,
    assert_refused,
    copied,
    found_pairs,
    pairs,
)

RUN = "msmarco-docdev-top100.gz"


def test_ids_and_candidates():
    layout = read_layout(MINIATURES / "trec")
    assert [document.id for document in layout.documents()][:2] == ["D100", "D101"]
    assert list(layout.candidates) == ["dev"] and not layout.negatives
    candidates = [row[1:] for row in layout.candidates["dev"]()]
    assert candidates[:2] == [("5000", "D109", -1.5), ("5000", "D106", -2.5)]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("msmarco-doctrain-qrels.tsv.gz", "train"),
        ("msmarco-docdev-queries.tsv", "dev"),
        ("msmarco-docdev-top100.gz", "dev"),
        ("qrels.dev.small.tsv", "dev_small"),
        ("queries.dev.small.tsv", "dev_small"),
        ("2019qrels-docs.txt", "2019"),
        ("2019qrels-pass.txt", "2019"),
        ("msmarco-passagetest2019-top1000.tsv", "test2019"),
        ("msmarco-doctest2019-top100.gz", "test2019"),
        ("msmarco-test2019-queries.tsv.gz", "test2019"),
        ("nq_qrels_train.tsv.gz", "train"),
        ("qrel.dev.tsv", "dev"),
        ("queries.all.tsv", "all"),
        ("queries.tsv", ""),
        ("train.trec", "train"),
    ],
)
def test_the_split_that_a_name_names(name, split):
    assert split_of(Path(name)) == split


def test_one_file_of_all_queries_is_enough(tmp_path):
    qrels = {"dev": tmp_path / "qrels.dev.tsv"}
    for name in ("queries.dev.tsv", "queries.all.tsv", "queries.tsv"):
        (tmp_path / name).touch()
        (found,) = query_files(tmp_path, qrels, "queries*.tsv")
        assert found.name == name, "the fullest of those that are there"


def test_passages(tmp_path):
    folder = tmp_path / "passages"
    folder.mkdir()
    (folder / "collection.tsv").write_text("".join(f"{n}\t{t}\n" for n, t in enumerate(TEXTS)))
    for split, name in (("train", "train"), ("dev", "dev.small")):
        ids = {text: f"{n}-{split}" for n, (text, _) in enumerate(pairs(split))}
        rows = [f"{ids[text]}\t0\t{document}\t1\n" for text, document in pairs(split)]
        (folder / f"qrels.{name}.tsv").write_text("".join(rows))
        lines = "".join(f"{number}\t{text}\n" for text, number in ids.items())
        (folder / f"queries.{name}.tsv").write_text(lines)
    (folder / "queries.dev.tsv").write_text(lines + "7\tone more?\n")  # holds the small ones too
    layout = read_layout(folder)
    assert layout.options["reader"] == "trec/1"
    assert found_pairs(layout, "train") == pairs("train")
    assert found_pairs(layout, "dev_small") == pairs("dev")
    assert "queries.dev.tsv" not in [file.name for file in layout.files]


def test_a_query_in_two_files_with_one_text_is_one(tmp_path):
    folder = tmp_path / "passages"
    folder.mkdir()
    files = {
        "collection.tsv": "0\tone\n1\ttwo\n",
        "queries.dev.tsv": "10\ta\n11\tb\n",
        "queries.dev.small.tsv": "10\ta\n",
        "qrels.dev.tsv": "10\t0\t0\t1\n11\t0\t1\t1\n",
        "qrels.dev.small.tsv": "10\t0\t0\t1\n",
    }
    for name, content in files.items():
        (folder / name).write_text(content)
    found = collect(read_layout(folder, "trec"), tmp_path / "store")
    assert found.queries["id"][:] == ["10", "11"]
    assert {split: len(rows) for split, rows in found.qrels.items()} == {"dev_small": 1, "dev": 2}
    (folder / "queries.dev.tsv").write_text("10\tanother\n11\tb\n")
    with pytest.raises(ValueError, match=r"queries\.dev\.tsv:1: the query '10' is already at"):
        collect(read_layout(folder, "trec"), tmp_path / "store")
    (folder / "queries.dev.tsv").write_text("10\ta\n11\tb\n11\tb\n")
    with pytest.raises(ValueError, match=r"queries\.dev\.tsv:3: the query '11' is already at"):
        collect(read_layout(folder, "trec"), tmp_path / "store")


def test_a_run_may_name_more_than_its_split(tmp_path, capsys):
    folder = copied("trec", tmp_path)
    for name in ("queries.tsv", "qrels.tsv"):
        year = "2019qrels-docs.txt" if name == "qrels.tsv" else f"msmarco-test2019-{name}"
        (folder / f"msmarco-docdev-{name}.gz").rename(folder / f"{year}.gz")
    (folder / RUN).rename(folder / "msmarco-doctest2019-top100.gz")
    (folder / "bm25.run").write_text("5000 Q0 D106 1 2.5 x\n")
    layout = read_layout(folder)
    assert list(layout.candidates) == ["2019"] and len(list(layout.candidates["2019"]())) == 52
    assert "bm25.run: is not read: its name names no split" in capsys.readouterr().out
    (folder / "another-test2019.run").write_text("5000 Q0 D106 1 2.5 x\n")
    with pytest.raises(ValueError, match=r"another-test2019\.run and .* runs of the split '2019'"):
        read_layout(folder)
    (folder / "2019.run").write_text("5000 Q0 D106 1 2.5 x\n")
    layout = read_layout(folder)
    assert len(list(layout.candidates["2019"]())) == 1, "the one that names just the split"


def test_a_word_that_ends_like_a_split_is_not_it(tmp_path, capsys):
    folder = copied("trec", tmp_path)
    (folder / RUN).rename(folder / "coldev.run")
    assert not read_layout(folder).candidates
    assert "coldev.run: is not read" in capsys.readouterr().out


def test_judgements_of_a_year(tmp_path, capsys):
    folder = copied("trec", tmp_path)
    (folder / "msmarco-docdev-queries.tsv.gz").rename(folder / "msmarco-test2019-queries.tsv.gz")
    (folder / "msmarco-docdev-qrels.tsv.gz").unlink()
    (folder / "2019qrels-docs.txt").write_text("5000 Q0 D106 3\n5000 Q0 D107 0\n")
    layout = read_layout(folder)
    assert [j[1:] for j in layout.judgements["2019"]()] == [
        ("5000", "D106", 3),
        ("5000", "D107", 0),
    ]
    assert not layout.candidates, "the run is of another split"
    assert f"{RUN}: is not read" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("msmarco-docs.tsv.gz", lambda t: t.replace("is a", "is\ta"), r":1: expected 4 columns "),
        ("msmarco-docs.tsv.gz", "D1\tu\tt\n", r":1: expected 4 columns .*text\), got 3"),
        ("msmarco-docdev-qrels.tsv.gz", "1 0 D1 1 1\n", r":1: expected 'query 0 docu"),
        (RUN, lambda t: t + "5000 Q0 D100 5\n", r":53: expected 'query Q0 document rank sco"),
        (RUN, "5000 Q0 D100 5 high x\n", r":1: expected a number as score, got 'high'"),
    ],
)
def test_a_broken_line_is_named(file, content, message, tmp_path):
    assert_refused(copied("trec", tmp_path), file, content, message)


def test_two_files_of_a_split_and_missing_ones_are_named(tmp_path):
    folder = copied("trec", tmp_path)
    (folder / "qrels.dev.tsv").write_text("5000 0 D100 1\n")
    with pytest.raises(
        ValueError, match=r"msmarco-docdev-qrels\.tsv\.gz and qrels\.dev\.tsv are both of"
    ):
        read_layout(folder)
    for file in folder.glob("*qrels*"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match=r"judgements \(\*qrels\*\.tsv or .* missing"):
        read_layout(folder)
