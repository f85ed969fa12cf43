"""The wheel: the library alone, beside a user's own `models/` and `train.py`."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.test_imports import ROOMS, ROOT, imported, outside_functions, room_files, tree_of

PIP = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "-q"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, since a build leaves files beside the code."""
    copy, wheels = (tmp_path_factory.mktemp(name) for name in ("copy", "wheels"))
    for room in (*ROOMS, "conf"):
        leave = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, copy / room, ignore=leave)
    for file in ("pyproject.toml", "README.md", "LICENSE", "train.py"):
        shutil.copy(ROOT / file, copy)
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*PIP, "wheel", *offline, "-w", wheels, copy], check=True)
    (built,) = wheels.iterdir()
    return built


def needs(requirements: list[str]) -> set[str]:
    """The names of requirements that hold on this machine without any extra."""
    read = map(Requirement, requirements)
    return {r.name for r in read if r.marker is None or r.marker.evaluate({"extra": ""})}


def read_needs(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return needs(re.findall(r"^Requires-Dist: (.*)", archive.read(name).decode(), re.M))


def test_the_wheel_holds_the_library_and_its_types_alone(wheel):
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    folders = {name.partition("/")[0] for name in names}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"gr_mvdr"}
    assert "gr_mvdr/py.typed" in names
    code = {f.relative_to(ROOT).as_posix() for f in room_files("gr_mvdr")}
    assert {name for name in names if name.endswith(".py")} == code


def test_the_wheel_requires_what_the_library_imports(wheel):
    found = set().union(*(imported(outside_functions(tree_of(f))) for f in room_files("gr_mvdr")))
    distributions = {"yaml": "pyyaml"}
    outside = {distributions.get(n, n) for n in found - sys.stdlib_module_names - {"gr_mvdr"}}
    # `gr_mvdr.files` imports two when it first reads weights, transformers two for some tokenisers.
    later = {"safetensors", "huggingface_hub", "sentencepiece", "protobuf"}
    assert read_needs(wheel) == outside | later


def test_the_example_of_the_site_runs_beside_a_users_own_models(wheel, tmp_path):
    site, user = tmp_path / "site", tmp_path / "user"
    with ZipFile(wheel) as archive:  # what installing a wheel without scripts does
        archive.extractall(site)
    (user / "models").mkdir(parents=True)
    for module in ("models/__init__", "models/retriever", "train"):
        (user / f"{module}.py").write_text("mine = True\n")
    page = (ROOT / "docs/quickstart.md").read_text()
    (example,) = (b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "Trie" in b)
    (user / "example.py").write_text(
        example + "\nimport gr_mvdr, models.retriever, train"
        "\nassert models.retriever.mine and train.mine\nprint(gr_mvdr.__file__)\n"
    )
    # -S: this environment's packages alone, without the link to the laboratory beside them.
    path = f"{site}:{sysconfig.get_path('purelib')}"
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "example.py"],
        cwd=user,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    *shown, place = done.stdout.splitlines()
    assert Path(place) == site / "gr_mvdr/__init__.py" and len(shown) >= 4
