import csv

import pytest
from omegaconf import OmegaConf

from analysis.compare import compare
from analysis.compare.groups import compare_runs
from analysis.compare.paper import read_paper, write_paper_table
from analysis.studies.sweep import CompareRuns
from gr_mvdr.evaluation.ranking import evaluate
from tests.analysis.test_claims import keep_study
from tests.analysis.test_compare import rank_gold
from tests.analysis.test_compare import write_run as write_metrics

QUERIES = 12
COLUMNS = "table,row,collection,metric,value,systems,place,where,study\n"
LINES = """# a comment, first
{}Table 0,ColBERT,NQ320k,recall@1,61.1,T5-ColBERT,retrieve,,
Table 0,ColBERT,NQ320k,recall@10,88.4,T5-ColBERT,retrieve,,
Table 0,DSI,NQ320k,recall@1,55.2,DSI;DSI naive,retrieve,,
Table 0,DSI,NQ320k,recall@10,67.4,DSI;DSI naive,retrieve,,
Table 0,PAWA,NQ320k,recall@1,60.2,DSI-PAWA,retrieve,,
Table 0,SEAL,NQ320k,recall@1,,T5-SEAL,retrieve,,
"""


@pytest.fixture
def tabulated(tmp_path):
    """Writes a paper's lines and our runs into one table: row → cells."""

    def tabulate(runs, lines):
        path = tmp_path / "own.csv"
        path.write_text(lines.format(COLUMNS) if "{}" in lines else COLUMNS + lines)
        comparison = compare_runs([runs])
        table, *notes = write_paper_table(comparison, read_paper(path), tmp_path / "tables")
        return {
            name: [c.text for c in cells] for name, *cells in table.cells.itertuples(name=None)
        }, notes

    return tabulate


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


def test_rows_are_the_papers_with_ours_beside_them(sweep, tabulated):
    rows, notes = tabulated(sweep, LINES)
    assert list(rows) == ["ColBERT", "DSI", "PAWA", "SEAL"]
    assert rows["ColBERT"] == ["61.1", "88.4", *["100.0"] * 2, "+38.9", "+11.6", "1"]
    # DSI: recall@1 50 and 25 %, recall@10 100 and 75 %; the sample's deviation is 25 / √2.
    assert rows["DSI"][:4] == ["55.2", "67.4", "37.5 ± 17.7", "87.5 ± 17.7"]
    assert rows["DSI"][4:6] == ["-17.7", "+20.1"] and rows["DSI"][6] == "2"
    assert rows["PAWA"] == ["60.2", *["–"] * 6]
    assert rows["SEAL"] == ["–", "–", "0.0", "–", "–", "–", "1"]
    assert "PAWA: no run here." in notes


def test_a_row_stands_where_its_numbers_come_from(tmp_path, tabulated):
    """12 queries searched, the first 8 reranked: q→d finds all, q←d half, GR none at rank 1."""
    forms = {"": [1] * 8, "document_to_query": [1] * 4 + [2] * 4}
    write_run(tmp_path / "runs/a", "T5-ColBERT", 1, [0] * QUERIES, reranked=forms)
    forms = {"": [2] * 8, "leak_free": [1] * 8}
    write_run(tmp_path / "runs/b", "T5-SEAL", 1, [1] * QUERIES, reranked=forms)
    # A run that was not measured there is no run of the row.
    write_run(tmp_path / "runs/c", "T5-ColBERT", 1, [1] * QUERIES, dimension=64)
    metrics = {"analysis/exact_match/candidates/query_to_document/hard": 0.2}
    write_metrics(tmp_path / "runs/d", "XTR", 1, metrics, splits=["test"])
    lines = (
        "T,q→d,NQ320k,mrr@10,72.0,T5-ColBERT,rerank,,\n"
        "T,q←d,NQ320k,mrr@10,65.7,T5-ColBERT,rerank/document_to_query,,\n"
        "T,GR,NQ320k,mrr@10,60.5,T5-SEAL,rerank,,\n"
        "T,search,NQ320k,mrr@10,,T5-SEAL,retrieve,,\n"
        "T,hard,NQ320k,hard,11.4,XTR,analysis/exact_match/candidates/query_to_document,,\n"
    )
    rows, _ = tabulated(tmp_path / "runs", lines)
    assert {name: [cells[0], cells[2]] for name, cells in rows.items() if name != "hard"} == {
        "q→d": ["72.0", "100.0"],
        "q←d": ["65.7", "75.0"],
        "GR": ["60.5", "50.0"],
        "search": ["–", "100.0"],
    }
    assert rows["hard"] == ["–", "11.4", "–", "20.0", "–", "+8.6", "1"]


