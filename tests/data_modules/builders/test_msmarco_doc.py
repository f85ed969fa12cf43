from pathlib import Path

import pytest

from data_modules.builders.msmarco_doc import msmarco_doc


@pytest.fixture
def raw(miniature) -> Path:
    return miniature("msmarco_doc")


def test_the_documents_with_a_training_judgement_are_kept(raw, collected, capsys):
    collection = collected(msmarco_doc(str(raw)))
    judged = (raw / "msmarco-doctrain-qrels.tsv").read_text().splitlines()
    kept = set(collection.documents["id"][:])
    assert kept == {line.split()[2] for line in judged} and len(kept) == 20
    assert collection.documents[0]["title"] == "Varnholm: a short history"
    assert collection.documents[0]["text"].startswith("Varnholm is a market town")
    assert {name: len(table) for name, table in collection.qrels.items()} == {"train": 24, "dev": 6}
    assert len(collection.queries) == 30
    assert "msmarco_doc: 2 of 8 dev queries are left out" in capsys.readouterr().out


def test_given_documents_take_the_place_of_the_judged_ones(raw, collected, built, capsys):
    whole = collected(msmarco_doc(str(raw)))
    chosen = collected(msmarco_doc(str(raw), document_ids=str(raw / "ids.txt")))
    assert sorted(chosen.documents["id"][:]) == sorted((raw / "ids.txt").read_text().split())
    assert set(chosen.judgements("dev")) == {"900", "901", "902", "906", "907"}
    assert "train queries are left out" in capsys.readouterr().out
    assert chosen.folder != whole.folder
    assert len(built()) == 2


def test_a_listed_document_that_is_unknown_is_named(raw, collected, built):
    (raw / "ids.txt").write_text("D1000\nE5\nE6\n")
    with pytest.raises(ValueError, match=r"ids\.txt:2: document 'E5' .* nor are 1 others of 3"):
        collected(msmarco_doc(str(raw), document_ids=str(raw / "ids.txt")))
    assert built() == []
