import csv
import json
import re
from typing import ClassVar

import pytest
from omegaconf import OmegaConf

from analysis.compare import compare
from analysis.studies.sweep import CompareRuns
from analysis.tables import metric_names
from analysis.tables.comparison import compare_runs
from analysis.tables.long_table import select, tabulate, tabulate_chapters
from analysis.tables.metric_names import Statistic

CURVE = "analysis/exact_match/query_to_document/soft/idf_0_2"


def write_run(folder, system, seed, metrics, config=None, **provenance):
    folder.mkdir(parents=True)
    config = {"seed": seed, "model": {"_target_": f"models.{system}"}} | (config or {})
    OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
    provenance = {"system": system, "collection": "almanac", "seed": seed} | provenance
    (folder / "provenance.json").write_text(json.dumps(provenance))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return folder


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


def test_mean_and_sample_standard_deviation_over_seeds(sweep):
    comparison = compare_runs([sweep])
    (section,) = comparison.sections
    assert [group.label for group in section.groups] == ["t5_colbert", "bm25"]
    colbert, bm25 = (group.statistics for group in section.groups)
    assert colbert["retrieve/mrr@10"].mean == pytest.approx(0.6)
    assert colbert["retrieve/mrr@10"].std == pytest.approx(0.02**0.5)  # √((0.1² + 0.1²) / 1)
    assert colbert["cost/train_seconds"].std == pytest.approx(5000**0.5)
    assert bm25["retrieve/mrr@10"] == Statistic(0.625, None)
    assert section.splits == {"test_unseen"}
    assert not comparison.notes


def long_table(folder):
    """The long table of the runs below a folder."""
    (section,) = compare_runs([folder]).sections
    return tabulate({group.label: group.statistics for group in section.groups})


def test_the_headlines_mark_the_best_of_each_metric(sweep):
    table = long_table(sweep)
    summary = select(table[table["headline"]], "system", "name")
    assert summary.columns == [
        "retrieve R@1",
        "retrieve MRR@10",
        "retrieve test_unseen MRR@10",
        "rerank MRR@10",
        "rerank d→q MRR@10",
        "cost training",
    ]
    (_, colbert), (_, bm25) = summary.rows
    assert colbert[1] == ("0.600 ± 0.141", False) and bm25[1] == ("0.625", True)
    assert colbert[3] == ("0.750 ± 0.000", True)
    assert bm25[5] == ("2.0 s", True) and colbert[5] == ("150 ± 71 s", False)
    assert bm25[0] == ("–", False) and not colbert[0].best  # nothing to compare with


def test_every_number_stands_in_its_chapter_by_place_and_system(sweep):
    metrics = {"retrieve/mrr@10": 0.5, "cost/train_seconds": 3}
    for name, value in (("search_error@10", 0.25), ("model_error@10", 0.5), ("luck@10", 0)):
        metrics[f"analysis/search/{name}"] = value
    metrics["analysis/search/gold_alive/step_1"] = 0.75
    write_run(sweep / "11", "dsi", 1, metrics)
    write_run(sweep / "12", "genre", 1, metrics | {"analysis/search/search_error@10": 0.5})
    chapters = tabulate_chapters(long_table(sweep))
    assert list(chapters) == ["Retrieve", "Rerank", "Exact match", "Search", "Cost"]
    (rerank,) = chapters["Rerank"]
    rows = ["rerank, t5_colbert", "rerank, bm25", "rerank d→q, t5_colbert"]
    assert [name for name, _ in rerank.rows] == rows and rerank.columns == ["MRR@10"]
    search, alive = chapters["Search"]
    errors = {name: dict(zip(search.columns, row, strict=True)) for name, row in search.rows}
    assert errors["dsi"]["search error@10"] == ("0.250", True)  # the smaller error is the better
    assert errors["genre"]["search error@10"] == ("0.500", False)
    assert [name for name, _ in alive.rows] == ["dsi", "genre"] and alive.columns == ["step 1"]


