import csv
import json
import re

import pytest
from omegaconf import OmegaConf
from pandas import DataFrame

from analysis.compare import compare
from analysis.compare.comparison import draw_comparison, draw_exact_match
from analysis.compare.groups import compare_runs
from analysis.questions.tokens import BIN_NAMES
from analysis.runs.queries import KEPT, keep_queries, tabulate_queries
from analysis.studies.sweep import CompareRuns
from gr_mvdr.evaluation.ranking import Ranking, evaluate_queries
from tests.runs import write_metrics

CURVE = "analysis/exact_match/query_to_document/soft/idf_0_2"


def write_run(folder, system, seed, metrics, config=None, **provenance):
    folder.mkdir(parents=True)
    config = {"seed": seed, "model": {"_target_": f"models.{system}"}} | (config or {})
    OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
    provenance = {"system": system, "collection": "almanac", "seed": seed} | provenance
    (folder / "provenance.json").write_text(json.dumps(provenance))
    write_metrics(folder, metrics, provenance.get("splits", ()))
    return folder


def rank_gold(ranks, queries=None, documents=None):
    """A ranking with the relevant document of each query at its rank (0: not retrieved)."""
    queries = queries or [f"q{n}" for n in range(len(ranks))]
    documents, rows = documents or ["gold"] * len(ranks), {}
    for query, document, rank in zip(queries, documents, ranks, strict=True):
        others = {f"x{n}": -float(n) for n in range(1, 20)}
        rows[query] = others | ({document: 0.5 - rank} if rank else {})
    return Ranking(rows)


def judge_gold(folder, ranks, queries=None, group="retrieve", place="", split=""):
    """Keeps the metrics of that ranking's queries in a run's folder."""
    ranking = rank_gold(ranks, queries)
    qrels = {query: {"gold": 1} for query in ranking.query_ids}
    values = evaluate_queries(ranking, qrels, KEPT)
    keep_queries(folder, [tabulate_queries(group, values, place, split, qrels=qrels)])


@pytest.fixture
def sweep(tmp_path):
    """Two seeds of t5_colbert (0.5, 0.7), one of bm25; numbers that can be checked by head."""
    for number, (seed, value) in enumerate([(1, 0.5), (2, 0.7)]):
        metrics = {"retrieve/mrr@10": value, "retrieve/recall@1": value - 0.25}
        metrics |= {"retrieve/test_unseen/mrr@10": 0.25, "rerank/mrr@10": 0.75, CURVE: value / 2}
        metrics |= {"rerank/document_to_query/mrr@10": 0.5, "cost/train_seconds": 100 * seed}
        write_run(tmp_path / f"sweep/{number}", "t5_colbert", seed, metrics)
    metrics = {"retrieve/mrr@10": 0.625, "rerank/mrr@10": 0.5, "cost/train_seconds": 2}
    write_run(tmp_path / "sweep/10", "bm25", 1, metrics)
    return tmp_path / "sweep"


def test_the_headlines_mark_the_best_of_each_metric_and_all_files_are_written(
    sweep, tmp_path, capsys
):
    compare([sweep], tmp_path / "out")
    out = capsys.readouterr().out
    assert "0.600 ± 0.141" in out and str(tmp_path / "out/comparison.html") in out
    rows = list(csv.DictReader((tmp_path / "out/comparison.csv").open()))
    colbert, bm25 = (row for row in rows if row["key"] == "retrieve/mrr@10")
    assert (colbert["system"], bm25["system"]) == ("t5_colbert", "bm25")
    assert colbert["metric"] == "mrr@10" and colbert["group"] == "retrieve"
    assert float(colbert["std"]) == pytest.approx(0.02**0.5) and bm25["std"] == ""
    markdown = (tmp_path / "out/comparison.md").read_text()
    for row in (
        "| retrieve MRR@10 | 0.600 ± 0.141 | **0.625** |",
        "| retrieve R@1 | 0.350 ± 0.141 | – |",
        "| rerank MRR@10 | **0.750 ± 0.000** | 0.500 |",
        "| cost training | 150 ± 71 s | **2.0 s** |",
    ):
        assert row in markdown, row
    page = (tmp_path / "out/comparison.html").read_text()
    assert '<td class="best">0.625</td>' in page
    assert "http" not in page and page.count('src="data:image/png;base64,') == 2
    assert (tmp_path / "out/comparison_figures/mrr.pdf").is_file()


