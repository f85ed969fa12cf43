"""The papers' recipes: they compose, say where their numbers are, are documented and rehearsed."""

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import datasets
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from analysis.comparison.paper import PAPERS, read_paper
from analysis.recipes import rehearse as rehearsing
from analysis.recipes.cost import SIZES, Work
from analysis.recipes.document import DOCUMENT, composed, documented
from analysis.recipes.recipe import makers, read_recipe, read_recipes
from analysis.recipes.rehearse import chosen_recipes, read_record, rehearse, run
from analysis.recipes.work import Corpus, work
from analysis.run import restore_run
from analysis.run_folder import find_runs
from conf.checks import check_values
from conf.rehearse import rehearsal_of, rehearsed
from gr_mvdr.token_index.index import SearchOptions, TokenIndex
from gr_mvdr.token_vectors import PackedTokens
from train import train

ROOT = Path(__file__).parents[1]
RECIPES = read_recipes()
NAMES = [recipe.name for recipe in RECIPES]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_rehearse_is_what_hydra_understands():
    assert rehearsed(["experiment=table5_nq320k", "rehearse=true", "seed=2"]) == [
        *("experiment=table5_nq320k", "rehearsal=small", "seed=2")
    ]
    assert rehearsed(["rehearse=true", "experiment=mva_table1"])[0] == "rehearsal=mva"
    assert rehearsed(["experiment=table6", "rehearse=false"]) == ["experiment=table6"]
    with pytest.raises(ValueError, match="rehearse=maybe: must be true or false"):
        rehearsed(["rehearse=maybe"])


def test_every_paper_has_recipes_and_those_that_train_come_first():
    assert {recipe.paper for recipe in RECIPES} == {"gr_as_mvdr", "aligner", "xtr", "mva"}
    assert {"table5_nq320k", "table5_msmarco", "table6_nq320k", "table7_nq320k"} <= set(NAMES)
    for recipe in RECIPES:
        first = makers(recipe, RECIPES)
        assert bool(first) == bool(recipe.reads), recipe.name
        assert all(NAMES.index(name) < NAMES.index(recipe.name) for name in first), recipe.name
    assert read_recipe("table5") is None  # it names no collection


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_a_recipe_composes_and_its_values_fit_their_classes(recipe):
    for model in recipe.values("model") or [None]:
        config, _ = composed(recipe, *([f"model={model}"] if model else []))
        check_values(OmegaConf.create(config))
        assert config["backbone"]["name"] or model == "bm25"
        assert config["output"].startswith("outputs/") and config["resume"]


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_its_rehearsal_is_small_and_needs_no_file(recipe):
    asked = [f"experiment={recipe.name}", "rehearse=true", "name=run", "collection=rehearsed"]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("train", rehearsed(asked))
    assert not OmegaConf.missing_keys(config)
    assert "Almanac" in config.data._target_ and config.backbone.name is None
    assert config.output.startswith("outputs/rehearsals/")
    assert config.trainer.accelerator == "cpu" and config.trainer.precision == "64-true"
    check_values(config)


def test_a_rehearsal_takes_another_collection_and_keeps_the_recipes_choices():
    asked = ["experiment=table5_nq320k", "rehearse=true", "name=run", "data=beir", "data.path=x"]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("train", rehearsed([*asked, "data.test_split=dev", "model=t5_seal"]))
    assert config.data.path == "x" and config.data.test_split == "dev"
    assert "n_documents" not in config.data
    assert config.model.optimizer == {
        "learning_rate": 1e-3,
        "weight_decay": 0.01,
        "schedule": "constant",
    }
    assert config.trainer.gradient_clip_val == 2.0 and config.document_length == 256


def test_the_papers_hyper_parameters_reach_the_systems():
    seal, _ = composed(read_recipe("table5_nq320k"), "model=t5_seal")
    assert seal["data"]["batch_size"] == 256 and seal["data"]["examples"]["n_spans"] == 5
    assert (seal["model"]["beam_size"], seal["trainer"]["max_epochs"]) == (5, 3)
    seal, _ = composed(read_recipe("table5_msmarco"), "model=t5_seal")
    assert seal["model"]["optimizer"]["learning_rate"] == 1e-4
    assert seal["data"]["examples"]["n_spans"] == 10
    aligner, data = composed(read_recipe("aligner_table6"))
    assert data == "msmarco_passage" and aligner["trainer"]["max_steps"] == 25_000
    assert aligner["model"]["search"]["neighbours"] == 4000
    xtr, _ = composed(read_recipe("xtr_table2_msmarco"), "model=xtr")
    assert (xtr["trainer"]["max_steps"], xtr["model"]["search"]["neighbours"]) == (50_000, 40_000)
    assert xtr["retrieval_depth"] == 1000 and "recall@1000" in xtr["data"]["metrics"]
    colbert, _ = composed(read_recipe("xtr_table2_msmarco"), "model=t5_colbert")
    assert colbert["model"]["search"]["neighbours"] == 4000  # of Qian et al.
    dpr, _ = composed(read_recipe("table8_nq320k"), "model=dpr")
    assert dpr["model"]["dimension"] == 768
    for model, indexed in (("genre", False), ("genre_np_async", False), ("dsi_semantic", True)):
        config, _ = composed(read_recipe("table6_nq320k"), f"model={model}")
        assert bool(config["data"]["indexing"]) == indexed
    assert not config["model"]["identifiers"]["positional"]
    for model in ("mva", "dpr", "cross_encoder"):
        mva, _ = composed(read_recipe("mva_table6_stages"), f"model={model}")
        assert (mva["query_length"], mva["document_length"]) == (32, 112)
        optimizer = mva["model"]["optimizer"]
        assert (optimizer["learning_rate"], optimizer["weight_decay"]) == (3e-5, 0)
        assert mva["data"]["candidates"] == 1000 and not mva["data"]["add_relevant"]


