"""Plain passages: which columns are read, and a run over them that measures nothing."""

import json

import pytest

from data_modules.collection import collect
from data_modules.formats.catalogue import read_layout
from models.retriever import Retriever
from tests.runs import NO_ANALYSIS, TINY
from train import train

PARIS, ROME = "Paris lies on the Seine.", 'Rome, "on the Tiber"'
LINES = [{"passage": PARIS}, {"passage": ROME}]
# A file, its content, data.fields, and the (id, title, text) that it holds.
FILES = [
    (
        "a.csv",
        'docid,title,contents\np,t,Paris lies on the Seine.\nr,,"Rome, ""on the Tiber"""\n',
        None,
        [("p", "t", PARIS), ("r", "", ROME)],
    ),
    ("a.csv", f"Text,n\n{PARIS},1\n", None, [("2", "", PARIS)]),
    ("a.csv", f"name,words\np,{PARIS}\n", ["name", "words"], [("p", "", PARIS)]),
    ("a.tsv", f"p\t{PARIS}\nr\t{ROME}\n", None, [("p", "", PARIS), ("r", "", ROME)]),
    ("a.tsv", f"p\t{PARIS}\tt\n", [1, 3, 2], [("p", "t", PARIS)]),
    ("a.tsv", f"{PARIS}\n{ROME}\n", None, [("1", "", PARIS), ("2", "", ROME)]),
    ("a.tsv", f"title\ttext\tid\nt\t{PARIS}\tp\n", None, [("p", "t", PARIS)]),
    ("a.jsonl", "\n".join(map(json.dumps, LINES)), None, [("1", "", PARIS), ("2", "", ROME)]),
    ("a.jsonl", json.dumps({"_id": 7, "title": "t", "text": PARIS}), None, [("7", "t", PARIS)]),
    ("corpus.jsonl", json.dumps({"_id": "p", "text": PARIS}), None, [("p", "", PARIS)]),
]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("name", "content", "fields", "expected"), FILES)
def test_a_file_of_texts_is_a_collection(name, content, fields, expected, alone, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_text(content)
    layout = read_layout(folder if alone else folder / name, fields=fields)
    documents = collect(layout, tmp_path / "store").documents
    assert list(zip(*(documents[c][:] for c in ("id", "title", "text")), strict=True)) == expected


def test_passages_without_judgements_are_searched_and_nothing_is_measured(
    tmp_path, capsys, finished_run
):
    file = tmp_path / "cities.tsv"
    file.write_text(f"p\t{PARIS}\nr\t{ROME}\n")
    typed = ["data=files", f"data.path={file}", "logger=none", f"output={tmp_path}/runs"]
    trained = finished_run("t5_colbert", "experiment=smoke", "logger=none", *NO_ANALYSIS, *TINY)
    for model in (["model=bm25"], ["model=t5_colbert", *TINY, f"weights={trained}"]):
        run = train([*model, *typed])
        assert not [key for key in run.metrics if not key.startswith("cost/")]
        assert "nothing is measured" in capsys.readouterr().out
        assert (run.path / "report.html").is_file()
        hits = Retriever.load(run.path).search("Where is Paris?", k=2)
        assert "p" in {hit.id for hit in hits}
    with pytest.raises(ValueError, match="has no training queries: weights=RUN takes"):
        train(["model=t5_colbert", *typed, "name=untrained"])
    assert not (tmp_path / "runs" / "untrained").exists()
    with pytest.raises(ValueError, match="data.test_split=dev: must be null, there are no"):
        train(["model=bm25", *typed, "data.test_split=dev"])
