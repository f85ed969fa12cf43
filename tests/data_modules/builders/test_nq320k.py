import gzip
import json
from pathlib import Path

import pytest

from data_modules.builders import nq320k as builder
from data_modules.builders.nq320k import TitleKey, nq320k

TRAIN = "v1.0-simplified_simplified-nq-train.jsonl.gz"
DEV = "nq-dev-all.jsonl.gz"
COUNTS = {"documents": 27, "train": 32, "dev": 10, "dev_seen": 6, "dev_unseen": 4}


@pytest.fixture
def raw(miniature, monkeypatch) -> Path:
    """The miniature, and its counts in the place of the papers'."""
    monkeypatch.setattr(builder, "COUNTS", COUNTS)
    return miniature("natural_questions")


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


def write(file: Path, records: list[dict]) -> None:
    content = "".join(json.dumps(record) + "\n" for record in records)
    file.write_bytes(gzip.compress(content.encode()))


def documents(collection) -> dict[str, dict]:
    return {row["title"]: row for row in collection.documents}


def test_the_miniature_becomes_a_collection_of_one_document_a_title(raw, collected):
    collection = collected(nq320k(str(raw)))
    assert collection.name == "nq320k"
    assert collection.documents["id"][:] == [str(number) for number in range(27)]
    assert {name: len(table) for name, table in collection.qrels.items()} == {
        name: count for name, count in COUNTS.items() if name != "documents"
    }
    first = lines(raw / TRAIN)[0]
    assert collection.queries[0] == {
        "id": str(first["example_id"]),
        "text": "who founded the town of varnholm",
    }
    assert collection.judgements("train")[str(first["example_id"])] == {"0": 1}


def test_pages_of_one_title_are_one_document(raw, collected):
    """The first training copy wins; titles may differ in spaces, case and accents."""
    collection = collected(nq320k(str(raw)))
    for text in collection.documents["text"]:
        assert "Later edition" not in text  # a second time in training
    of_dev = [row["title"] for row in collection.documents if "Dev edition" in row["text"]]
    assert of_dev == ["Wexmoor", "Yarrowdale", "Zellhaven"]  # only in development
    # "Merrow ( town )" and "Merrow (town)", "FARROWMERE" and "Farrowmere", "Kestrel 's"
    assert TitleKey()("Éloïse ( Film )") == TitleKey()("eloise (film)") == "eloise ( film )"
    seen = collection.judgements("dev_seen")
    assert {"3", "7", "12"} <= {document for judged in seen.values() for document in judged}
    assert documents(collection)["Merrow ( town )"]["id"] == "3"


def test_abstract_and_content_are_the_first_paragraph_and_what_follows(raw, collected):
    whole = documents(collected(nq320k(str(raw))))["Varnholm"]["text"]
    abstract = documents(collected(nq320k(str(raw), text="abstract")))["Varnholm"]["text"]
    content = documents(collected(nq320k(str(raw), text=["content"])))["Varnholm"]["text"]
    assert abstract == (
        "Varnholm is a market town on the river Bourne , founded in 1100 by Ada Merrick ."
    )
    assert content.startswith("Contents 1 History History The town grew rich on salt")
    assert content.endswith("See also List of towns on the Bourne")  # the last list is links
    assert whole == f"{abstract} {content}"
    assert "<" not in whole


def test_other_counts_are_refused(raw, collected, built):
    records = lines(raw / TRAIN)
    write(raw / TRAIN, [*records, {**records[0], "example_id": 5}])
    message = r"expected 32 train, got 33: .*check_counts=false"
    with pytest.raises(ValueError, match=message):
        collected(nq320k(str(raw)))
    assert built() == []
    assert len(collected(nq320k(str(raw), check_counts=False)).qrels) == 4


def test_shards_give_the_same_collection_as_one_file(raw, collected):
    whole, records = collected(nq320k(str(raw))), lines(raw / TRAIN)
    (raw / TRAIN).unlink()
    for number, part in enumerate((records[:10], records[10:20], records[20:])):
        write(raw / f"nq-train-{number:02}.jsonl.gz", part)
    sharded = collected(nq320k(str(raw)))
    assert sharded.folder != whole.folder
    assert sharded.documents[:] == whole.documents[:]
    assert sharded.judgements("dev") == whole.judgements("dev")


def test_a_vocabulary_makes_one_of_titles_that_differ_in_unknown_words(raw, collected, tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    words = ["[PAD]", "[UNK]", "yarrow", "##dale", "s", "'", "(", ")", "town"]
    letters = "abcdefghijklmnopqrstuvwxy"  # no z
    vocabulary.write_text("\n".join([*words, *letters, *(f"##{x}" for x in letters)]) + "\n")
    key = TitleKey(vocabulary)
    assert key("Yarrowdale (town)") == "yarrowdale ( town )"
    assert key("Zellhaven") == key("Zoo") == "[UNK]"
    records = lines(raw / DEV)
    records[-2]["document_title"] = "Zoo"
    write(raw / DEV, records)
    layout = nq320k(str(raw), title_vocabulary=str(vocabulary), check_counts=False)
    assert vocabulary in layout.files
    assert len(collected(layout).documents) == 26  # Zoo and Zellhaven