def test_what_scores_with_all_token_vectors_stores_no_codes():
    """aligner §3.2, xtr §2; the codes of token retrieval are the inverted file's."""
    for name, *overrides in (
        ("aligner_table6",),
        ("aligner_table2",),
        ("xtr_table2_msmarco", "model=t5_colbert"),
        ("xtr_table5",),
    ):
        config, _ = composed(read_recipe(name), *overrides)
        assert config["model"]["search"]["dtype"] == "float16", name


def test_numbers_are_read_by_recipes_and_have_a_place():
    for recipe in RECIPES:
        if recipe.numbers:
            assert read_paper(recipe.numbers).rows, recipe.name
    used = {recipe.numbers for recipe in RECIPES}
    assert {path.stem for path in PAPERS.glob("*.yaml")} <= used


@pytest.mark.parametrize(
    ("number", "averages"),
    [
        # As the paper prints them below its columns.
        (7, [47.3, 46.3, 38.4, 31.9, 27.0, 47.1, 44.2, 40.9, 35.9]),
        (8, [49.5, 49.1, 43.0, 37.3, 33.0, 49.0, 45.4, 42.3, 37.9]),
        (9, [50.3, 49.8, 44.4, 38.9, 34.7, 49.9, 46.8, 43.9, 39.8]),
        (10, [51.3, 50.9, 46.2, 41.4, 37.7, 50.8, 45.1, 40.9, 36.4, 52.6]),
        (11, [42.0, 45.4, 46.9, 45.5, 43.1, 41.1, 36.3, 33.4, 30.5]),
        (2, [47.1, 49.2]),
    ],
)
def test_aligners_grids_have_the_papers_averages(number, averages):
    columns = {}
    for row in read_paper(f"aligner_table{number}").rows:
        (strategy,) = row.study.values()
        columns.setdefault(strategy, []).append(row.values["ndcg@10"])
    means = [fmean(v for v in values if v is not None) for values in columns.values()]
    assert means == pytest.approx(averages, abs=0.07)


def test_every_recipe_is_documented():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert documented(text) == text, "run python -m analysis.recipes.document"
    with pytest.raises(ValueError, match="no place for <!-- costs -->"):
        documented(text.replace("<!-- costs -->", ""))


def test_cost_is_arithmetic():
    base = SIZES["base"]
    assert base.encoder == 12 * (4 * 768**2 + 3 * 768 * 2048)
    one = Work(base, False, 100, 256, 320, 0, 1000, 256, 256)
    assert one.train_flops == 6 * 100 * 256 * 320 * base.encoder
    assert one.hours == pytest.approx((one.train_flops + one.index_flops) / 93.6e12 / 3600)
    assert one.index_bytes == 1000 * 256 * 256
    config, _ = composed(read_recipe("table5_nq320k"), "model=t5_colbert")
    found = work(config, Corpus(10, 1000))
    assert found.steps == 5 * 4 and found.source == 64 + 256
    config, _ = composed(read_recipe("mva_table2"))
    assert work(config, Corpus(10)).index_bytes == 0  # it reranks
    # 128 numbers of two bytes, an id of four; codes of 32 bytes and an id of eight in the lists.
    assert found.token_bytes == 256 + 4 + 32 + 8


