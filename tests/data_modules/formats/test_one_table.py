"""One table: which columns are read or refused, pairs and their splits, runs on it."""

import csv
import json
import random
from io import StringIO
from itertools import product

import pandas
import polars
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict
from pyarrow.feather import write_feather
from pyarrow.parquet import write_table

from data_modules.collection import collect
from data_modules.formats.catalogue import read_layout
from data_modules.sources import write_given_table
from models.retriever import Retriever
from tests.runs import NO_ANALYSIS, TINY
from train import train

PARIS, ROME = (
    "Paris, the capital, lies on the river Seine; it has twenty districts.",
    'Rome: "roma"',
)
BOTH = [("p", "", PARIS), ("r", "", ROME)]
NUMBERED = [("0", "", PARIS), ("1", "", ROME)]
PAGE = f"<!DOCTYPE html><html><head><title>404</title><p>{PARIS.replace(',', ' ')}</p>\n"
# A file, its content, data.columns, and the (id, title, text) that it holds, or the refusal.
TABLES = {
    "comma": ("a.csv", f'docid,contents\np,"{PARIS}"\nr,"Rome: ""roma"""\n', None, BOTH),
    "semicolon": ("a.csv", f'id;text\np;"{PARIS}"\nr;"Rome: ""roma"""\n', None, BOTH),
    "bar": ("a.csv", f'ID | Text\np|{PARIS}\nr|"Rome: ""roma"""\n', None, BOTH),
    "tab": ("a.csv", f'id\ttext\np\t{PARIS}\nr\t"Rome: ""roma"""\n', None, BOTH),
    "comma in TSV": ("a.tsv", f'id,text\np,"{PARIS}"\nr,"Rome: ""roma"""\n', None, BOTH),
    "BOM": ("a.csv", f'\ufeff"id","text"\r\np,"{PARIS}"\r\nr,"Rome: ""roma"""\r\n', None, BOTH),
    "doubled quotes": ("a.tsv", f'id\ttext\np\t{PARIS}\nr\t"Rome: ""roma"""\n', None, BOTH),
    "own quotes": ("a.tsv", f'id\ttext\np\t{PARIS}\nr\tRome: "roma"\n', None, BOTH),
    "quote first": ("a.tsv", f'1\t{PARIS}\n2\t"Roma" is Rome\n', None,
                    [("1", "", PARIS), ("2", "", '"Roma" is Rome')]),
    "newlines": ("a.csv", f'n,text\n1,"a\n\nb, c"\n2,"{PARIS}"\n', None,
                 [("0", "", "a\n\nb, c"), ("1", "", PARIS)]),
    "empty rows": ("a.csv", f'text,n\n"{PARIS}",1\n,\n\n"Rome: ""roma""",\n,\n', None, NUMBERED),
    "named": ("a.csv", f'key;Kopf;Volltext\np;t;"{PARIS}"\n',
              {"id": "key", "title": "Kopf", "text": "Volltext"}, [("p", "t", PARIS)]),
    "numbered": ("a.tsv", f"t\t{PARIS}\tp\n", {"document": 2, "id": 3, "title": 1},
                 [("p", "t", PARIS)]),
    "lines": ("a.tsv", f"{PARIS}\n{ROME}\n", None, NUMBERED),
    "JSON lines": ("a.jsonl", "\n".join(map(json.dumps, [{"passage": PARIS}, {"passage": ROME}])),
                   None, NUMBERED),
    "Parquet": ("a.parquet", {"pid": [7, 8], "title": ["t", None], "body": [PARIS, ROME]}, None,
                [("7", "t", PARIS), ("8", "", ROME)]),
    "unknown header": ("a.csv", f'key,Volltext\np,"{PARIS}"\n', None, "columns key, Volltext hold"),
    "unknown header;": ("a.csv", f'key;Text2\np;"{PARIS}"\n', None, "columns key, Text2 hold"),
    "unknown header|": ("a.csv", f"Volltext|n\n{PARIS}|1\n", None, "columns Volltext, n hold"),
    "unknown header in TSV": ("a.tsv", f"key\tbook\np\t{PARIS}\n", None, "columns key, book hold"),
    "unknown column": ("a.csv", f"Volltext\n{PARIS}\n", None, "columns Volltext hold"),
    "unknown JSON": ("a.jsonl", json.dumps({"volltext": PARIS}), None, "columns volltext hold"),
    "no header": ("a.csv", f'1,"{PARIS}"\n', None, "columns 1, Paris, .* hold"),
    "no ids": ("a.tsv", f"Which city?\t{PARIS}\n", None, r"columns Which city\?, Paris, .* hold"),
    "wrong name": ("a.csv", "id;text\n1;x\n", {"text": "body"}, "body must be one of .* id, text "),
    "twice": ("a.csv", "id,text,text\n1,x,y\n", None, "text must be one of the columns id, text, "),
    "ragged": ("a.csv", f'id;text\np;"{PARIS}"\nr;x;y\n', None, r"a\.csv:3: expected 2 columns"),
    "open quote": ("a.csv", 'id,text\np,x\nr,"y\nq,z\n', None, r"a\.csv:3: expected texts in quo"),
    "UTF-16": ("a.csv", "id,text\np,x\n".encode("utf-16"), None, r"a\.csv:1: expected UTF-8"),
    "nothing": ("a.tsv", "\n", None, r"a\.tsv: is empty"),
    "page": ("a.csv", PAGE, None, "columns <!DOCTYPE html>.* hold"),
    "null": ("a.parquet", {"text": ["x", None]}, None, 'row 1: expected a string "text", got null'),
    "number": ("a.jsonl", '{"text": 1}', None, r'a\.jsonl:1: expected a string "text", got 1'),
    "no Parquet": ("a.parquet", "id,text\n", None, r"a\.parquet: expected a table in parquet"),
}  # fmt: skip


