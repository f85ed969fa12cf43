import gzip
import json
import shutil
from pathlib import Path

import datasets
import pytest
from datasets import Dataset

from data_modules.builders.public import hub_table, public
from gr_mvdr.evaluation.ranking import Ranking
from tests.data_modules.formats.test_readers import encrypted


def zipped(folder: Path) -> Path:
    """The folder as an archive in which it stands, as BEIR's downloads are."""
    archive = shutil.make_archive(str(folder), "zip", folder.parent, folder.name)
    shutil.rmtree(folder)
    return Path(archive)


@pytest.mark.parametrize("place", ["", "towns", "towns.zip"])
def test_beir_reads_a_folder_one_that_holds_it_and_the_archive(place, miniature, collected):
    folder = miniature("beir")
    if place.endswith(".zip"):
        zipped(folder / "towns")
    collection = collected(public("beir/towns", str(folder / place)))
    assert len(collection.documents) == 20
    assert sorted(collection.qrels) == ["test", "train"]
    if place.endswith(".zip"):
        assert sorted(path.name for path in folder.iterdir() if path.name[0] != ".") == [
            "towns",
            "towns.zip",
        ]
        assert collected(public("beir/towns", str(folder / place))).folder == collection.folder


def test_a_page_and_an_encrypted_archive_are_named(tmp_path):
    archive = tmp_path / "towns.zip"
    archive.write_text("<!DOCTYPE html><html>404</html>")
    with pytest.raises(ValueError, match=r"towns\.zip: .*: it is an HTML page, not the download"):
        public("beir/towns", str(archive))
    archive.write_bytes(encrypted(**{"towns/corpus.jsonl": "{}"}))
    with pytest.raises(ValueError, match=r"towns\.zip: the archive is encrypted: unpack"):
        public("beir/towns", str(archive))
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == ["towns.zip"]


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


def test_what_miracl_holds_twice_word_for_word_counts_once(miniature, collected, capsys):
    folder = miniature("miracl")
    shards = folder / "miracl-corpus-v1.0-sw"
    content = gzip.decompress((shards / "docs-0.jsonl.gz").read_bytes()).splitlines()[3]
    (shards / "docs-2.jsonl.gz").write_bytes(gzip.compress(content))
    qrels = folder / "miracl-v1.0-sw/qrels/qrels.miracl-v1.0-sw-dev.tsv"
    qrels.write_text(qrels.read_text() * 2)
    collection = collected(public("miracl/sw", str(folder)))
    assert len(collection.documents) == 24 and len(collection.qrels["dev"]) == 12
    said = capsys.readouterr().out
    assert "docs-2.jsonl.gz:1: 1 documents, from this line on, are there already" in said
    assert f"{qrels}:13: 12 judgements, from this line on, are there already" in said


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