@pytest.mark.parametrize("dtype", ["float32", "float16", "pq"])
@pytest.mark.parametrize(("keys", "salience"), [(False, True), (True, False)])
def test_the_bytes_of_a_token_are_those_that_an_index_has(dtype, keys, salience, tmp_path):
    documents, tokens, size = 400, 60, 32
    rows = documents * tokens
    packed = PackedTokens(
        vectors=torch.randn(rows, size),
        counts=torch.full((documents,), tokens),
        ids=torch.zeros(rows, dtype=torch.int64),
        salience=torch.rand(rows) if salience else None,
        keys=torch.randn(rows, size) if keys else None,
    )
    names = [f"d{number}" for number in range(documents)]
    index = TokenIndex.build(tmp_path / "index", names, [packed], dtype=dtype, pq_bytes=8)
    index.prepare(SearchOptions("gather", lists=4))
    model = {
        "_target_": "models.multi_vector.MultiVector",
        "backbone": {},
        "dimension": size,
        "projections": "attention" if keys else "shared",
        "salience": {"document": {}} if salience else None,
        "search": {"mode": "gather", "dtype": dtype, "pq_bytes": 8, "probes": 4},
    }
    config = {"model": model, "data": {"batch_size": 1, "examples": {}}, "weights": "RUN"}
    config |= {"backbone": {"name": "base"}, "query_length": 8, "document_length": tokens}
    found = work(config, Corpus(documents))
    # Beside the tokens' rows: a document's count and name, centroids, codebooks.
    codebooks = 0 if dtype != "pq" else (1 + keys) * 256 * size * 4
    beside = index.size_in_bytes - codebooks - found.index_bytes
    assert 0 < beside < 0.02 * found.index_bytes


# One recipe of each paper, the smallest; what narrows its sweep.
@pytest.mark.parametrize(
    ("name", "narrower"),
    [
        ("figure2_nq320k", []),
        ("aligner_table6", ["alignment=top_k"]),
        ("xtr_table4_training", []),
        ("mva_table2", ["model.dimension=16"]),
    ],
)
def test_a_recipe_of_each_paper_is_rehearsed(name, narrower, tmp_path):
    recipe = read_recipe(name)
    assert run(recipe, tmp_path, *narrower) is None
    (made,) = find_runs(tmp_path / recipe.folder)
    config = OmegaConf.load(made / "config.yaml")
    assert config.data.n_documents == 60 and config.backbone.name is None
    if recipe.numbers:
        table = (tmp_path / recipe.tables / "paper_table.md").read_text()
        assert "difference" in table and "paper" in table


def test_rehearsals_are_remembered_and_kept_at_their_commit(tmp_path, monkeypatch):
    asked = []

    def answer(recipe, folder):
        asked.append(recipe.name)
        (folder / recipe.tables).mkdir(parents=True, exist_ok=True)
        return "broken" if recipe.name == "xtr_table3" else None

    monkeypatch.setattr(rehearsing, "run", answer)
    monkeypatch.setattr(rehearsing, "git_revision", lambda: "abc")
    record = tmp_path / "rehearsals.json"
    assert rehearse(["xtr_table3", "table5_nq320k"], tmp_path, record) == ["xtr_table3"]
    # What a recipe reads is rehearsed before it.
    assert asked == ["table5_nq320k", "xtr_table2_msmarco", "xtr_table3"]
    assert set(read_record(record)) == {"table5_nq320k", "xtr_table2_msmarco"}
    assert json.loads(record.read_text())["table5_nq320k"]["commit"] == "abc"
    rehearse(["table5_nq320k"], tmp_path, record)
    assert len(asked) == 3
    monkeypatch.setattr(rehearsing, "git_revision", lambda: "def")
    rehearse(["table5_nq320k"], tmp_path, record)
    assert asked[3:] == ["table5_nq320k"]
    with pytest.raises(ValueError, match="table99: must be one of"):
        chosen_recipes(RECIPES, ["table99"])


def small(tmp_path, name, *overrides):
    asked = ["model=t5_colbert", "rehearsal=small", "analysis=none", "analysis.pairs=0"]
    asked += ["analysis.curve_pairs=0", "analysis.questions=null", f"output={tmp_path}"]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", [*asked, f"name={name}", *overrides])


def test_weights_of_a_finished_run_search_without_training(tmp_path):
    train(small(tmp_path, "trained"))
    metrics = train(small(tmp_path, "taken", f"weights={tmp_path}/trained", "seed=5"))
    assert metrics["cost/train_seconds"] == 0
    first, second = ((tmp_path / name / "retrieve.trec") for name in ("trained", "taken"))
    assert first.read_text() == second.read_text()
    assert not (tmp_path / "taken/checkpoints").exists()
    with pytest.raises(FileNotFoundError, match=rf"weights={tmp_path}/trained: name that run"):
        restore_run(tmp_path / "taken", "0")
    with pytest.raises(ValueError, match=r"weights=.*another tokeniser"):
        train(small(tmp_path, "words", f"weights={tmp_path}/trained", "data.n_documents=50"))
    with pytest.raises(ValueError, match=r"weights=.*must be \(64, 128\)"):
        train(small(tmp_path, "size", f"weights={tmp_path}/trained", "model.dimension=64"))
    with pytest.raises(FileNotFoundError, match=r"weights=nowhere: no such run folder"):
        train(small(tmp_path, "none", "weights=nowhere"))


def test_rehearsals_are_the_papers_own():
    assert rehearsal_of(["experiment=xtr_k"]) == "xtr"
    assert rehearsal_of(["model=bm25"]) == "small"
    numbers = [recipe.paper for recipe in RECIPES]
    assert sum(a != b for a, b in pairwise(numbers)) == 3  # paper by paper
