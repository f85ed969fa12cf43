import shutil
from pathlib import Path

import pytest

from data_modules.builders.public import public
from gr_mvdr.evaluation.ranking import Ranking


@pytest.mark.parametrize(
    ("name", "split", "first"),
    [
        ("lotte/writing/search", "test", "best way to find out who founded the town of varnholm"),
        ("lotte/writing/forum/test", "test", "I have wondered for a long time who founded"),
        ("lotte/writing/search/dev", "dev", "best way to find out who founded the town of thornm"),
    ],
)
def test_lotte_reads_one_kind_of_question_about_one_split(name, split, first, miniature, collected):
    folder = miniature("lotte")
    if split == "dev":  # a folder without its dev collection still has the other
        shutil.rmtree(folder / "writing" / "test")
    collection = collected(public(name, str(folder)))
    assert len(collection.documents) == 24
    assert collection.documents["title"][:] == [""] * 24
    assert list(collection.qrels) == [split]
    assert collection.queries[0]["text"].startswith(first[:40])
    assert collection.judgements(split)["2"] == {"6": 1, "7": 1}


def test_miracl_reads_every_shard_and_split(miniature, collected):
    folder = miniature("miracl")
    collection = collected(public("miracl/sw", str(folder)))
    assert len(collection.documents) == 24
    assert collection.documents[0]["id"] == "100#0"
    assert {split: len(table) for split, table in collection.qrels.items()} == {
        "train": 12,
        "dev": 12,
    }
    assert collection.judgements("dev")["6#0"] == {"106#0": 1, "106#1": 0}
    assert list(collected(public("miracl/yo", str(folder))).qrels) == ["dev"]


def test_miracls_judged_passages_of_all_languages_are_one_collection(miniature, collected):
    """Those of Swahili: Yoruba has no training topics."""
    folder = miniature("miracl")
    for file in folder.glob("miracl-v1.0-sw/qrels/*"):
        rows = file.read_text().splitlines(keepends=True)
        file.write_text("".join(row for row in rows if "106#1" not in row))
    alone, collection = (collected(public(f"miracl/{n}", str(folder))) for n in ("sw", "judged"))
    judged = {d for split in alone.qrels for row in alone.judgements(split).values() for d in row}
    kept = [document for document in alone.documents if document["id"] in judged]
    assert len(kept) == 23
    assert list(collection.documents) == [row | {"id": f"sw/{row['id']}"} for row in kept]
    for split in ("train", "dev"):
        assert collection.judgements(split) == {
            f"sw/{query}": {f"sw/{document}": grade for document, grade in row.items()}
            for query, row in alone.judgements(split).items()
        }
    negatives = Ranking.read(collection.negatives["judged"])
    for query, row in collection.judgements("train").items():
        assert {*negatives.documents(query)} == {d for d, grade in row.items() if grade == 0}
    shutil.rmtree(folder / "miracl-v1.0-sw")
    with pytest.raises(FileNotFoundError, match="miracl-v1.0-…/topics and qrels are missing"):
        public("miracl/judged", str(folder))


def test_dprs_questions_of_one_data_set_among_several(tmp_path, collected):
    mini = Path("tests/data_modules/formats/miniatures/dpr")
    for file in mini.iterdir():
        shutil.copy(file, tmp_path / file.name.replace("mini", "nq"))
    shutil.copy(mini / "biencoder-mini-dev.json.gz", tmp_path / "biencoder-nqx-dev.json.gz")
    layout = public("dpr/nq", str(tmp_path))
    assert [file.name for file in layout.files[1:]] == [
        "biencoder-nq-dev.json.gz",
        "biencoder-nq-train.json",
    ]
    assert collected(layout).name == "dpr-nq" and public("dpr/nqx", str(tmp_path)).files[1:]
    with pytest.raises(FileNotFoundError, match="the file …trivia-train.json with"):
        public("dpr/trivia", str(tmp_path))


def test_a_passage_answers_if_it_is_about_the_subject_and_has_an_answer(miniature, collected):
    collection = collected(public("entity_questions", str(miniature("entity_questions"))))
    assert len(collection.documents) == 25
    assert sorted(collection.qrels) == ["dev", "test", "train"]
    judged = collection.judgements("train")
    titles = dict(zip(collection.documents["id"], collection.documents["title"], strict=True))
    texts = dict(zip(collection.documents["id"], collection.documents["text"], strict=True))
    assert titles[next(iter(judged["P112.train-3"]))] == "Merrow (town)"
    for query, grades in judged.items():
        if query.startswith(
            "P112"
        ):  # "Who founded …?": Ada Merrick founded three, her own page none
            assert [
                titles[d].split(" (")[0] in collection_question(collection, query) for d in grades
            ]
            assert all(" by " in texts[document] for document in grades)
    assert "25" not in {document for grades in judged.values() for document in grades}
    assert set(judged["P206.train-0"]) == {"1", "2"}  # both passages name the river


def collection_question(collection, query: str) -> str:
    return dict(zip(collection.queries["id"], collection.queries["text"], strict=True))[query]


@pytest.mark.parametrize("content", ['{"question": "who"}', '[{"question": "who"}]', "[5]"])
def test_questions_that_break_the_format_are_named(content, miniature, collected, built):
    folder = miniature("entity_questions")
    (folder / "dataset/dev/P112.dev.json").write_text(content)
    with pytest.raises(ValueError, match=r"P112\.dev\.json: "):
        collected(public("entity_questions", str(folder)))
    assert built() == []


@pytest.mark.parametrize("place", ["", "towns"])
def test_beir_reads_a_folder_and_one_that_holds_it(place, miniature, collected):
    collection = collected(public("beir/towns", str(miniature("beir") / place)))
    assert len(collection.documents) == 20
    assert sorted(collection.qrels) == ["test", "train"]


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("scifact", None, "data.name=scifact: must be one of beir, lotte, miracl, entity_q"),
        ("beir/nothing", None, "data.name=beir/nothing: must be an id of ir_datasets"),
        ("lotte/cooking/search", None, "data.name=lotte/TOPIC/.*=cooking: must be one of writing"),
        ("lotte/writing/search/train", None, "=train: must be one of test, dev"),
        ("miracl/xx", None, "data.name=miracl/.*=xx: must be one of ar, bn"),
        ("entity_questions", None, "data.path=null: entity_questions needs a folder"),
        ("dpr/nq", None, "data.name=dpr/nq: must be such as dpr/nq, and data.path=FOLDER"),
        ("beir/scifact", "no/such", "data.path=no/such: no such folder"),
    ],
)
def test_an_unknown_name_or_path_is_refused(name, path, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        public(name, path)


@pytest.mark.parametrize(
    ("name", "title", "splits"),
    [
        ("beir/scifact", "scifact", {"train", "test"}),
        ("beir/nq", "nq", {"test"}),
        ("beir/webis-touche2020", "webis-touche2020", {"test"}),
        ("lotte/writing/search", "lotte-writing-search-test", {"test"}),
        ("lotte/lifestyle/forum/dev", "lotte-lifestyle-forum-dev", {"dev"}),
        ("miracl/sw", "miracl-sw", {"train", "dev"}),
        ("miracl/yo", "miracl-yo", {"dev"}),
    ],
)
def test_without_a_path_ir_datasets_gives_the_collection(name, title, splits):
    pytest.importorskip("ir_datasets")
    layout = public(name)
    assert (layout.name, {*layout.judgements}) == (title, splits)