def test_all_files_are_written(sweep, tmp_path, capsys):
    compare([sweep], tmp_path / "out")
    out = capsys.readouterr().out
    assert "0.600 ± 0.141" in out and str(tmp_path / "out/comparison.html") in out
    rows = list(csv.DictReader((tmp_path / "out/comparison.csv").open()))
    assert [row["system"] for row in rows] == ["t5_colbert", "bm25"]
    assert float(rows[0]["retrieve/mrr@10"]) == pytest.approx(0.6)
    assert float(rows[0]["retrieve/mrr@10/std"]) == pytest.approx(0.141421356)
    assert rows[1]["retrieve/mrr@10/std"] == "" and rows[0]["seeds"] == "1, 2"
    markdown = (tmp_path / "out/comparison.md").read_text()
    assert "| retrieve MRR@10 | 0.600 ± 0.141 | **0.625** |" in markdown
    page = (tmp_path / "out/comparison.html").read_text()
    assert '<td class="best">0.625</td>' in page
    assert "http" not in page and page.count('src="data:image/png;base64,') == 2
    for name in ("mrr", "exact_match"):
        for kind in ("png", "pdf"):
            figure = tmp_path / "out/comparison_figures" / f"{name}.{kind}"
            assert figure.stat().st_size > 1000
            assert (str(figure) in out) == (kind == "png")
    assert not list((tmp_path / "out").rglob("*.partial"))


def test_by_default_a_comparison_is_named_after_its_runs_and_replaces_no_other(sweep):
    first = compare([sweep / "0", sweep / "10"]).folder
    assert first.parent == sweep
    assert re.fullmatch(r"comparison-bm25_t5-colbert-[0-9a-f]{6}", first.name)
    record = json.loads((first / "comparison.json").read_text())
    assert record["runs"] == [
        {"folder": "../0", "system": "t5_colbert", "seed": 1, "label": "t5_colbert"},
        {"folder": "../10", "system": "bm25", "seed": 1, "label": "bm25"},
    ]
    made = (first / "comparison.html").read_text()
    others = {compare([sweep / "1", sweep / "10"]).folder, compare([sweep]).folder}
    assert len({first, *others}) == 3
    assert (first / "comparison.html").read_text() == made
    metrics = json.loads((sweep / "10/metrics.json").read_text()) | {"retrieve/mrr@10": 0.875}
    (sweep / "10/metrics.json").write_text(json.dumps(metrics))
    assert compare([sweep / "10", sweep / "0"]).folder == first  # the same runs
    assert "0.875" in (first / "comparison.html").read_text()


def test_a_comparison_of_other_runs_is_refused_or_made_way_for(sweep, tmp_path):
    out = tmp_path / "out"
    compare([sweep / "0", sweep / "10"], out)
    made = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match="holds a comparison of other runs") as error:
        compare([sweep / "0", sweep / "1"], out)
    assert f"output={out}: holds a comparison of other runs (0, 10), which" in str(error.value)
    aside = compare([sweep / "0", sweep / "1"], out, make_way=True).folder
    assert aside.parent == out and (aside / "comparison.html").is_file()
    assert {file: file.read_bytes() for file in made} == made
    compare([sweep / "10", sweep / "0"], out)
    (out / "comparison.json").unlink()  # as an older version left it
    with pytest.raises(ValueError, match="which ones, it does not say"):
        compare([sweep / "10", sweep / "0"], out)


def test_a_comparison_that_moved_with_its_runs_is_still_theirs(sweep, tmp_path):
    name = compare([sweep], sweep / "out").folder.name
    sweep.rename(tmp_path / "moved")
    assert compare([tmp_path / "moved"], tmp_path / "moved" / name).folder.name == name


def test_systems_are_called_as_the_user_says(sweep, capsys):
    comparison = compare([sweep / "10", sweep / "0", sweep / "1"], labels=["words", "vectors"])
    assert [group.label for group in comparison.groups] == ["words", "vectors"]
    assert [group.seeds for group in comparison.groups] == ["1", "1, 2"]
    assert "vectors" in (comparison.folder / "comparison.md").read_text()
    assert "words" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["a"], r"labels=\[a\]: must be 2, one for each of the runs .*: t5_colbert, bm25$"),
        (["a", "b", "c"], r"labels=\[a, b, c\]: must be 2, "),
        (["a", "a"], r"labels=\[a, a\]: must be distinct"),
        (["a", " "], "none of them empty"),
        (["a", "\x1b[2J"], r"'labels=\[a, \\x1b\[2J\]': must be printable"),
    ],
)
def test_labels_that_do_not_fit_are_refused(sweep, labels, said):
    with pytest.raises(ValueError, match=said):
        compare([sweep], labels=labels)
    assert not list(sweep.glob("comparison*"))


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
            write_run(folder, "t5_seal", seed, {"retrieve/mrr@10": rate}, config(rate, seed))
    (section,) = compare_runs([tmp_path]).sections
    assert [group.label for group in section.groups] == [
        "t5_seal (rate=0.1)",
        "t5_seal (rate=0.2)",
    ]
    assert [group.seeds for group in section.groups] == ["1, 2", "1, 2"]


