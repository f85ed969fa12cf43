import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from data_modules.builders import nq320k as builder
from data_modules.builders.nq320k import TitleKey, field, nq320k

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


def test_the_first_training_copy_of_a_page_wins(raw, collected):
    collection = collected(nq320k(str(raw)))
    for text in collection.documents["text"]:
        assert "Later edition" not in text  # a second time in training
    of_dev = [row["title"] for row in collection.documents if "Dev edition" in row["text"]]
    assert of_dev == ["Wexmoor", "Yarrowdale", "Zellhaven"]  # only in development


def test_titles_are_one_whatever_their_spaces_case_and_accents(raw, collected):
    # "Merrow ( town )" and "Merrow (town)", "FARROWMERE" and "Farrowmere", "Kestrel 's"
    assert TitleKey()("Éloïse ( Film )") == TitleKey()("eloise (film)") == "eloise ( film )"
    collection = collected(nq320k(str(raw)))
    seen = collection.judgements("dev_seen")
    pages = {document for judged in seen.values() for document in judged}
    assert {"3", "7", "12"} <= pages
    assert documents(collection)["Merrow ( town )"]["id"] == "3"


def test_dev_questions_are_seen_if_training_has_their_page(raw, collected):
    collection = collected(nq320k(str(raw)))
    of_training = {d for judged in collection.judgements("train").values() for d in judged}
    for split, seen in (("dev_seen", True), ("dev_unseen", False)):
        for judged in collection.judgements(split).values():
            assert (set(judged) <= of_training) == seen
    both = collection.judgements("dev_seen") | collection.judgements("dev_unseen")
    assert both == collection.judgements("dev")


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


def test_a_page_without_paragraphs_or_lists_keeps_its_text():
    assert field("<H1> A </H1> one two", "abstract") == ""
    assert field("<H1> A </H1> one two", "content") == "A one two"
    assert field("<P> one </P> two <Ul> three </Ul> four", "content") == "two three"
    assert field('<P> 1 < 2 <Td_colspan="2"> x </P>', "abstract") == "1 < 2 x"


def fewer(records: list[dict]) -> list[dict]:
    return records[:-1]


def more(records: list[dict]) -> list[dict]:
    return [*records, {**records[0], "example_id": 5}]


def another_title(records: list[dict]) -> list[dict]:
    """Two dev pages are one: now they are two."""
    return [
        {**row, "document_title": "Another"} if n == 7 else row for n, row in enumerate(records)
    ]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (TRAIN, fewer, r"expected 32 train, found 31; questions by file: .*train.* 31, "),
        (TRAIN, more, r"expected 32 train, found 33; questions by file: .*train.* 33, "),
        (DEV, another_title, r"expected 27 titles, found 28; questions by file: "),
    ],
)
def test_other_counts_are_refused(raw, collected, built, name, change, message):
    write(raw / name, change(lines(raw / name)))
    with pytest.raises(ValueError, match=message) as raised:
        collected(nq320k(str(raw)))
    assert "data.check_counts=false" in str(raised.value) and "\n" not in str(raised.value)
    assert built() == []
    assert len(collected(nq320k(str(raw), check_counts=False)).qrels) == 4


@pytest.mark.parametrize(("seen", "left_out"), [(True, "dev_unseen"), (False, "dev_seen")])
def test_dev_questions_of_one_kind_are_built_in_part(raw, collected, capsys, seen, left_out):
    whole = collected(nq320k(str(raw)))
    wanted = set(whole.judgements("dev_seen" if seen else "dev_unseen"))
    write(raw / DEV, [row for row in lines(raw / DEV) if str(row["example_id"]) in wanted])
    part = collected(nq320k(str(raw), check_counts=False))
    assert set(whole.qrels) - set(part.qrels) == {left_out}
    assert f"the split {left_out!r} is empty and is left out" in capsys.readouterr().out
    with pytest.raises(ValueError, match="data.check_counts=false"):
        collected(nq320k(str(raw)))


def shards(raw: Path, split: str, file: str, numbers: range) -> None:
    """Cuts a file into files as the original release has them, ten lines each."""
    records = lines(raw / file)
    (raw / file).unlink()
    for number in numbers:
        start = number * 10
        end = None if number == numbers[-1] else start + 10
        write(raw / f"nq-{split}-{number:02}.jsonl.gz", records[start:end])


def test_shards_give_the_same_collection_as_one_file(raw, collected, monkeypatch):
    whole = collected(nq320k(str(raw)))
    monkeypatch.setattr(builder, "_SHARDS", {"train": 3, "dev": 1})
    shards(raw, "train", TRAIN, range(3))
    sharded = collected(nq320k(str(raw)))
    assert sharded.folder != whole.folder
    assert sharded.documents[:] == whole.documents[:]
    assert sharded.judgements("dev") == whole.judgements("dev")


def test_two_copies_of_a_split_are_refused(raw):
    write(raw / "nq-dev-00.jsonl.gz", lines(raw / DEV))
    with pytest.raises(ValueError, match="dev questions twice"):
        nq320k(str(raw))


@pytest.mark.parametrize("name", [TRAIN, DEV])
def test_a_missing_file_is_named(raw, name):
    (raw / name).unlink()
    split = "train" if name == TRAIN else "dev"
    with pytest.raises(FileNotFoundError, match=f"data.path=.*the {split} questions are missing"):
        nq320k(str(raw))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "title"}, "data.text=title: must be one or both of abstract, content"),
        ({"text": []}, "data.text="),
        ({"title_vocabulary": "no/such/vocab.txt"}, "data.title_vocabulary=.*no such file"),
    ],
)
def test_options_that_cannot_be_met_are_refused(raw, options, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        nq320k(str(raw), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"document_text": "<P> no heading </P>"},
            'the page has no title: neither "document_title"',
        ),
        ({"document_text": 5}, 'expected a string "document_text"'),
        ({"question_text": None}, 'expected a string "question_text"'),
        ({"example_id": None}, '"example_id"'),
        ({"document_text": ...}, 'expected the page as "document_text" or "document_tokens"'),
        ({"document_text": ..., "document_tokens": [{"x": 1}]}, 'each have a "token"'),
    ],
)
def test_lines_that_break_the_format_are_named(raw, collected, change, message):
    records = lines(raw / TRAIN)
    records[2] = {k: v for k, v in {**records[2], **change}.items() if v is not ...}
    write(raw / TRAIN, records)
    with pytest.raises(ValueError, match=rf"nq-train\.jsonl\.gz:3: .*{message}"):
        collected(nq320k(str(raw)))


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


def test_memory_does_not_grow_with_the_pages(tmp_path):
    text = "<H1> {} </H1> <P> " + "long " * 10_000 + "</P>"

    def held(count: int) -> int:
        folder = tmp_path / str(count)
        folder.mkdir()
        for name, numbers in ((TRAIN, range(count)), (DEV, range(count, count + 2))):
            records = [
                {"document_text": text.format(n), "example_id": n, "question_text": "who"}
                for n in numbers
            ]
            write(folder / name, records)
        layout = builder.read(folder)
        tracemalloc.start()
        for _ in layout.documents():
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert held(40) < 1.5 * held(8)  # 40 pages are 2 MB
