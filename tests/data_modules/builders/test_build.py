import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from hydra import compose, initialize_config_dir

from conf.resolvers import register_resolvers
from data_modules.build import build
from tests.data_modules.builders.conftest import MINIATURES

ROOT = Path(__file__).parents[3]
SMALL = {
    "nq320k": [f"data.path={MINIATURES}/natural_questions", "data.check_counts=false"],
    "msmarco_doc": [f"data.path={MINIATURES}/msmarco_doc"],
    "public": [f"data.path={MINIATURES}/lotte", "data.name=lotte/writing/search"],
    "files": [f"data.path={MINIATURES}/beir/towns"],
    "beir": [f"data.path={MINIATURES}/beir/towns"],
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def configuration(*overrides: str):
    register_resolvers()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("build", list(overrides))


@pytest.mark.parametrize("data", SMALL)
def test_every_source_is_built_once_and_says_so(data, tmp_path, capsys):
    config = configuration(f"data={data}", f"data.store={tmp_path}/store", *SMALL[data])
    collection = build(config)
    said = capsys.readouterr().out
    assert f"{len(collection.documents)} " in said
    assert said.endswith(f"\nbuilt: {collection.folder}\n")
    assert build(config).folder == collection.folder
    assert capsys.readouterr().out.endswith(f"\nreused, built before: {collection.folder}\n")


def test_the_almanac_is_built_too(capsys):
    build(configuration("data=almanac", "data.n_documents=50"))
    assert "generated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "dropped"),
    [
        (["data=public", "data.name=beir/arguana"], True),
        (["data=public", "data.name=beir/quora"], True),
        (["data=public", "data.name=beir/quora", "data.drop_identical=false"], False),
        (["data=public", "data.name=miracl/en"], False),
        (["data=msmarco_passage"], False),
        (["data=zero_shot", "+collection=beir/arguana"], True),
        (["data=zero_shot", "+collection=beir/fiqa"], False),
    ],
)
def test_where_queries_are_documents_a_hit_that_is_the_query_is_dropped(overrides, dropped):
    config = configuration(*overrides)
    assert config.data.drop_identical is dropped
    assert config.data.empty_documents == "keep", "FiQA has some"


def run(*overrides: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "data_modules.build", *overrides]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_command_prints_the_manifest(tmp_path):
    done = run("data=nq320k", f"data.store={tmp_path}", *SMALL["nq320k"])
    assert done.returncode == 0, done.stderr
    for text in ("documents", "27", "judgements of dev_unseen", "check_counts", str(tmp_path)):
        assert text in done.stdout


def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path):
    path = f"data.path={MINIATURES}/natural_questions"
    done = run("data=nq320k", path, f"data.store={tmp_path}/store")
    assert done.returncode == 1
    message = "error: nq320k: expected 109,739 titles, found 27; the last before they end is"
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert not [
        place for place in (tmp_path / "store").iterdir() if place.is_dir() and place.name[0] != "."
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=nq320k", "data.path=no/such"], "data.path=no/such: no such folder"),
        (["data=public", "data.name=x/y"], "data.name=x/y: must begin with"),
    ],
)
def test_values_that_cannot_be_met_are_refused(overrides, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        build(configuration(*overrides))
