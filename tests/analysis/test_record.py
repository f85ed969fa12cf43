"""Records of runs: what is kept, that comparisons read them as the runs, and tables of a page."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from pandas import read_parquet

from analysis.claims import CLAIMS
from analysis.compare import compare
from analysis.compare.groups import compare_runs
from analysis.record import PATH, RECORD, record_runs, renew_tables, tabulate_results
from analysis.runs.queries import QUERIES, read_queries
from analysis.runs.run_folder import Run, read_run
from gr_mvdr.files import read_json
from tests.analysis.test_compare import judge_gold, write_run
from tests.runs import NO_ANALYSIS, ROOT, TINY, command, small
from train import train

SPLITS = ["test", "test_unseen"]
HARDWARE = {"processor": "A CPU", "cores": 2, "gpus": []}
PAGE = """# A page

<!-- table: runs={runs} splits=test -->
<!-- end -->

Text between.

<!-- table: runs=[{runs}/bm25] metrics=[recall@1,rerank/mrr@10] -->
| by hand |
<!-- end -->
"""


def made(folder, system, seed, rank, commit="abc", config=None):
    """A run that found every relevant document at a rank, on both splits, over ten queries."""
    value = 1 / rank
    metrics = {"retrieve/mrr@10": value, "retrieve/recall@1": float(rank == 1)}
    metrics |= {"retrieve/recall@10": 1.0, "retrieve/test_unseen/mrr@10": value / 2}
    if system.lower() != "bm25":
        metrics |= {"cost/train_seconds": 100.0 * seed}
    about = {"splits": SPLITS, "git": commit, "hardware": HARDWARE}
    run = write_run(folder, system, seed, metrics, config, **about)
    judge_gold(run, [rank] * 10)
    return run


@pytest.fixture
def records(tmp_path):
    made(tmp_path / "runs/a-seed1", "a", 1, 1)
    made(tmp_path / "runs/bm25", "bm25", 1, 4)
    record_runs([tmp_path / "runs"], tmp_path / "results")
    return tmp_path / "results"


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}


def test_a_real_run_and_its_record_compare_alike(tmp_path, monkeypatch):
    """Of a system with two forms of reranking and two splits."""
    monkeypatch.chdir(tmp_path)
    keys = ["data.test_split=[test,test_unseen]", "data.metrics=[recall@5]", *NO_ANALYSIS, *TINY]
    runs = [
        train(small(tmp_path, f"model={model}", *keys, name=model)).path
        for model in ("t5_colbert", "bm25")
    ]
    table = read_queries(runs[0])
    assert {*zip(table["group"], table["place"], table["split"], strict=True)} == {
        (*ranking, split)
        for ranking in (("retrieve", ""), ("rerank", ""), ("rerank", "document_to_query"))
        for split in ("", "test_unseen")
    }
    own = table[(table["group"] == "retrieve") & (table["split"] == "test_unseen")]
    metrics = read_run(runs[0]).metrics
    assert own["recall@5"].mean() == pytest.approx(metrics["retrieve/test_unseen/recall@5"])
    assert not [key for key in metrics if "mrr@10" in key]  # kept, though nobody asked for it
    said = record_runs(runs, Path("results"))
    assert re.fullmatch(r"results/t5_colbert: \d+ kB", said[0])
    files = content(Path("results"))
    assert {path.name for path in files} <= {*RECORD} and len(files) == 10
    record_runs(["results"], Path("results"))  # a record is its own record
    record_runs(runs, Path("results"))
    assert content(Path("results")) == files
    of_runs, of_records = (
        compare(found, tmp_path / name).folder
        for found, name in ((runs, "of_runs"), ([Path("results")], "of_records"))
    )
    for file in ("comparison.csv", "comparison_tests.csv", "comparison.md"):
        rows = [sorted(csv.reader((folder / file).open())) for folder in (of_runs, of_records)]
        assert rows[0] == rows[1], file
    page = (of_records / "comparison.html").read_text()
    assert "report.html" not in page and "report.html" in (of_runs / "comparison.html").read_text()


def test_a_ranking_that_is_judged_again_replaces_its_rows_alone(tmp_path):
    """As in a run that is continued after its search."""
    for place, rank in (("retrieve", 1), ("rerank", 2), ("retrieve", 4)):
        judge_gold(tmp_path, [rank] * 3, group=place)
    values = read_queries(tmp_path).groupby("group")["mrr@10"].agg(list).to_dict()
    assert values == {"retrieve": [1 / 4] * 3, "rerank": [1 / 2] * 3}


def test_another_run_of_the_same_name_is_never_replaced(records, tmp_path):
    before = content(records)
    made(tmp_path / "other/a-seed1", "a", 1, 2, commit="def")
    made(tmp_path / "other/new", "a", 2, 2)
    with pytest.raises(ValueError, match="a-seed1: must be free or the record of .*other/a"):
        record_runs([tmp_path / "other"], records)
    with pytest.raises(ValueError, match="a-seed1: must be free or the record of"):  # of each other
        record_runs([tmp_path / "runs/a-seed1", tmp_path / "other/a-seed1"], tmp_path / "fresh")
    assert content(records) == before and not (tmp_path / "fresh").exists()


def test_a_record_names_folders_and_two_paths_of_one_source_are_one_system(tmp_path, monkeypatch):
    for seed, disk in ((1, "/disk one"), (2, "/home/é")):
        monkeypatch.setenv("HOME", disk)
        config = {"backbone": {"name": f"{disk}/models/mini"}, "weights": f"{disk}/o/a"}
        config |= {"data": {"path": [f"{disk}/nq", f"{disk}/nq-2"]}, "output": f"{disk}/o"}
        run = made(tmp_path / f"runs/a{seed}", "a", seed, 1, config=config)
        record = json.loads((run / "provenance.json").read_text())
        record |= {"sources": {f"{disk}/nq/corpus.jsonl": "0"}}
        record |= {"overrides": [f"data.path=[~/nq,{disk}/nq-2]", f"output={disk}/o"]}
        (run / "provenance.json").write_text(json.dumps(record, ensure_ascii=False))
        before, results = content(run), tmp_path / "results"
        asked = ["-m", "analysis.record", f"runs={run}", f"output={results}"]
        names = f"MINI: '{disk}/models/mini', NQ: '{disk}/nq'"
        said = f"names: must name a folder of every absolute path, none holds {disk}/nq-2"
        assert said in command(*asked, f"names={{{names}}}")
        assert not (results / run.name).exists()
        names += f", NQ2: '{disk}/nq-2'"
        assert command(*asked, f"names={{{names}}}") == 0
        assert content(run) == before
        kept = content(results)
        assert command(*asked, f"names={{{names}}}") == 0 and content(results) == kept
    record_runs([results], results)  # a record needs no names
    assert content(results) == kept
    record = json.loads((results / "a1/provenance.json").read_text())
    assert record["sources"] == {"NQ/corpus.jsonl": "0"}
    assert record["overrides"] == ["data.path=[NQ,NQ2]", "output=outputs"]
    assert read_run(results / "a2").config["weights"] == "outputs/a"
    assert [group.seeds for group in compare_runs([results]).groups] == ["1, 2"]
    assert len(compare_runs([tmp_path / "runs"]).groups) == 2


def test_no_record_and_no_page_names_a_folder_of_one_machine():
    records = [*(ROOT / "results").rglob("*.[jyc]s*"), *(ROOT / "results").rglob("*.yaml")]
    found = [(file.name, *PATH.findall(file.read_text())) for file in records]
    pages = [file for room in ("conf", "docs") for file in (ROOT / room).rglob("*.*")]
    place = re.compile(r"(?<![\w.~/-])/(?:home|root|tmp|work|mnt|media|Users|scratch)/\w+")
    read = [file for file in pages if file.suffix in (".md", ".yaml", ".csv", ".ipynb", ".py")]
    found += [(file.name, *place.findall(file.read_text())) for file in read]
    assert len(records) > 400 and len(read) > 50
    assert [paths for paths in found if len(paths) > 1] == []
    listed = (ROOT / "results/SHA256SUMS").read_text()
    for file in records:
        sources = read_json(file)["sources"] if file.name == "provenance.json" else {}
        for name, checksum in sources.items():
            assert not name.startswith("DATA/") or f"{checksum}  {name}\n" in listed


def test_a_link_in_a_run_brings_no_other_file_into_its_record(tmp_path):
    run = made(tmp_path / "run", "a", 1, 1)
    (tmp_path / "secret").write_text("a,b\n1,2\n")
    (run / "queries.parquet").unlink()
    (run / "queries.parquet").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=r"queries.parquet: must lie in .*run, it is a link to"):
        record_runs([run], tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_seeds_of_several_commits_are_marked_and_protocols_kept_apart(records, tmp_path):
    made(tmp_path / "later/a-seed2", "a", 2, 2, commit="def")
    record_runs([tmp_path / "later"], records)
    (section,) = compare_runs([records]).sections
    assert [group.seeds for group in section.groups] == ["1, 2 †", "1"]
    assert compare_runs([records]).notes == [
        "almanac (test, test_unseen): measured at several commits: abc (a, bm25); def (a).",
        "†: the seeds of this system were measured at different commits.",
    ]
    for number, data in enumerate(({"max_rerank_queries": 9}, {"max_test_queries": 9})):
        made(tmp_path / f"few/{number}", "b", 1, 2, config={"data": data})
    notes = compare_runs([tmp_path / "few/0", records / "bm25"]).notes
    assert notes == []  # one of them says nothing of its sample
    assert len(compare_runs([records, tmp_path / "few"]).sections) == 2


def test_tables_of_a_page_are_made_from_records(records, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(runs=records))
    assert command("-m", "analysis.record", "runs=[]", f"page={page}") == 0
    text = page.read_text()
    lines = text.splitlines()
    assert lines[3:7] == [
        "| almanac | test MRR@10 | test R@10 | training | seeds |",
        "|---|---:|---:|---:|---:|",
        "| a | ***1.000*** | ***1.000*** | *100 s* | 1 |",
        "| bm25 | 0.250 | **1.000** | – | 1 |",
    ]
    assert lines[8] == "Measured on A CPU, 2 cores. Commit abc."
    assert "| bm25 | 0.000 | 1 |" in text and "by hand" not in text
    assert "Text between." in lines and renew_tables(page) == text
    other = write_run(
        tmp_path / "nq", "a", 1, {"retrieve/mrr@10": 0.5}, splits=["dev"], collection="nq"
    )
    both = tabulate_results([str(records), str(other)], ["test", "dev"], "mrr@10").splitlines()
    assert both[0] == "| system | almanac test MRR@10 | nq dev MRR@10 |"
    assert both[2:4] == ["| a | ***1.000*** | 0.500 |", "| bm25 | 0.250 | – |"]
    # Another seed, measured months later elsewhere, changes its row and nothing else.
    added = {"data": {"an_option_of_later": None}}
    made(tmp_path / "later/a-seed2", "a", 2, 2, commit="def", config=added)
    assert command("-m", "analysis.record", f"runs={tmp_path}/later", f"output={records}") == 0
    assert "a-seed2: " in capsys.readouterr().out
    row = "| a | ***0.750 ± 0.354 †*** | ***1.000 ± 0.000 †*** | *150 ± 71 s †* | 2 |"
    changed = renew_tables(page)
    assert changed != text and changed.splitlines()[5:7] == [row, lines[6]]
    assert "Measured on A CPU, 2 cores. Commit abc; def." in changed
    shutil.rmtree(records / "a-seed2")
    assert renew_tables(page) == text
    shutil.rmtree(records / "bm25")
    for asked, said in (
        (text, "runs=.*bm25: no such folder"),
        (text.replace("<!-- end -->", ""), "must have a line <!-- end -->"),
        (text.replace("splits=test", "splits=dev"), "page.md:3: splits=dev: must be one of test"),
        (text.replace("splits=test", "split=test"), "page.md:3: .*unexpected keyword .*'split'"),
    ):
        page.write_text(asked)
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            renew_tables(page)


def test_a_mean_over_fewer_seeds_than_its_row_says_so(tmp_path):
    for seed in (1, 2, 3):
        metrics = {"retrieve/mrr@10": 0.5, "cost/train_seconds": 9.0}
        metrics |= {"cost/train_flops": 2e12} if seed < 3 else {}
        metrics |= {"cost/peak_memory_bytes": 3e9} if seed < 2 else {}
        write_run(tmp_path / str(seed), "a", seed, metrics, splits=["test"], git=f"c{seed % 2}")
    asked = ["mrr@10", "cost/train_flops", "cost/peak_memory_bytes"]
    row = tabulate_results(str(tmp_path), metrics=asked).splitlines()[2]
    assert row == "| a | 0.500 ± 0.000 † | *2.0 ± 0.0 TFLOPs (2 seeds) †* | *3.0 GB (1 seed)* | 3 |"
    compare([tmp_path], tmp_path / "out")
    assert "3.0 GB (1 seed)" in (tmp_path / "out/comparison.md").read_text()


def test_the_tables_of_the_results_are_those_of_the_records(monkeypatch):
    """If this fails: `make results`."""
    monkeypatch.chdir(ROOT)
    pages = ("README.md", "docs/results.md", "docs/benchmarks.md", "docs/training.md")
    for page in map(Path, pages):
        assert renew_tables(page) == page.read_text()


def test_every_conclusion_of_the_results_names_a_claim_that_is_tabulated():
    _, conclusions = (ROOT / "docs/results.md").read_text().split("## What the claims say")
    conclusions = conclusions.partition("\n## ")[0]
    lines = [line for line in conclusions.splitlines() if line.startswith("- ")]
    names = {claim.name for claim in CLAIMS}
    for line in lines:
        cited = set(re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", line))
        assert cited and cited <= names, line
        assert all(f"| {name}" in conclusions for name in cited)
    assert len(lines) >= 3


def test_every_ranking_metric_of_a_record_is_the_mean_of_its_queries():
    """Recomputed from the queries' table by pandas alone."""
    counted = 0
    for folder in sorted((ROOT / "results").glob("*/*")):
        queries, metrics = read_parquet(folder / QUERIES), read_json(folder / "metrics.json")
        ranked = queries[queries["group"].isin(["retrieve", "rerank"])]
        for place, rows in ranked.groupby(["group", "place", "split"]):
            for name in {"mrr@10", "recall@1", "recall@10", "ndcg@10"} & {*rows}:
                key = "/".join(filter(None, (*place, name)))
                assert rows[name].mean() == pytest.approx(metrics[key], abs=1e-9), folder
                counted += 1
    assert counted > 2000


# Systems whose documents compete by equal words, and the untrained use of an encoder that has the
# vectors of a system.
LEXICAL = ("COIL", "SPLADE")
UNTRAINED = {True: ("MiniLM mean",), False: ("MiniLM mean", "MiniLM MaxSim")}


def test_a_recipe_is_not_below_its_start():
    """On dev, MRR@10: a dense system is compared with its encoder, any other with BM25."""
    runs: dict[str, dict[str, Run]] = {}
    for run in map(read_run, sorted((ROOT / "results/recipes").iterdir())):
        runs.setdefault(run.provenance["collection"], {})[run.system] = run
    below, judged = [], 0
    for collection, systems in runs.items():
        mrr = {name: run.metrics["retrieve/mrr@10"] for name, run in systems.items()}
        for name, run in systems.items():
            if run.is_trained:
                alignment = run.config["model"].get("alignment", {}).get("_target_", "")
                single = alignment.endswith("FirstToken")
                dense = run.provenance["paradigm"] != "generative" and name not in LEXICAL
                start = max(mrr[other] for other in (UNTRAINED[single] if dense else ["BM25"]))
                judged += 1
                if mrr[name] < start:
                    below.append(f"{name} ({collection})")
    assert judged and below == []
