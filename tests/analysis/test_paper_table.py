import csv
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from analysis.compare import compare
from analysis.evaluation import evaluate_retrieval
from analysis.papers.paper import (
    Paper,
    PaperRow,
    match_runs,
    read_paper,
    write_paper_table,
)
from analysis.runs.run_folder import read_run
from analysis.studies.sweep import CompareRuns
from analysis.tables.comparison import compare_runs
from analysis.tables.significance import JudgedQueries
from conf.command import run_command
from gr_mvdr.evaluation.ranking import Ranking, evaluate, read_qrels, write_qrels

QUERIES = 12
COLUMNS = "table,row,collection,metric,value,systems,place,where,study\n"
PAPER = Paper(
    "Table 0",
    "NQ320k",
    ("recall@1", "recall@10"),
    (
        PaperRow("ColBERT", ("T5-ColBERT",), {"recall@1": 61.1, "recall@10": 88.4}),
        PaperRow("DSI", ("DSI", "DSI naive"), {"recall@1": 55.2, "recall@10": 67.4}),
        PaperRow("PAWA", ("DSI-PAWA",), {"recall@1": 60.2, "recall@10": 80.2}),
        PaperRow("SEAL", ("T5-SEAL",), {"recall@1": 44.7, "recall@10": 75.5}),
    ),
)


@pytest.fixture
def own(tmp_path):
    """The same table in a file."""
    lines = [
        f"Table 0,{row.name},NQ320k,{metric},{value},{';'.join(row.systems)},retrieve,,\n"
        for row in PAPER.rows
        for metric, value in row.values.items()
    ]
    path = tmp_path / "own.csv"
    path.write_text(f"# a comment, first\n{COLUMNS}{''.join(lines)}")
    return path


def write_run(folder, system, seed, ranks, qrels=None, reranked=None, **config):
    """A run that found the relevant document of query n at rank ranks[n]; 0 = not at all.

    reranked: form ("" = the main one) → ranks of the first queries, which it reranked.
    """
    folder.mkdir(parents=True)
    config = {"seed": seed, "model": config}
    OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
    provenance = {"system": system, "collection": "almanac", "seed": seed, "splits": ["test"]}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    qrels = qrels or {f"q{n}": {"gold": 1} for n in range(len(ranks))}
    write_qrels(qrels, folder / "retrieve.qrels")
    metrics = write_ranking(folder, "retrieve", ranks, qrels)
    for form, some in (reranked or {}).items():
        judged = {f"q{n}": {"gold": 1} for n in range(len(some))}
        metrics |= write_ranking(folder, f"rerank/{form}".rstrip("/"), some, judged)
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return folder


def write_ranking(folder, place, ranks, qrels):
    found = {
        f"q{n}": {("gold" if place == rank else f"x{place}"): -place for place in range(1, 21)}
        for n, rank in enumerate(ranks)
    }
    Ranking(found).write(folder / f"{place.replace('/', '-')}.trec", "tag")
    return {f"{place}/{key}": value for key, value in evaluate(Ranking(found), qrels).items()}


@pytest.fixture
def sweep(tmp_path):
    """T5-ColBERT with one seed, DSI with two, no DSI-PAWA, T5-SEAL; BM25 is in no paper's row."""
    folder = tmp_path / "sweep"
    write_run(folder / "0", "T5-SEAL", 1, [0] * QUERIES)
    write_run(folder / "1", "DSI", 1, [1] * 6 + [5] * 6)
    write_run(folder / "2", "DSI", 2, [1] * 3 + [5] * 6 + [0] * 3)
    write_run(folder / "3", "T5-ColBERT", 1, [1] * QUERIES)
    write_run(folder / "4", "BM25", 1, [1] * QUERIES)
    return folder


def test_table_6_is_the_papers():
    table = read_paper("table6")
    assert table.collection == "NQ320k"
    assert [(row.name, *row.values.values()) for row in table.rows] == [
        ("T5-ColBERT", 61.1, 88.4),
        ("DSI", 55.2, 67.4),
        ("DSI-PAWA", 60.2, 80.2),
        ("DSI-PAWA, NCI's values", 60.2, 80.2),
        ("T5-SEAL", 44.7, 75.5),
        ("T5-GENRE", 53.7, 64.7),
        ("T5-GENRE-NP", 62.2, 78.8),
    ]