def test_quality_is_drawn_against_the_budget_of_training(tmp_path):
    for epochs in (1, 2, 4):
        costs = {"retrieve/mrr@10": epochs / 5, "cost/train_flops": epochs * 1e12}
        config = {"trainer": {"max_epochs": epochs}}
        write_run(tmp_path / f"runs/{epochs}", "dsi", 1, costs, config)
        (section,) = compare_runs([tmp_path / "runs"]).sections
        draw_comparison(section, tmp_path / str(epochs))
        assert (tmp_path / f"{epochs}/budget.png").is_file() == (epochs > 1)


def test_idf_ranges_are_drawn_in_their_order():
    """Docid tokens occur in no text: the first system has the rarest range alone."""
    known = {"place": "document_to_query", "metric": "hard", "value": 0.5}
    places = [("DSI", BIN_NAMES[-1]), *(("T5-ColBERT", name) for name in BIN_NAMES)]
    rows = [known | {"system": s, "label": f"IDF {name}"} for s, name in places]
    (axes,) = draw_exact_match(DataFrame(rows), "x").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == [*BIN_NAMES]
    docids, *others = (list(line.get_xdata()) for line in axes.lines)  # caps among them
    assert docids == [4] and [0, 1, 2, 3, 4] in others


def test_by_default_a_comparison_is_named_after_its_runs_and_replaces_no_other(sweep):
    first = compare([sweep / "0", sweep / "10"]).folder
    assert first.parent == sweep
    assert re.fullmatch(r"comparison-bm25_t5-colbert-[0-9a-f]{6}", first.name)
    record = json.loads((first / "comparison.json").read_text())
    assert record == {"name": first.name, "runs": [str(sweep / "0"), str(sweep / "10")]}
    made = (first / "comparison.html").read_text()
    others = {compare([sweep / "1", sweep / "10"]).folder, compare([sweep]).folder}
    assert len({first, *others}) == 3
    assert (first / "comparison.html").read_text() == made
    write_metrics(sweep / "10", {"retrieve/mrr@10": 0.875})
    assert compare([sweep / "10", sweep / "0"]).folder == first  # the same runs
    assert "0.875" in (first / "comparison.html").read_text()
    moved = sweep.rename(sweep.with_name("moved"))  # with its runs
    assert compare([moved / "0", moved / "10"]).folder == moved / first.name


def test_systems_are_called_as_the_user_says(sweep):
    comparison = compare(
        [sweep / "10", sweep / "0", sweep / "1"], labels={"10": "words", "1": "vectors"}
    )
    assert [group.label for group in comparison.groups] == ["words", "vectors"]
    assert [group.seeds for group in comparison.groups] == ["1", "1, 2"]
    comparison = compare_runs([sweep], {"1": "vectors", "t5_colbert": "colbert", "bm25": "words"})
    assert [group.label for group in comparison.groups] == ["vectors", "words"]
    said = r"labels.7: must be a folder of one system's runs .*10.*, 0 systems have one"
    with pytest.raises(ValueError, match=said):
        compare([sweep], labels={"7": "a"})
    with pytest.raises(
        ValueError, match="labels: must tell the systems of a table apart, are a, a"
    ):
        compare([sweep], labels={"10": "a", "1": "a"})


def test_systems_of_one_paradigm_stand_together(tmp_path):
    kinds = dict(a="generative", b="lexical", c="cross_encoder", d="multi_vector", e="generative")
    for name, paradigm in kinds.items():
        write_run(tmp_path / name, name, 1, {"retrieve/mrr@10": 0.5}, paradigm=paradigm)
    assert [group.label for group in compare_runs([tmp_path]).groups] == list("bdaec")


def test_every_choice_but_the_seed_makes_a_group(tmp_path):
    def config(rate, sampling_seed):
        run = f"outputs/run-{rate}-{sampling_seed}"
        return {
            "model": {"rate": rate, "seed": sampling_seed},
            "logger": {"id": sampling_seed},
            "run": run,
            "trainer": {"callbacks": [{"dirpath": f"{run}/checkpoints"}]},
        }

    for seed in (1, 2):  # model.seed follows the seed; logger and folder say nothing of the model
        for rate in (0.1, 0.2):
            folder = tmp_path / f"{rate}-{seed}"
            typed = [f"model.rate={rate}", "data=beir", f"seed={seed}"]
            metrics = {"retrieve/mrr@10": rate}
            write_run(folder, "t5_seal", seed, metrics, config(rate, seed), overrides=typed)
    (section,) = compare_runs([tmp_path]).sections
    labels = ["t5_seal (rate=0.1)", "t5_seal (rate=0.2)"]
    assert [group.label for group in section.groups] == labels
    assert [group.seeds for group in section.groups] == ["1, 2", "1, 2"]


