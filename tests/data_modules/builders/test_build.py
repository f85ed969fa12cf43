"""From raw files to a collection by command, and to a finished run."""

import pytest

from data_modules.build import build
from tests.data_modules.builders.conftest import MINIATURES
from tests.runs import compose_config

pytestmark = pytest.mark.usefixtures("cache")

RAW = f"data.path={MINIATURES}/natural_questions"
SMALL = {
    "nq320k": [RAW, "data.check_counts=false"],
    "public": [f"data.path={MINIATURES}/beir", "data.name=beir/towns"],
}


@pytest.mark.parametrize("data", SMALL)
def test_every_source_is_built_once_and_says_so(data, tmp_path, capsys):
    config = compose_config("build", f"data={data}", f"data.store={tmp_path}/store", *SMALL[data])
    collection = build(config)
    said = capsys.readouterr().out
    assert f" {len(collection.documents)}\n" in said
    assert all(f"judgements of {split}" in said for split in collection.qrels)
    assert "check_counts" in said or data != "nq320k"
    assert said.endswith(f"\nbuilt: {collection.folder}\n")
    assert build(config).folder == collection.folder
    assert capsys.readouterr().out.endswith(f"\nreused, built before: {collection.folder}\n")