def test_rows_are_the_papers_with_ours_beside_them(sweep, tmp_path):
    comparison = compare_runs([sweep])
    ((table, notes),) = write_paper_table(comparison, PAPER, tmp_path)
    assert table.heading == "Table 0 (NQ320k) and ours (almanac (test))"
    assert table.columns == [
        *("paper R@1", "paper R@10", "ours R@1", "ours R@10"),
        *("difference R@1", "difference R@10"),
        "seeds",
    ]
    rows = {name: [cell.text for cell in cells] for name, cells in table.rows}
    assert list(rows) == ["ColBERT", "DSI", "PAWA", "SEAL"]
    assert rows["ColBERT"] == ["61.1", "88.4", *["100.0"] * 2, "+38.9", "+11.6", "1"]
    # DSI: recall@1 50 and 25 %, recall@10 100 and 75 %; the sample's deviation is 25 / √2.
    assert rows["DSI"][:4] == ["55.2", "67.4", "37.5 ± 17.7", "87.5 ± 17.7"]
    assert rows["DSI"][4:6] == ["-17.7", "+20.1"] and rows["DSI"][6] == "2"
    assert rows["PAWA"] == ["60.2", "80.2", *["–"] * 5]
    assert rows["SEAL"] == ["44.7", "75.5", "0.0", "0.0", "-44.7", "-75.5", "1"]
    assert "PAWA: no run here." in notes
    markdown = (tmp_path / "paper_table.md").read_text()
    assert "| DSI | 55.2 | 67.4 | 37.5 ± 17.7 | 87.5 ± 17.7 | -17.7 | +20.1 |" in markdown
    assert not list(tmp_path.glob("*.partial"))


def test_numbers_for_programs(sweep, tmp_path):
    write_paper_table(compare_runs([sweep]), PAPER, tmp_path)
    colbert, dsi, pawa, _ = csv.DictReader((tmp_path / "paper_table.csv").open())
    assert float(dsi["paper/recall@1"]) == 55.2 and float(dsi["recall@1"]) == 37.5
    assert float(dsi["difference/recall@1"]) == pytest.approx(-17.7)
    assert float(dsi["recall@1/std"]) == pytest.approx(25 / 2**0.5)
    assert dsi["seeds"] == "1, 2"
    assert dsi["setting"] == "almanac (test)"
    assert colbert["recall@1/std"] == ""
    assert pawa["recall@1"] == "" and float(pawa["paper/recall@10"]) == 80.2


TABLE_5 = Paper(
    "Table 5",
    "NQ320k",
    ("mrr@10",),
    (
        PaperRow("q→d", ("T5-ColBERT",), {"mrr@10": 72.0}, "rerank"),
        PaperRow("q←d", ("T5-ColBERT",), {"mrr@10": 65.7}, "rerank/document_to_query"),
        PaperRow("GR", ("T5-SEAL",), {"mrr@10": 60.5}, "rerank"),
        PaperRow("search", ("T5-SEAL",), {"mrr@10": None}),
    ),
)


@pytest.fixture
def reranked(tmp_path):
    """12 queries searched, the first 8 reranked: q→d finds all, q←d half, GR none at rank 1."""
    forms = {"": [1] * 8, "document_to_query": [1] * 4 + [2] * 4}
    write_run(tmp_path / "runs/a", "T5-ColBERT", 1, [0] * QUERIES, reranked=forms)
    forms = {"": [2] * 8, "leak_free": [1] * 8}
    write_run(tmp_path / "runs/b", "T5-SEAL", 1, [1] * QUERIES, reranked=forms)
    return tmp_path / "runs"


def test_a_row_stands_where_its_numbers_come_from(reranked, tmp_path):
    ((table, _),) = write_paper_table(compare_runs([reranked]), TABLE_5, tmp_path)
    rows = {name: [cell.text for cell in cells] for name, cells in table.rows}
    assert {name: cells[:2] for name, cells in rows.items()} == {
        "q→d": ["72.0", "100.0"],
        "q←d": ["65.7", "75.0"],
        "GR": ["60.5", "50.0"],
        "search": ["–", "100.0"],
    }
    records = {row["system"]: row for row in csv.DictReader((tmp_path / "paper_table.csv").open())}
    assert records["q←d"]["place"] == "rerank/document_to_query"
    assert records["search"]["paper/mrr@10"] == ""