def write(path, content):
    if isinstance(content, dict):
        write_table(pa.table(content), path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path, columns=None, store=None):
    return collect(read_layout(path, columns=columns), store or path.parent / "store")


@pytest.mark.parametrize(("name", "content", "columns", "expected"), TABLES.values(), ids=TABLES)
def test_a_table_is_read_or_refused_in_a_line(name, content, columns, expected, tmp_path):
    file = write(tmp_path / name, content)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected) as refused:
            read(file, columns)
        assert "\n" not in str(refused.value)
        assert ("data.columns=" in str(refused.value)) == ("hold" in expected or "must" in expected)
    else:
        rows = read(file, columns).documents.select_columns(["id", "title", "text"])
        assert list(map(tuple, rows.to_pandas().values)) == expected


CELLS = ["lorem ipsum ", "Zoë", "a ", ",", ";", "|", '"', "\n", "\n\n", "."]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("delimiter", ",;|\t")
def test_what_csv_writes_is_read_back_and_an_unknown_header_is_refused(
    delimiter, quoting, tmp_path
):
    draw = random.Random(0)
    for name, end, bom in product(("a.csv", "a.tsv"), ("\n", "\r\n"), ("", "\ufeff")):
        texts = ["".join(draw.choices(CELLS, k=9)).strip() + "!" for _ in range(20)]
        rows = [(str(n), text) for n, text in enumerate(texts)]
        for header in (("id", "text"), ("key", "Volltext")):
            written = StringIO(newline="")
            options = {"delimiter": delimiter, "quoting": quoting, "lineterminator": end}
            csv.writer(written, **options).writerows([header, *rows])
            file = write(tmp_path / name, bom + written.getvalue())
            if header[0] == "id":
                assert [(d.id, d.text) for d in read_layout(file).documents()] == rows
            else:
                with pytest.raises(ValueError, match=r"columns key, Volltext hold.*data\.columns"):
                    read_layout(file)


