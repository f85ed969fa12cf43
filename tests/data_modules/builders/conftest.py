import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from data_modules.collection import Collection, collect
from data_modules.formats.layout import Layout

MINIATURES = Path(__file__).parent / "miniatures"


@pytest.fixture
def miniature(tmp_path) -> Callable[[str], Path]:
    """A copy of a miniature that a test may change."""

    def copied(name: str) -> Path:
        return Path(shutil.copytree(MINIATURES / name, tmp_path / "raw" / name))

    return copied


@pytest.fixture
def store(tmp_path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def collected(store, cache) -> Callable[..., Collection]:
    """Builds a layout's collection in a folder of this test."""

    def build(layout: Layout, empty_documents: str = "refuse") -> Collection:
        return collect(layout, store, empty_documents)

    return build


@pytest.fixture
def built(store) -> Callable[[], list[str]]:
    """What the store holds beside its locks and its memory of hashes."""
    return lambda: sorted(
        path.name for path in store.iterdir() if path.is_dir() and path.name[0] != "."
    )