def test_a_query_without_candidates_counts_in_a_reranking(reranked, tmp_path):
    """The ranking's file has no line of it, the judgements' has."""
    judged = read_qrels(reranked / "a/retrieve.qrels")
    write_qrels(dict(list(judged.items())[:9]), reranked / "a/rerank.qrels")
    queries = JudgedQueries([read_run(reranked / "a")], "rerank")
    assert sorted(queries.values(["recall@1"])["recall@1"]) == [0] + [1] * 8


def test_a_run_that_was_not_measured_there_is_no_run(reranked, tmp_path):
    write_run(reranked / "c", "T5-ColBERT", 1, [1] * QUERIES, dimension=64)
    comparison = compare_runs([reranked])
    names = [line.name for line in match_runs(comparison.sections[0], TABLE_5)]
    assert names == ["q→d", "q←d", "GR", "search"]


@pytest.mark.parametrize(
    ("name", "collection", "numbers"),
    [
        ("table5", "NQ320k", [(61.3, 91.9, 72.0), (53.2, 90.1, 65.7), (47.4, 87.0, 60.5)]),
        (
            "table5_msmarco",
            "MS MARCO",
            [(46.5, 84.5, 58.9), (34.8, 78.8, 48.4), (35.3, 77.1, 48.3)],
        ),
        (
            "table8",
            "NQ320k",
            [
                (37.6, 69.5, 47.8),
                (50.2, 77.7, None),
                (53.6, 83.0, None),
                (61.1, 88.4, 70.7),
                (55.2, 67.4, None),
                (44.7, 75.5, 55.0),
            ],
        ),
        (
            "table8_msmarco",
            "MS MARCO",
            [
                (38.4, 67.7, 47.6),
                (49.1, 76.4, None),
                (41.8, 75.4, None),
                (44.2, 77.8, 55.3),
                (25.7, 53.8, 33.9),
                (24.1, 57.1, 34.0),
            ],
        ),
    ],
)
def test_tables_5_and_8_are_the_papers(name, collection, numbers):
    table = read_paper(name)
    assert (table.collection, table.metrics) == (collection, ("recall@1", "recall@10", "mrr@10"))
    rows = [tuple(row.values.values()) for row in table.rows]
    assert rows[: len(numbers)] == numbers
    assert set(rows[len(numbers) :]) <= {(None, None, None)}
    if name.startswith("table5"):
        places = [row.place for row in table.rows]
        assert places == ["rerank", "rerank/document_to_query", "rerank"]


def test_a_comparison_prints_the_paper_beside_ours(sweep, tmp_path, monkeypatch, capsys):
    arguments = [f"runs=[{sweep}]", f"output={tmp_path}/out", "paper=table6"]
    monkeypatch.setattr(sys, "argv", ["compare", *arguments])
    run_command("compare", "analysis.compare:main")
    out = capsys.readouterr().out
    assert "Table 6 of gr_as_mvdr (NQ320k) and ours" in out and "37.5 ± 17.7" in out
    assert "T5-GENRE-NP: no run here." in out
    assert (tmp_path / "out/paper_table.md").is_file()
    monkeypatch.setattr(sys, "argv", ["compare", *arguments[:2]])
    run_command("compare", "analysis.compare:main")
    assert "Table 6" not in capsys.readouterr().out


@pytest.mark.parametrize("paper", ["table6", "own"])
def test_a_sweep_ends_with_the_papers_table(sweep, own, paper, capsys):
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(sweep)}}})
    CompareRuns(paper=str(own) if paper == "own" else paper).on_multirun_end(config)
    assert "37.5 ± 17.7" in capsys.readouterr().out
    assert (sweep / "paper_table.csv").is_file()
    page = (sweep / "comparison.html").read_text()
    assert "37.5 ± 17.7" in page and page.index(" and ours (") < page.index("All metrics")


