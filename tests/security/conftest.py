"""Finished runs and an exported folder, made once, copied for each attack."""

import shutil
from pathlib import Path

import datasets
import pytest

from analysis.export import export_run
from tests.runs import compose_config
from train import train

ROOT = Path(__file__).parents[2]
TINY = [
    *("experiment=smoke", "analysis=none", "analysis.pairs=0", "analysis.curve_pairs=0"),
    *("logger=none", "data.n_documents=50", "trainer.max_steps=1", "data.max_test_queries=4"),
    *("backbone.shape.d_model=32", "backbone.shape.d_kv=8", "backbone.shape.d_ff=64"),
]
NOTHING = {"pairs": 0, "questions": {}, "precision": "float32"}  # an analysis that asks nothing
MODELS = ("t5_colbert", "dsi_semantic")


def composed(*overrides: str):
    return compose_config("train", *TINY, *overrides)


@pytest.fixture(scope="session")
def made(once):
    """`<model>` and `<model>-export` for each of MODELS; caches in a folder beside them."""

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
            for model in MODELS:
                train(composed(f"model={model}", f"name={model}", f"output={folder}"))
                export_run(folder / model, folder / f"{model}-export")

    return once("runs that somebody else made", make)


@pytest.fixture
def foreign(made, tmp_path):
    """A function: a copy of one of the folders, as if it had come from somebody else."""

    def copied(name: str) -> Path:
        return Path(shutil.copytree(made / name, tmp_path / "foreign" / name))

    return copied