def test_a_paper_that_cannot_be_read_is_named(sweep, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"paper=table99: must be .* one of .*table6"):
        compare([sweep], tmp_path / "out", paper="table99")
    assert not (tmp_path / "out").exists()
    for line, said in (
        ("DSI,NQ320k,hits@5,1,DSI,retrieve,,", "hits@5: must be recall .R., success"),
        ("DSI,NQ320k,recall@1,half,DSI,retrieve,,", "half"),
    ):
        (tmp_path / "own.csv").write_text(f"{COLUMNS}T,{line}\n")
        with pytest.raises(ValueError, match=rf"own\.csv.*{said}"):
            read_paper(tmp_path / "own.csv")


def test_a_row_says_which_runs_it_means(tmp_path, tabulated):
    for number, k in enumerate((14, 28)):
        pooling = {"_target_": "gr_mvdr.pooling.FirstTokens", "k": k}
        write_run(tmp_path / f"runs/{k}", "MVA", 1, [1 + number] * QUERIES, pooling=pooling)
    where = "model.pooling=FirstTokens(k={})"
    lines = [f"T,{k},NQ320k,recall@1,1,MVA,retrieve,{where.format(k)},\n" for k in (14, 28, 56)]
    rows, _ = tabulated(tmp_path / "runs", "".join(lines))
    assert [cells[2] for cells in rows.values()] == ["+99.0", "-1.0", "–"]


def test_a_grid_reads_the_studies_of_all_collections(tmp_path, tabulated):
    for name, collection in (("a", "beir/a"), ("b", "beir/b")):
        folder, config = tmp_path / "runs" / name, {"collection": collection}
        metrics = {"retrieve/mrr@10": 1.0}
        write_metrics(folder, "ALIGNER", 1, metrics, config, collection=name)
        settings = [({"strategy": "k=1"}, ord(name) / 100), ({"strategy": "k=2"}, 0.5)]
        keep_study(folder, settings, "ndcg@10")
    numbers = {"beir/a": (9.0, 40.0, 1.0), "beir/b": (9.0, "", 1.0)}
    lines = [
        f"T,k={k},{name},ndcg@10,{value},ALIGNER,retrieve,,strategy=k={k}\n"
        for name, values in numbers.items()
        for k, value in zip((1, 2, 4), values, strict=True)
    ]
    cells, _ = tabulated(tmp_path / "runs", "".join(lines))
    cells = {name: texts[:3] for name, texts in cells.items()}
    assert cells["beir/a, k=1"] == ["9.0", "97.0", "+88.0"]
    assert cells["beir/b, k=1"][1] == "98.0"
    assert cells["beir/a, k=2"] == ["40.0", "50.0", "+10.0"]
    assert cells["beir/b, k=2"] == ["–", "50.0", "–"]
    assert cells["beir/a, k=4"] == ["1.0", "–", "–"]
    # Over both: (97 + 98) / 2 and the paper's 9; where it lacks a collection, it has no average.
    assert list(cells)[-2:] == ["average of 2 of 2, k=1", "average of 2 of 2, k=2"]
    assert cells["average of 2 of 2, k=1"] == ["9.0", "97.5", "+88.5"]
    assert cells["average of 2 of 2, k=2"] == ["–", "50.0", "–"]


def test_a_sweep_ends_with_the_papers_table_where_it_is_asked_for(sweep, tmp_path):
    (tmp_path / "own.csv").write_text(LINES.format(COLUMNS))
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(sweep)}}})
    callback = CompareRuns(paper=str(tmp_path / "own.csv"), out=str(tmp_path / "tables/here"))
    callback.on_multirun_end(config)
    lines = list(csv.DictReader((tmp_path / "tables/here/paper_table.csv").open()))
    rows = {line["system"]: line for line in lines if line["metric"] == "recall@1"}
    assert float(rows["DSI"]["paper"]) == 55.2 and float(rows["DSI"]["ours"]) == 37.5
    assert float(rows["DSI"]["std"]) == pytest.approx(25 / 2**0.5)
    assert (rows["ColBERT"]["std"], rows["PAWA"]["ours"]) == ("", "")
    assert not (sweep / "paper_table.md").exists()