def test_paradigms_stand_together(tmp_path):
    kinds = [("seal", "generative"), ("bm25", "lexical"), ("monot5", "cross_encoder")]
    for name, paradigm in [*kinds, ("colbert", "multi_vector"), ("dsi", "generative")]:
        metrics = {"retrieve/mrr@10": 0.5, "cost/peak_memory_bytes": 2e9}
        write_run(tmp_path / name, name, 1, metrics, paradigm=paradigm)
    comparison = compare([tmp_path])
    order = ["bm25", "colbert", "dsi", "seal", "monot5"]
    assert [group.label for group in comparison.groups] == order
    markdown = (comparison.folder / "comparison.md").read_text().splitlines()
    assert f"|  | {' | '.join(order)} |" in markdown
    kinds = "lexical | multi vector | generative | generative | cross encoder"
    assert f"| paradigm | {kinds} |" in markdown


def test_an_interval_is_shown_with_a_single_seed(tmp_path):
    key = "analysis/exact_match/query_to_document/hard"
    for name, seeds in (("one", [1]), ("two", [1, 2])):
        for seed in seeds:
            metrics = {key: 0.5, f"{key}_low": 0.25, f"{key}_high": 0.75}
            write_run(tmp_path / name / str(seed), name, seed, metrics)
    table = long_table(tmp_path)
    assert list(table["name"].unique()) == ["exact match q→d hard"]
    shown = [cell.text for cell in table["cell"]]
    assert shown == ["0.500 [0.250, 0.750]", "0.500 ± 0.000"]


def test_a_repeated_seed_counts_once_and_is_named(tmp_path):
    for name, value in (("a", 0.2), ("b", 0.4)):
        write_run(tmp_path / name, "bm25", 1, {"retrieve/mrr@10": value})
    comparison = compare_runs([tmp_path])
    statistic = comparison.sections[0].groups[0].statistics["retrieve/mrr@10"]
    assert statistic == Statistic(0.4, None)
    assert comparison.notes == [f"{tmp_path}/a has the system and seed of {tmp_path}/b: skipped"]


@pytest.mark.parametrize(("seed", "rows"), [(2, ["1, 2"]), (1, ["1", "1"])])
def test_a_study_tells_runs_apart_only_where_they_have_the_same_seed(tmp_path, seed, rows):
    pruning = {"study": {"_target_": "analysis.studies.pruning.Pruning", "p": [0.5]}}
    write_run(tmp_path / "a", "aligner", 1, {}, pruning)
    write_run(tmp_path / "b", "aligner", seed, {}, {"study": None})
    (section,) = compare_runs([tmp_path]).sections
    assert [group.seeds for group in section.groups] == rows


@pytest.mark.parametrize(
    ("difference", "named"),
    [
        ({"collection": "wtq"}, "almanac (test); wtq (test)"),
        ({"splits": ["dev"]}, "almanac (test); almanac (dev)"),
        ({"sources": {"corpus.jsonl": "b"}}, "almanac (test), data "),
    ],
)
def test_different_settings_are_refused_or_shown_apart(tmp_path, difference, named):
    same = {"splits": ["test"], "sources": {"corpus.jsonl": "a"}}
    write_run(tmp_path / "a", "bm25", 1, {"retrieve/mrr@10": 0.5}, **same)
    write_run(tmp_path / "b", "bm25", 1, {"retrieve/mrr@10": 0.6}, **(same | difference))
    with pytest.raises(ValueError, match="different collections or splits") as error:
        compare([tmp_path])
    assert named in str(error.value) and "mixed=true shows them apart" in str(error.value)
    assert not list(tmp_path.glob("comparison*"))
    comparison = compare([tmp_path], mixed=True)
    assert len(comparison.sections) == 2
    assert len({section.setting for section in comparison.sections}) == 2
    assert all(len(section.groups) == 1 for section in comparison.sections)
    figures = {path.name for path in (comparison.folder / "comparison_figures").glob("*.png")}
    assert figures == {"1_mrr.png", "2_mrr.png"}


