"""What tests of the data share."""

import datasets
import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of ``datasets`` that is this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    return folder