def test_a_repeated_seed_counts_once_and_is_named(tmp_path):
    for name, value in (("a", 0.2), ("b", 0.4)):
        write_run(tmp_path / name, "bm25", 1, {"retrieve/mrr@10": value})
    comparison = compare_runs([tmp_path])
    assert comparison.sections[0].groups[0].numbers["value"].tolist() == [0.4]
    assert comparison.notes == [f"{tmp_path}/a has the system and seed of {tmp_path}/b: skipped"]


@pytest.mark.parametrize(("seed", "rows"), [(2, ["1, 2"]), (1, ["1", "1"])])
def test_a_study_tells_runs_apart_only_where_they_have_the_same_seed(tmp_path, seed, rows):
    pruning = {"study": {"_target_": "analysis.studies.pruning.Pruning", "p": [0.5]}}
    write_run(tmp_path / "a", "aligner", 1, {}, pruning)
    write_run(tmp_path / "b", "aligner", seed, {}, {"study": None})
    (section,) = compare_runs([tmp_path]).sections
    assert [group.seeds for group in section.groups] == rows


@pytest.mark.parametrize("difference", [{"collection": "wtq"}, {"sources": {"corpus.jsonl": "b"}}])
def test_different_settings_are_shown_apart(tmp_path, difference):
    same = {"splits": ["test"], "sources": {"corpus.jsonl": "a"}}
    write_run(tmp_path / "a", "bm25", 1, {"retrieve/mrr@10": 0.5}, **same)
    write_run(tmp_path / "b", "bm25", 1, {"retrieve/mrr@10": 0.6}, **(same | difference))
    comparison = compare([tmp_path])
    assert len(comparison.sections) == 2
    assert len({section.setting for section in comparison.sections}) == 2


def test_the_same_files_at_another_place_are_the_same_data(tmp_path):
    for seed, place in enumerate(["/data/wtq", "../wtq"], start=1):
        sources = {f"{place}/corpus.jsonl": "0af3", f"{place}/queries.jsonl": "77b1"}
        config = {"data": {"path": place}}
        write_run(tmp_path / str(seed), "bm25", seed, {}, config, sources=sources)
    (section,) = compare_runs([tmp_path]).sections
    assert [group.seeds for group in section.groups] == ["1, 2"]


def test_a_run_that_cannot_be_compared_is_one_line(sweep, capsys):
    (sweep / "0" / "metrics.json").unlink()
    compare([sweep], sweep / "out")
    assert f"{sweep}/0: must be a finished run, it has no metrics.json: skipped" in (
        capsys.readouterr().out
    )
    with pytest.raises(ValueError, match="runs=.*/0: must be a finished run, it has no metrics"):
        compare([sweep / "0", sweep / "1"])
    (sweep / "empty").mkdir()
    with pytest.raises(ValueError, match=r"runs=.*/empty: holds no run$"):
        compare([sweep / "empty"])
    assert not list(sweep.glob("comparison*")) and not capsys.readouterr().out


def sweep_config(folder, run=None, **others):
    return OmegaConf.create({"hydra": {"sweep": {"dir": str(folder)}}, "run": str(run), **others})


def test_a_sweep_compares_its_own_runs_only_and_keeps_earlier_comparisons(sweep, capsys):
    write_run(sweep / "old", "bm25", 1, {"retrieve/mrr@10": 0.9}, collection="wtq")

    def end(*numbers):
        callback = CompareRuns()
        for number in numbers:
            callback.on_job_end(sweep_config(sweep, sweep / str(number)), job_return=None)
        callback.on_multirun_end(sweep_config(sweep))
        return capsys.readouterr().out

    assert "0.600 ± 0.141" in end(0, 1)
    made = (sweep / "comparison.html").read_text()
    said = end(1, 10)
    (aside,) = sweep.glob("comparison-*/comparison.html")
    assert str(aside) in said
    assert (sweep / "comparison.html").read_text() == made


def test_a_sweep_over_a_key_of_the_protocol_shows_its_runs_apart(tmp_path, capsys):
    callback = CompareRuns()
    for depth in (10, 100):
        config = {"retrieval_depth": depth}
        run = write_run(tmp_path / str(depth), "bm25", 1, {"retrieve/mrr@10": 0.5}, config)
        callback.on_job_end(sweep_config(tmp_path, run), job_return=None)
    config = sweep_config(tmp_path)
    config.hydra.overrides = {"task": ["retrieval_depth=10,100"]}
    callback.on_multirun_end(config)
    assert "almanac, retrieval_depth=100" in capsys.readouterr().out