class Recorder:
    """A logger with wandb's verbs."""

    def __init__(self):
        self.tables = {}

    def log_table(self, key, columns, data):
        self.tables[key] = columns, data

    def log_image(self, key, images, caption):
        pass

    def log_hyperparams(self, values):
        pass


def test_a_logger_gets_the_papers_table(sweep, own, tmp_path):
    logger = Recorder()
    compare([sweep], tmp_path, logger=logger, paper=own)
    columns, rows = logger.tables["tables/paper_table"]
    assert columns[:2] == ["setting", "system"] and len(rows) == 4
    assert all(len(row) == len(columns) for row in rows)


def test_a_paper_that_cannot_be_read_is_named(sweep, own, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"paper=table99: must be .* one of .*table6"):
        compare([sweep], tmp_path / "out", paper="table99")
    assert not (tmp_path / "out").exists()
    with pytest.raises(FileNotFoundError, match=r"paper=none\.csv: no such file"):
        read_paper("none.csv")
    assert read_paper(own) == PAPER
    for line, said in (
        ("DSI,NQ320k,hits@5,1,DSI,retrieve,,", ":2: metric=hits@5: must be recall .R., success"),
        ("DSI,NQ320k,recall@1,1,DSI,search,,", ":2: place=search must be retrieve, rerank"),
        ("DSI,NQ320k,recall@1,much,DSI,rerank,,", ":2: value=much must be a number or empty"),
        ("DSI,NQ320k,recall@1,1,DSI,rerank,size,", ":2: size: must be key=value"),
        ("DSI,NQ320k,recall@1,1,DSI,rerank", ":2: 7 columns, must be 9"),
        (
            "DSI,NQ320k,recall@1,1,DSI,rerank,,\nU,DSI,NQ320k,recall@1,1,,rerank,,",
            "must hold one table",
        ),
    ):
        own.write_text(f"{COLUMNS}T,{line}\n")
        with pytest.raises(ValueError, match=rf"own\.csv.*{said}"):
            read_paper(own)
    own.write_text("system,value\n")
    with pytest.raises(ValueError, match="the first line must be table,row,"):
        read_paper(own)


def test_a_run_leaves_its_judgements(tmp_path):
    class Data:
        test_splits = ("test", "test_unseen")
        drop_identical, metrics, groups = False, ("recall@1",), None
        collection = SimpleNamespace(group_queries=lambda split, pattern: {})
        qrels = {"test": {"q": {"d": 1}}, "test_unseen": {"r": {"e": 2, "f": 0}}}  # noqa: RUF012

        def test_queries(self, split):
            return {"id": list(self.qrels[split])}

        def judgements(self, split, queries):
            return {query: self.qrels[split][query] for query in queries["id"]}

    class Model:
        plans_search = False

        def retrieve(self, queries, depth):
            return Ranking({query: {"d": 1.0} for query in queries["id"]})

        def search_fidelity(self, queries, ranking, depth):
            return {"cost/candidates": len(queries["id"])}

    metrics = evaluate_retrieval(Model(), Data(), tmp_path, 10)
    assert metrics["retrieve/recall@1"] == 1 and metrics["retrieve/test_unseen/recall@1"] == 0
    assert metrics["cost/candidates"] == 1
    for split, name in (("test", "retrieve"), ("test_unseen", "retrieve-test_unseen")):
        assert read_qrels(tmp_path / f"{name}.qrels") == Data.qrels[split]
        assert (tmp_path / f"{name}.trec").is_file()


def test_a_row_says_which_runs_it_means(tmp_path):
    for number, k in enumerate((14, 28)):
        pooling = {"_target_": "gr_mvdr.pooling.FirstTokens", "k": k}
        write_run(tmp_path / f"runs/{k}", "MVA", 1, [1 + number] * QUERIES, pooling=pooling)
    rows = [
        PaperRow(str(k), ("MVA",), {"recall@1": 1}, where={"model.pooling": f"FirstTokens(k={k})"})
        for k in (14, 28, 56)
    ]
    paper = Paper("T", "NQ320k", ("recall@1",), tuple(rows))
    (section,) = compare_runs([tmp_path / "runs"]).sections
    lines = match_runs(section, paper)
    assert [line.difference("recall@1") for line in lines] == [99, -1, None]
    nothing = replace(rows[0], where={"model.pooling.k.of": "14"})
    assert match_runs(section, replace(paper, rows=(nothing,)))[0].group is None