def test_a_table_of_pairs_is_a_judged_collection(tmp_path):
    questions = [f"Where is {n}?" for n in range(100)]
    rows = [f'{q};"Answer {n % 40}"' for n, q in enumerate(questions)] + [f"{questions[0]};Two"]
    file = write(tmp_path / "faq.csv", "\n".join(["Frage;Antwort", *rows]))
    found = read(file, {"query": "Frage", "document": "Antwort"})
    assert found.queries["text"][:] == questions and len(found.documents) == 41
    texts = dict(zip(found.documents["id"][:], found.documents["text"][:], strict=True))
    judged = {q: docs for split in found.qrels for q, docs in found.judgements(split).items()}
    assert {texts[d] for d in judged["0"]} == {"Answer 0", "Two"}
    assert [texts[d] for d in judged["77"]] == ["Answer 37"]
    sizes = {split: len(found.judgements(split)) for split in found.qrels}
    assert sum(sizes.values()) == 100 and list(sizes) == ["train", "dev", "test"]
    assert 70 < sizes["train"] < 90 and min(sizes.values()) > 3
    # A query's split depends on its words alone, and the usual names need no data.columns.
    lines = (json.dumps({"Question": f" {q.upper()}", "answer": "a"}) for q in reversed(questions))
    again = read(write(tmp_path / "more.jsonl", "\n".join(lines)))
    assert {s: len(again.judgements(s)) for s in again.qrels} == sizes and len(again.documents) == 1


ROWS = {"id": ["p", "q", "r"], "question": ["Where?", "Who?", "When?"], "answer": list("xyx")}
HELD = {
    "pandas": pandas.DataFrame(ROWS).set_index("id"),
    "polars": polars.DataFrame(ROWS),
    "pyarrow": pa.table(ROWS),
    "datasets": Dataset.from_dict(ROWS | {"n": [2, 0, 1]})
    .sort("n")
    .select([2, 0, 1])
    .remove_columns("n"),
    "splits": DatasetDict(
        train=Dataset.from_dict(ROWS).select([0]), validation=Dataset.from_dict(ROWS).select([1, 2])
    ),
}


@pytest.mark.parametrize("kind", HELD)
def test_a_table_in_memory_is_the_same_collection_as_its_files(kind, tmp_path, cache):
    table = pa.table(ROWS)
    write_feather(table, tmp_path / "file.arrow", compression="zstd")
    with pa.ipc.new_stream(str(tmp_path / "stream.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    held = write_given_table(HELD[kind])
    assert write_given_table(HELD[kind]) == held
    found = read(held, store=tmp_path / "store")
    for name in ("file.arrow", "stream.arrow"):
        file = read(tmp_path / name)
        assert file.documents.to_dict() == found.documents.to_dict()
        assert file.queries.to_dict() == found.queries.to_dict()
    assert found.documents.to_dict() == {"id": ["p", "q"], "title": ["", ""], "text": ["x", "y"]}
    judged = [(q, *docs) for split in found.qrels for q, docs in found.judgements(split).items()]
    assert sorted(judged) == [("p", "p"), ("q", "q"), ("r", "p")]
    if kind == "splits":
        assert list(found.judgements("validation")) == ["q", "r"]
        (held / "train").rename(held / "test")
        assert list(read(held, store=tmp_path / "store").qrels) == ["test", "validation"]


def test_a_run_in_python_takes_a_table(tmp_path, cache):
    typed = ["model=bm25", "data.test_split=train", "logger=none", f"output={tmp_path}"]
    run = train([*typed, *NO_ANALYSIS], data=HELD["pandas"])
    assert run.metrics["retrieve/mrr@10"] == 0  # an answer shares no word with its question
    assert Retriever.load(run.path).search("x")[0].id == "p"
    with pytest.raises(ValueError, match="data=list: must be a table of pandas, polars, pyarrow"):
        train(typed, data=[1])


def test_rows_of_pairs_may_have_grades(tmp_path):
    rows = [(f"q{n // 3}", f"d{n % 3}", n % 3) for n in range(90)]
    lines = "\n".join(f"{q}\t{d}\t{grade}" for q, d, grade in rows)
    found = read(write(tmp_path / "judged.tsv", f"question\tpassage\tlabel\n{lines}"))
    judged = [one for split in found.qrels for one in found.judgements(split).values()]
    assert judged == [{"0": 0, "1": 1, "2": 2}] * 30
    with pytest.raises(ValueError, match=r"more\.tsv:92: expected an integer label, got 'high'"):
        read(write(tmp_path / "more.tsv", f"query\tpassage\tlabel\n{lines}\nq\td\thigh"))


def test_passages_without_judgements_are_searched_and_nothing_is_measured(
    tmp_path, capsys, finished_run
):
    file = write(tmp_path / "cities.csv", f'id,text\np,"{PARIS}"\nr,"In Rome"\n')
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