def test_the_same_files_at_another_place_are_the_same_data(tmp_path):
    for seed, place in enumerate(["/data/wtq", "../wtq"], start=1):
        sources = {f"{place}/corpus.jsonl": "0af3", f"{place}/queries.jsonl": "77b1"}
        config = {"data": {"path": place}}
        write_run(tmp_path / str(seed), "bm25", seed, {}, config, sources=sources)
    (section,) = compare_runs([tmp_path]).sections
    assert [group.seeds for group in section.groups] == ["1, 2"]


def test_unfinished_runs_are_named_and_skipped(sweep, capsys):
    (sweep / "0" / "metrics.json").unlink()
    (sweep / "2" / ".hydra").mkdir(parents=True)  # stopped before it wrote anything
    compare([sweep])
    out = capsys.readouterr().out
    assert f"{sweep}/0: must be a finished run, it has no metrics.json: skipped" in out
    assert f"{sweep}/2: must be a finished run, it has no config.yaml: skipped" in out


def test_nothing_to_compare_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="runs=nowhere: no such folder"):
        compare(["nowhere"])
    with pytest.raises(ValueError, match=f"runs={tmp_path}: holds no run$"):
        compare([tmp_path])
    with pytest.raises(ValueError, match="no finished run to compare$"):
        compare([])
    write_run(tmp_path / "a", "bm25", 1, {}, collection=None)
    provenance = tmp_path / "a/provenance.json"
    provenance.write_text(json.dumps({"system": "bm25"}))
    with pytest.raises(ValueError, match=r"provenance\.json: collection=None"):
        compare([tmp_path])


def test_a_run_that_cannot_be_compared_is_one_line(sweep, capsys):
    (sweep / "0" / "metrics.json").unlink()
    with pytest.raises(ValueError, match="runs=.*/0: must be a finished run, it has no metrics"):
        compare([sweep / "0", sweep / "1"])
    with pytest.raises(ValueError, match=r"runs=.*/1: is named twice"):
        compare([sweep / "1", sweep / "1"])
    with pytest.raises(ValueError, match=r"runs=.*sweep: the run .*/10 is named twice"):
        compare([sweep / "10", sweep])
    with pytest.raises(ValueError, match=r"output=.*config.yaml: must be a folder, is a file"):
        compare([sweep / "10"], sweep / "10/config.yaml")
    assert not list(sweep.glob("comparison*")) and not capsys.readouterr().out


class Recorder:
    """A logger with wandb's verbs."""

    made: ClassVar[list] = []

    def __init__(self, **options):
        self.options, self.tables, self.images, self.finished = options, {}, {}, False
        self.made.append(self)
        self.experiment, self.config = self, {}

    def finish(self):
        self.finished = True

    def log_hyperparams(self, values):
        self.config |= values

    def log_table(self, key, columns, data):
        self.tables[key] = columns, data

    def log_image(self, key, images, caption):
        self.images[key] = images, caption


def test_a_logger_gets_the_tables_and_the_figures(sweep):
    logger = Recorder()
    compare([sweep], logger=logger)
    columns, rows = logger.tables["tables/comparison"]
    assert len(rows) == 2 and all(len(row) == len(columns) for row in rows)
    assert rows[0][columns.index("retrieve/mrr@10")] == pytest.approx(0.6)
    assert list(logger.images) == ["figures/mrr", "figures/exact_match"]
    assert logger.images["figures/mrr"][1] == ["MRR@10, searching and reranking"]
    assert logger.config["systems"] == ["t5_colbert", "bm25"] and len(logger.config["runs"]) == 3
    assert not logger.finished  # it is the caller's


def sweep_config(folder, run=None, **others):
    return OmegaConf.create({"hydra": {"sweep": {"dir": str(folder)}}, "run": str(run), **others})


def test_a_sweep_compares_its_own_runs_only(sweep, tmp_path, capsys):
    write_run(sweep / "old", "bm25", 1, {"retrieve/mrr@10": 0.9}, collection="wtq")
    callback = CompareRuns()
    for number in (0, 1):
        callback.on_job_end(sweep_config(sweep, sweep / str(number)), job_return=None)
    callback.on_multirun_end(sweep_config(sweep))
    assert "0.600 ± 0.141" in capsys.readouterr().out
    rows = list(csv.DictReader((sweep / "comparison.csv").open()))
    assert [row["system"] for row in rows] == ["t5_colbert"]