def test_a_grid_reads_the_studies_of_all_collections(tmp_path):
    for name, collection in (("a", "beir/a"), ("b", "beir/b")):
        folder = write_run(tmp_path / "runs" / name, "ALIGNER", 1, [1] * QUERIES)
        config = OmegaConf.merge(OmegaConf.load(folder / "config.yaml"), {"collection": collection})
        OmegaConf.save(config, folder / "config.yaml")
        provenance = json.loads((folder / "provenance.json").read_text())
        (folder / "provenance.json").write_text(json.dumps(provenance | {"collection": name}))
        (folder / "study.csv").write_text(f"strategy,ndcg@10\nk=1,{ord(name) / 100}\nk=2,0.5\n")
    numbers = {"beir/a": (9.0, 40.0, 1.0), "beir/b": (9.0, "", 1.0)}
    lines = [
        f"T,k={k},{name},ndcg@10,{value},ALIGNER,retrieve,,strategy=k={k}\n"
        for name, values in numbers.items()
        for k, value in zip((1, 2, 4), values, strict=True)
    ]
    (tmp_path / "own.csv").write_text(COLUMNS + "".join(lines))
    comparison = compare_runs([tmp_path / "runs"], mixed=True)
    assert len(comparison.sections) == 2
    parsed = read_paper(tmp_path / "own.csv")
    ((table, notes),) = write_paper_table(comparison, parsed, tmp_path)
    cells = {name: [cell.text for cell in cells[:3]] for name, cells in table.rows}
    assert cells["beir/a, k=1"] == ["9.0", "97.0", "+88.0"]
    assert cells["beir/b, k=1"][1] == "98.0"
    assert cells["beir/a, k=2"] == ["40.0", "50.0", "+10.0"]
    assert cells["beir/b, k=2"] == ["–", "50.0", "–"]
    assert cells["beir/a, k=4"] == ["1.0", "–", "–"]
    # Over both: (97 + 98) / 2 and the paper's 9; where it lacks a collection, it has no average.
    assert list(cells)[-2:] == ["average of 2 of 2, k=1", "average of 2 of 2, k=2"]
    assert cells["average of 2 of 2, k=1"] == ["9.0", "97.5", "+88.5"]
    assert cells["average of 2 of 2, k=2"] == ["–", "50.0", "–"]
    assert any(note.startswith("average of n of N") for note in notes)
    # The paper's average is over the rows that we have.
    (tmp_path / "runs/b/study.csv").write_text("strategy,ndcg@10\nk=4,0.5\n")
    ((table, _),) = write_paper_table(comparison, parsed, tmp_path)
    cells = {name: [cell.text for cell in cells[:3]] for name, cells in table.rows}
    assert cells["average of 1 of 2, k=2"] == ["40.0", "50.0", "+10.0"]
    assert cells["average of 1 of 2, k=4"] == ["1.0", "50.0", "+49.0"]


def test_a_row_may_be_of_what_was_measured_of_alignments(tmp_path):
    folder = write_run(tmp_path / "a", "T5-ColBERT", 1, [1] * QUERIES)
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["analysis/exact_match/candidates/query_to_document/hard"] = 0.2
    (folder / "metrics.json").write_text(json.dumps(metrics))
    ((table, _),) = write_paper_table(
        compare_runs([tmp_path]), read_paper("figure2_nq320k"), tmp_path
    )
    ((_, cells),) = table.rows
    assert [cell.text for cell in cells] == ["11.4", "20.0", "+8.6", "1"]


def test_a_sweep_may_keep_its_comparison_elsewhere(sweep, own, tmp_path):
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(sweep)}}})
    CompareRuns(paper=str(own), out=str(tmp_path / "tables/here")).on_multirun_end(config)
    assert (tmp_path / "tables/here/paper_table.md").is_file()
    assert not (sweep / "paper_table.md").exists()
