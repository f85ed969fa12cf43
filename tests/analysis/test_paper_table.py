import csv

import pytest
from omegaconf import OmegaConf

from analysis.compare import compare
from analysis.studies.sweep import CompareRuns
from analysis.tables.comparison import compare_runs
from analysis.tables.paper import (
    Paper,
    PaperRow,
    match_runs,
    read_paper,
    write_paper_table,
)
from gr_mvdr.evaluation.ranking import evaluate
from tests.analysis.test_compare import rank_gold
from tests.analysis.test_compare import write_run as write_metrics

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


def write_run(folder, system, seed, ranks, reranked=None, **config):
    """A run that found the relevant document of query n at rank ranks[n]; 0 = not at all.

    reranked: form ("" = the main one) → ranks of the first queries, which it reranked.
    """
    rankings = {f"rerank/{form}".rstrip("/"): rank_gold(r) for form, r in (reranked or {}).items()}
    rankings["retrieve"] = rank_gold(ranks)
    metrics = {}
    for place, ranking in rankings.items():
        qrels = {query: {"gold": 1} for query in ranking.query_ids}
        metrics |= {f"{place}/{key}": value for key, value in evaluate(ranking, qrels).items()}
    write_metrics(folder, system, seed, metrics, {"model": config}, splits=["test"])
    return folder


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


def test_rows_are_the_papers_with_ours_beside_them(sweep, tmp_path):
    comparison = compare_runs([sweep])
    ((table, notes),) = write_paper_table(comparison, PAPER, tmp_path)
    rows = {name: [cell.text for cell in cells] for name, cells in table.rows}
    assert list(rows) == ["ColBERT", "DSI", "PAWA", "SEAL"]
    assert rows["ColBERT"] == ["61.1", "88.4", *["100.0"] * 2, "+38.9", "+11.6", "1"]
    # DSI: recall@1 50 and 25 %, recall@10 100 and 75 %; the sample's deviation is 25 / √2.
    assert rows["DSI"][:4] == ["55.2", "67.4", "37.5 ± 17.7", "87.5 ± 17.7"]
    assert rows["DSI"][4:6] == ["-17.7", "+20.1"] and rows["DSI"][6] == "2"
    assert rows["PAWA"] == ["60.2", "80.2", *["–"] * 5]
    assert rows["SEAL"] == ["44.7", "75.5", "0.0", "0.0", "-44.7", "-75.5", "1"]
    assert "PAWA: no run here." in notes


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


def test_a_run_that_was_not_measured_there_is_no_run(reranked, tmp_path):
    write_run(reranked / "c", "T5-ColBERT", 1, [1] * QUERIES, dimension=64)
    comparison = compare_runs([reranked])
    names = [line["system"] for line in match_runs(comparison.sections[0], TABLE_5)]
    assert names == ["q→d", "q←d", "GR", "search"]


def test_a_paper_that_cannot_be_read_is_named(sweep, own, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"paper=table99: must be .* one of .*table6"):
        compare([sweep], tmp_path / "out", paper="table99")
    assert not (tmp_path / "out").exists() and read_paper(own) == PAPER
    for line, said in (
        ("DSI,NQ320k,hits@5,1,DSI,retrieve,,", "hits@5: must be recall .R., success"),
        ("DSI,NQ320k,recall@1,half,DSI,retrieve,,", "half"),
    ):
        own.write_text(f"{COLUMNS}T,{line}\n")
        with pytest.raises(ValueError, match=rf"own\.csv.*{said}"):
            read_paper(own)


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
    assert [line["difference/recall@1"] for line in lines] == [99, -1, None]


def test_a_grid_reads_the_studies_of_all_collections(tmp_path):
    for name, collection in (("a", "beir/a"), ("b", "beir/b")):
        folder, config = tmp_path / "runs" / name, {"collection": collection}
        metrics = {"retrieve/mrr@10": 1.0}
        write_metrics(folder, "ALIGNER", 1, metrics, config, collection=name)
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
    ((table, _),) = write_paper_table(comparison, parsed, tmp_path)
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


def test_a_row_may_be_of_what_was_measured_of_alignments(tmp_path):
    metrics = {"analysis/exact_match/candidates/query_to_document/hard": 0.2}
    write_metrics(tmp_path / "a", "T5-ColBERT", 1, metrics)
    ((table, _),) = write_paper_table(
        compare_runs([tmp_path]), read_paper("figure2_nq320k"), tmp_path
    )
    ((_, cells),) = table.rows
    assert [cell.text for cell in cells] == ["11.4", "20.0", "+8.6", "1"]


def test_a_sweep_ends_with_the_papers_table_where_it_is_asked_for(sweep, own, tmp_path):
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(sweep)}}})
    CompareRuns(paper=str(own), out=str(tmp_path / "tables/here")).on_multirun_end(config)
    colbert, dsi, pawa, _ = csv.DictReader((tmp_path / "tables/here/paper_table.csv").open())
    assert float(dsi["paper/recall@1"]) == 55.2 and float(dsi["recall@1"]) == 37.5
    assert float(dsi["recall@1/std"]) == pytest.approx(25 / 2**0.5)
    assert (colbert["recall@1/std"], pawa["recall@1"]) == ("", "")
    assert not (sweep / "paper_table.md").exists()