@pytest.mark.parametrize(
    ("name", "file", "missing"),
    [
        ("miracl/sw", "miracl-v1.0-sw/qrels/qrels.miracl-v1.0-sw-dev.tsv", "qrels.*-dev.tsv"),
        ("miracl/sw", "miracl-v1.0-sw/qrels/qrels.miracl-v1.0-sw-train.tsv", "qrels.*-train.tsv"),
        ("miracl/sw", "miracl-v1.0-sw/topics/topics.miracl-v1.0-sw-dev.tsv", "topics.*-dev.tsv"),
        ("lotte/writing/forum", "writing/test/qas.forum.jsonl", "qas.forum.jsonl"),
        ("entity_questions", "psgs_w100.tsv.gz", "psgs_w100.tsv"),
    ],
)
def test_a_missing_file_is_named(name, file, missing, miniature):
    folder = miniature(name.split("/")[0])
    (folder / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"data.path=.*{missing}.* missing"):
        public(name, str(folder))


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
    with pytest.raises(ValueError, match=r"P112\.dev\.json:1"):
        collected(public("entity_questions", str(folder)))
    assert built() == []


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("scifact", None, "data.name=scifact: must begin with beir, lotte, miracl, entity_q"),
        ("beir/nothing", None, "data.name=beir/nothing: must be one of arguana, "),
        ("lotte/cooking/search", None, "data.name=lotte/cooking/search: must be lotte/TOPIC"),
        ("lotte/writing/all", None, "search or forum"),
        ("lotte/writing/search/train", None, "test or dev"),
        ("miracl/xx", None, "data.name=miracl/xx: must be one of ar, bn"),
        ("entity_questions", None, "data.path=null: entity_questions needs a folder"),
        ("entity_questions/P17", None, "must be entity_questions"),
        ("dpr/nq", None, "data.name=dpr/nq: must be such as dpr/nq, and data.path=FOLDER"),
        ("beir/scifact", "no/such", "data.path=no/such: no such folder or file"),
    ],
)
def test_names_and_paths_that_lead_nowhere_are_refused(name, path, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        public(name, path)


ROWS = {
    ("BeIR/scifact", "corpus", "corpus"): [
        {"_id": "4983", "title": "Cells", "text": "Cells divide."},
        {"_id": "5836", "title": "", "text": "Mice run."},
    ],
    ("BeIR/scifact", "queries", "queries"): [
        {"_id": "0", "title": "", "text": "Do cells divide?"},
        {"_id": "2", "title": "", "text": "Do mice run?"},
    ],
    ("BeIR/scifact-qrels", None, "train"): [{"query-id": 0, "corpus-id": 4983, "score": 1}],
    ("BeIR/scifact-qrels", None, "test"): [{"query-id": 2, "corpus-id": 5836, "score": 1}],
    "colbertv2/lotte_passages/writing/test_collection.jsonl": [
        {"doc_id": 0, "author": "a", "text": "Write daily."},
        {"doc_id": 1, "author": "b", "text": "Read more."},
    ],
    "colbertv2/lotte/writing/test_qas.search.jsonl": [
        {"qid": 0, "query": "how to write", "url": "u", "answer_pids": [0, 1]}
    ],
    "colbertv2/lotte_passages/lifestyle/dev_collection.jsonl": [
        {"doc_id": 7, "author": "a", "text": "Sleep well."}
    ],
    "colbertv2/lotte/lifestyle/dev_qas.forum.jsonl": [
        {"qid": 3, "query": "how to sleep", "author": "a", "answers": {"answer_pids": [7]}}
    ],
    "miracl/miracl-corpus/miracl-corpus-v1.0-yo/docs-*.jsonl.gz": [
        {"docid": "1#0", "title": "Ìlú", "text": "Ìlú kan"}
    ],
    "miracl/miracl/miracl-v1.0-yo/topics/topics.miracl-v1.0-yo-dev.tsv": [
        {"query_id": "1", "query": "Ìlú wo?"}
    ],
    "miracl/miracl/miracl-v1.0-yo/qrels/qrels.miracl-v1.0-yo-dev.tsv": [
        {"query_id": "1", "Q0": "Q0", "docid": "1#0", "relevance": "1"}
    ],
}


@pytest.fixture
def on_hub(monkeypatch) -> list:
    """Stands for the hub: small tables with the columns and types of the real ones."""
    asked = []

    def load_dataset(path, name=None, split=None, data_files=None, **_):
        key = data_files.removeprefix("hf://datasets/") if data_files else (path, name, split)
        asked.append(key)
        return Dataset.from_list(ROWS[key])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


@pytest.mark.parametrize(
    ("name", "counts", "judged"),
    [
        ("beir/scifact", (2, 2), {"test": {"2": {"5836": 1}}, "train": {"0": {"4983": 1}}}),
        ("lotte/writing/search", (2, 1), {"test": {"0": {"0": 1, "1": 1}}}),
        ("lotte/lifestyle/forum/dev", (1, 1), {"dev": {"3": {"7": 1}}}),
        ("miracl/yo", (1, 1), {"dev": {"1": {"1#0": 1}}}),
    ],
)
def test_the_hub_gives_the_collection_once(name, counts, judged, on_hub, collected):
    collection = collected(public(name))
    assert (len(collection.documents), len(collection.queries)) == counts
    assert {split: collection.judgements(split) for split in collection.qrels} == judged
    manifest = json.loads((collection.folder / "manifest.json").read_text())
    assert len(manifest["options"]["hub"]) == 2
    on_hub.clear()
    assert collected(public(name)).folder == collection.folder
    assert on_hub == []


def test_columns_of_a_file_on_the_hub_stay_as_they_are(tmp_path, monkeypatch):
    file = tmp_path / "topics.tsv"
    file.write_text('007#0\t"null" is a word\n008#0\tnull\n')
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    load = datasets.load_dataset
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda *arguments, data_files, **options: load(
            *arguments, data_files=str(file), cache_dir=str(tmp_path / "cache"), **options
        ),
    )
    rows = [row for _, row in hub_table("miracl/x.tsv", ("query_id", "query"))]
    assert rows == [
        {"query_id": "007#0", "query": '"null" is a word'},
        {"query_id": "008#0", "query": "null"},
    ]


@pytest.mark.parametrize("error", [ConnectionError("no network\nat all"), RuntimeError("scripts")])
def test_a_hub_out_of_reach_is_one_clear_line(error, monkeypatch, collected, built):
    def load_dataset(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(OSError, match=r"BeIR/scifact/corpus: cannot be fetched .*local copy") as e:
        collected(public("beir/scifact"))
    assert "\n" not in str(e.value)
    assert built() == []