def test_a_sweep_logs_its_comparison(sweep):
    Recorder.made.clear()
    logger = {"_target_": f"{__name__}.Recorder", "name": "${missing}", "group": None, "x": True}
    CompareRuns().on_multirun_end(sweep_config(sweep, logger=logger | {"tags": None}))
    (made,) = Recorder.made
    name = made.options.pop("name")
    assert name.startswith("comparison-bm25_t5-colbert-")
    tags = ["t5_colbert", "bm25", "almanac"]
    expected = {"save_dir": str(sweep), "group": "almanac", "x": True, "tags": tags}
    assert made.options == expected
    assert "tables/comparison" in made.tables and made.finished


def test_two_sweeps_into_one_folder_keep_both_comparisons(sweep, capsys):
    def end(*numbers):
        callback = CompareRuns()
        for number in numbers:
            callback.on_job_end(sweep_config(sweep, sweep / str(number)), job_return=None)
        callback.on_multirun_end(sweep_config(sweep))
        return capsys.readouterr().out

    end(0, 10)
    made = (sweep / "comparison.html").read_text()
    said = end(1, 10)
    (aside,) = sweep.glob("comparison-*/comparison.html")
    assert str(aside) in said and f"{sweep} holds a comparison of other runs, which stays" in said
    assert (sweep / "comparison.html").read_text() == made
    end(10, 0)  # the same runs
    assert len(list(sweep.glob("comparison-*"))) == 1


def test_a_sweep_ends_with_a_comparison_or_says_why_not(sweep, capsys):
    config = sweep_config(sweep)
    CompareRuns().on_multirun_end(config)
    assert (sweep / "comparison.html").is_file()
    write_run(sweep / "11", "bm25", 1, {}, collection="wtq")
    # Hydra would turn any other exception into a warning.
    with pytest.raises(SystemExit, match="could not be compared: runs over different"):
        CompareRuns().on_multirun_end(config)
    CompareRuns(mixed=True).on_multirun_end(config)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("retrieve/recall@1", Statistic(0.12345), "0.123"),
        ("retrieve/recall@1", Statistic(0.5, 0.01), "0.500 ± 0.010"),
        ("cost/index_bytes", Statistic(999), "999 B"),
        ("cost/index_bytes", Statistic(1_500_000, 250_000), "1.5 ± 0.2 MB"),
        ("cost/train_seconds", Statistic(1234.5), "1,234 s"),
        ("cost/query_ms_p50", Statistic(3.14), "3.1 ms"),
        ("retrieve/recall@1", None, "–"),
    ],
)
def test_values_for_people(key, value, text):
    assert metric_names.text(key, value) == text


def test_metrics_are_ordered_as_they_are_read():
    keys = ["cost/query_ms_p50", "rerank/mrr@10", "retrieve/test_unseen/recall@1", CURVE]
    keys += ["retrieve/success@5", "retrieve/mrr@10", "retrieve/recall@1", "retrieve/recall@1000"]
    keys += ["analysis/exact_match/query_to_document/soft"]
    keys += ["analysis/exact_match/document_to_query/hard", "something/else"]
    assert sorted(keys, key=metric_names.order) == [
        "retrieve/recall@1",
        "retrieve/recall@1000",
        "retrieve/success@5",
        "retrieve/mrr@10",
        "retrieve/test_unseen/recall@1",
        "rerank/mrr@10",
        "analysis/exact_match/document_to_query/hard",
        "analysis/exact_match/query_to_document/soft",
        CURVE,
        "cost/query_ms_p50",
        "something/else",
    ]


@pytest.mark.parametrize(
    ("key", "name", "headline"),
    [
        ("retrieve/macro_success@20", "retrieve macro Success@20", True),
        ("retrieve/dev/recall@1000", "retrieve dev R@1000", True),
        ("rerank/leak_free_max/ndcg@10", "rerank leak_free_max nDCG@10", False),
        ("analysis/search/search_error@10", "search error@10", True),
        ("analysis/search/luck@10", "search luck@10", False),
        (
            "analysis/exact_match/query_to_document/hard_content",
            "exact match q→d hard content",
            False,
        ),
        (CURVE, "exact match q→d soft IDF 0-2", False),
        ("cost/own_memory_bytes/load", "cost own memory load", False),
        ("mrr@10", "MRR@10", False),
    ],
)
def test_a_key_says_what_it_measures_and_whether_summaries_show_it(key, name, headline):
    assert metric_names.full_label(key) == name
    assert metric_names.read_key(key).headline == headline
