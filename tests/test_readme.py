"""Every command that the README shows runs, made small."""

import os
import re
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from conf.composition import prepare_arguments
from models.retriever import Retriever
from tests.runs import NO_ANALYSIS, command, compose_config, undrawn
from train import train

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text().replace("FOLDER", "tests/fixtures/small_collection")
COMMANDS = re.findall(r"^    (python (?:train\.py|-m analysis\.compare)[^#\n]*)", README, re.M)
TRAIN = [
    prepare_arguments(shlex.split(command)[2:]) for command in COMMANDS if "train.py" in command
]


def expanded(arguments: list[str]) -> list[list[str]]:
    """The jobs of a sweep: a=1,2 as [a=1] and [a=2]; lists in brackets stay whole."""
    choices = []
    for key, value in (argument.split("=", 1) for argument in arguments if argument[0] != "-"):
        values = [value] if value.startswith("[") else value.split(",")
        choices.append([f"{key}={value}" for value in values])
    return [list(job) for job in product(*choices)]


def is_run(arguments: list[str]) -> bool:
    return "--help" not in arguments


def test_the_readme_is_a_page_that_shows_commands():
    assert len(README.encode()) <= 8192
    assert len(TRAIN) >= 4 and any("-m" in arguments for arguments in TRAIN)


def test_every_file_that_a_document_names_is_there():
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        text = document.read_text()
        links = re.findall(r"\]\(([^)#:]+)[^):]*\)", text)
        missing = [link for link in links if not (document.parent / link).exists()]
        paths = re.findall(
            r"`((?:gr_mvdr|models|data_modules|analysis|conf|tests|docs)/[^`*…]*(?:/|\.\w+))`",
            text,
        )
        named = [path for path in paths if not re.search("[A-Z]{4}", path)]  # NAME, PAPER
        missing += [path for path in named if not (ROOT / path).exists()]
        assert not missing, (document.name, missing)


SHORT = ("experiment=smoke", "logger=none", "analysis=none", "analysis.pairs=0", "resume=true")


@pytest.fixture
def short_runs(tmp_path, monkeypatch):
    """`train` makes short runs in a temporary folder."""
    monkeypatch.setattr("train.train", lambda asked: train([*asked, *SHORT, f"output={tmp_path}"]))


