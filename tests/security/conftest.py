"""Finished runs and their exports, copied for each attack."""

import shutil
from pathlib import Path

import pytest

from analysis.export import export_run
from tests.analysis.viewer.conftest import browser, session  # noqa: F401
from tests.runs import TINY


@pytest.fixture
def foreign(finished_run, once, tmp_path):
    """A function: a copy of "MODEL", a finished run, or of "MODEL-export"; a stranger's folder."""

    def copied(name: str) -> Path:
        source = finished_run(model := name.removesuffix("-export"), *TINY)
        if name != model:
            export = lambda folder: export_run(source, folder / name)  # noqa: E731
            source = once(f"{name} of a stranger", export) / name
        return Path(shutil.copytree(source, tmp_path / "foreign" / name))

    return copied
