import shutil
from pathlib import Path

import pytest

from data_modules.builders.public import MIRACL, public
from data_modules.formats.layout import Document, Judgement, Layout, Query
from gr_mvdr.evaluation.ranking import Ranking


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
        if query.startswith("P112"):  # "Who founded …?": Ada Merrick founded three towns
            assert all(" by " in texts[document] for document in grades)
    assert "25" not in {document for grades in judged.values() for document in grades}
    assert set(judged["P206.train-0"]) == {"1", "2"}  # both passages name the river


def test_questions_that_break_the_format_are_named(miniature, collected, built):
    folder = miniature("entity_questions")
    (folder / "dataset/dev/P112.dev.json").write_text('[{"question": "who"}]')
    with pytest.raises(ValueError, match=r"P112\.dev\.json: "):
        collected(public("entity_questions", str(folder)))
    assert built() == []


def test_a_path_that_does_not_fit_the_name_is_refused():
    with pytest.raises(ValueError, match="data.path=null: entity_questions needs a folder"):
        public("entity_questions")
    with pytest.raises(
        ValueError, match=r"data.path=\.: must be null, ir_datasets reads miracl/sw"
    ):
        public("miracl/sw", ".")


def test_miracls_judged_passages_of_all_languages_are_one_collection(monkeypatch, collected):
    """Every language has three passages: one relevant, one irrelevant, one without judgement."""

    def of_language(name):
        graded = [Judgement("f:1", "q", "d0", 1), Judgement("f:2", "q", "d1", 0)]
        return Layout(
            name=name,
            files=(),
            options={"id": name},
            documents=lambda: iter([Document("f", f"d{n}", "", f"{name} {n}") for n in range(3)]),
            queries=lambda: iter([Query("f", "q", name)]),
            judgements={split: lambda: iter(graded) for split in ("train", "dev")},
        )

    monkeypatch.setattr("data_modules.builders.public.ir_dataset", of_language)
    found, languages = collected(public("miracl/judged")), {*MIRACL}
    assert {*found.documents["id"]} == {f"{one}/d{n}" for one in languages for n in range(2)}
    assert found.judgements("dev")["sw/q"] == {"sw/d0": 1, "sw/d1": 0}
    negatives = Ranking.read(found.negatives["judged"])
    assert all([*negatives.documents(f"{one}/q")] == [f"{one}/d1"] for one in languages)