def test_the_python_example_runs(short_runs, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(example, {})
    score, total = capsys.readouterr().out.splitlines()[-1].split()
    assert float(score) == pytest.approx(float(total), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train_search_align", "what_was_generated"])
def test_a_notebook_runs(name, tmp_path):
    """In a kernel of its own, its training made short."""
    import nbformat
    from nbclient import NotebookClient

    path = ROOT / "docs" / "notebooks" / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        short = f'"analysis=none", "analysis.pairs=0", "output={tmp_path}", "logger=none"'
        cell.source = cell.source.replace('"experiment=demo"', f'"experiment=smoke", {short}')
        cell.source = cell.source.replace(', "logger=none"]', "]")
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": path.parent}}).execute()


def python_examples() -> list:
    """The Python blocks of docs/, by page and number."""
    blocks = r"```python\n(?!# \w+\.py\n)(.*?)```"  # but for files, see `test_a_system_of_your_own`
    return [
        pytest.param(block, id=f"{page.name}-{number}")
        for page in sorted((ROOT / "docs").glob("*.md"))
        for number, block in enumerate(re.findall(blocks, page.read_text(), re.DOTALL), start=1)
    ]


@pytest.mark.parametrize("block", python_examples())
def test_a_python_example_of_the_documents_runs(block, tmp_path, monkeypatch, capsys):
    for library in re.findall(r"^(?:from|import) (\w+)", block, re.M):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    small = ["logger=none", "experiment=smoke", *NO_ANALYSIS]
    folder = f"data.path={ROOT / 'tests/fixtures/small_collection'}"
    block = block.replace('"data.path=FOLDER"', ", ".join(map(repr, [folder, *small])))
    exec(block.replace("(5000, 1)", "(100, 1)"), {})
    assert capsys.readouterr().out


@pytest.mark.slow
def test_a_system_of_your_own_trains_from_the_files_that_the_documents_show(tmp_path, monkeypatch):
    page = (ROOT / "docs/models.md").read_text()
    for name, text in re.findall(r"```\w+\n# (\S+\.(?:py|yaml))\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (line,) = re.findall(r"^    PYTHONPATH=\. (python GR_MVDR/train\.py .*)", page, re.M)
    line = line.replace("GR_MVDR", str(ROOT))
    line = line.replace("FOLDER", str(ROOT / "tests/fixtures/small_collection"))
    asked = [*shlex.split(line)[1:], *SHORT, "name=own", "output=out"]
    environment = {**os.environ, "PYTHONPATH": "."}
    subprocess.run([sys.executable, *asked], cwd=tmp_path, env=environment, check=True)
    monkeypatch.syspath_prepend(tmp_path)
    retriever = Retriever.load(tmp_path / "out/own", trust=True)
    assert retriever.retrieve({"q": "soup"})


@pytest.mark.slow  # some of them index a real collection
@pytest.mark.parametrize("arguments", list(filter(is_run, TRAIN)), ids=" ".join)
def test_a_train_command_of_the_readme_runs(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    paths = [a.split("=", 1)[1] for a in arguments if a.startswith("data.path=")]
    if not all(Path(path).is_dir() for path in paths):
        pytest.skip(f"{paths[0]} is not on this machine")
    jobs = expanded(arguments)
    for job in jobs:
        small = ["data.max_test_queries=4", "data.max_rerank_queries=2", "trainer.max_steps=2"]
        small += [] if paths else ["data.n_documents=50"]
        chosen = [a.split("=", 1)[1] for a in job if a.startswith("experiment=")]
        job = [a for a in job if not a.startswith("experiment=")]
        experiment = f"experiment=[{','.join([*chosen, 'smoke'])}]"
        # Analyses have tests of their own.
        small += ["analysis.pairs=0", "analysis.curve_pairs=0", "analysis.questions=null"]
        overrides = [*job, *small, experiment, "logger=none", f"output={tmp_path}"]
        config = compose_config("train", *overrides, "name=job")
    # Each composes, and the last one runs: tests/test_empty_documents.py runs all systems.
    assert "retrieve/mrr@10" in train(config).metrics


@pytest.mark.slow
def test_the_train_commands_of_the_documents_compose():
    """A key or an option that has another name now would stop them; their folders are not here."""
    texts = [path.read_text().replace("\\\n", " ") for path in (ROOT / "docs").glob("*.md")]
    found = {
        c for text in texts for c in re.findall(r"^    python train\.py ([^#\n]+)", text, re.M)
    }
    lines = [line for line in found if "…" not in line and "--" not in line]
    assert len(lines) > 20
    for line in lines:
        arguments = prepare_arguments(shlex.split(line))
        keys = [a for a in arguments if a != "-m" and not a.startswith("hydra")]
        compose_config("train", *expanded(keys)[0])


def without_links(page):
    """Links to runs are relative to the page's folder."""
    return re.sub(r'href="\./[^"]*"', "", page.read_text())


@undrawn()
def test_a_sweep_ends_with_a_comparison_and_runs_compare_again(tmp_path, capsys):
    asked = ["model=bm25", "model.k1=0.9,1.5", "experiment=smoke", "logger=none"]
    asked += ["data.n_documents=50"]
    few = ["analysis=none", "analysis.pairs=4"]
    assert command("train.py", "-m", *asked, *few, f"output={tmp_path}") == 0
    said = capsys.readouterr().out
    assert "BM25" in said and str(tmp_path / "comparison.html") in said
    runs = sorted(path.parent for path in tmp_path.glob("*/metrics.json"))
    assert len(runs) == 2
    out = tmp_path / "again"
    compared = f"runs=[{runs[0]},{runs[1]}]"
    assert command("-m", "analysis.compare", compared, f"output={out}") == 0
    for name in ("comparison.csv", "comparison.md", "comparison.html"):
        assert without_links(out / name) == without_links(tmp_path / name)
    small = ["analysis.pairs=4", "analysis.sample_pairs=2", "analysis.queries=2"]
    assert command("-m", "analysis.run", f"run={runs[0]}", *small) == 0
    assert "analysed" in capsys.readouterr().out
