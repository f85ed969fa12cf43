"""What every test finds, so that no file sets it up again.

- Caches of collections are in one temporary folder for the whole session, and wandb is offline: for
  all tests and for the processes that they start. Caches are keyed by all that made them, so tests
  can share them; `cache` is one that is a test's own.
- A test draws the same random numbers alone and after others.
- `finished_run("t5_colbert", "seed=2")` is the folder of a short run without analysis. It is made
  once a session, for all workers of xdist: only read it, or copy it with `shutil.copytree`.
  `once(name, make)` is any other folder that is made once.
- `float64`: a module that asks for it computes in float64.
- `tests.runs` has the configurations of short runs (`compose_config`, `small`), `command`, which is
  a command without seconds of imports, `undrawn`, in which figures cost nothing, and `beir`, which
  writes a collection of twelve documents.
"""

import os
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

_CACHE = "GR_MVDR_TEST_CACHE"  # xdist's workers inherit it
_MAKES_CACHE = _CACHE not in os.environ
# Set before the conftest of a folder below imports `datasets`, which reads it then.
if _MAKES_CACHE:
    os.environ[_CACHE] = tempfile.mkdtemp(prefix="gr-mvdr-tests-")
os.environ["HF_DATASETS_CACHE"] = os.environ[_CACHE]
os.environ["WANDB_MODE"] = "offline"


def pytest_unconfigure() -> None:
    if _MAKES_CACHE:
        shutil.rmtree(os.environ.pop(_CACHE), ignore_errors=True)


@pytest.fixture(autouse=True)
def _seeded():
    """A test draws the same numbers alone and after others: a training run seeds the process."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A cache of ``datasets`` that is this test's own."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def float64():
    """A module that computes in float64: no equality hangs on the order in which a CPU sums."""
    import torch

    from tests.float64 import compute_in

    compute_in(torch.float64)
    yield
    compute_in(torch.float32)


@pytest.fixture(scope="session")
def once():
    """(name, make) → a folder that `make(folder)` filled, at the first call of any worker."""
    from filelock import FileLock

    def made(name: str, make) -> Path:
        folder = Path(os.environ[_CACHE], "made", sha256(name.encode()).hexdigest()[:12])
        folder.parent.mkdir(exist_ok=True)
        done = folder.with_suffix(".done")
        with FileLock(folder.with_suffix(".lock")):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def finished_run(once):
    """(model, *overrides) → the folder of a short run, made at the first call; only read it."""
    from tests.runs import NO_ANALYSIS, small
    from train import train

    def run(model: str, *overrides: str) -> Path:
        keys = (f"model={model}", *NO_ANALYSIS, *overrides)
        return once(str(keys), lambda folder: train(small(folder, *keys, name=model))) / model

    return run


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that is a folder, of the user "owner"."""
    import huggingface_hub

    place = tmp_path / "hub"

    class Api:
        def create_repo(self, repo_id, exist_ok):
            if not repo_id.startswith("owner/"):
                error = RuntimeError("Forbidden:\nsee the page")
                error.response = SimpleNamespace(status_code=403)
                raise error

        def upload_folder(self, repo_id, folder_path, delete_patterns, commit_message):
            assert delete_patterns == "*", "files of an earlier export go"
            shutil.copytree(folder_path, place / repo_id)
            return SimpleNamespace(repo_url=f"https://hub/{repo_id}")

    def download(name, allow_patterns=None):
        return str(place / name)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    for module in ("gr_mvdr.files", "models.export"):
        monkeypatch.setattr(f"{module}.find_hub_failure", lambda: None)
    return place
