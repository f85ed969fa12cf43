"""Every code block of the README and of docs/ runs as printed, in an empty folder, made small.

A block without a language is shell; `text` is no code. A block of Python or YAML after "`FILE`:" is
the content of that file, which the blocks below it find. `<!-- no-test: REASON -->` above a block
leaves it out, but its training commands still compose.
"""

import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt

from conf.composition import prepare_arguments
from tests.runs import NO_ANALYSIS, TINY, command, compose_config, undrawn
from train import train

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
COLLECTION = ROOT / "tests/fixtures/small_collection"
NOT_RUN = {"GPUs": 2, "hub": 3, "installs": 2, "server": 2}  # reason → blocks
# Pages whose commands took hours, or read collections that are not here.
RECORDS = ("benchmarks.md", "reproduce.md", "results.md")

# Words of a block, and what they stand for here; the last two make sweeps small.
WORDS = {
    **{"FOLDER": str(COLLECTION), "GR_MVDR": str(ROOT), "USER/NAME": "owner/name", "WEIGHT": "2"},
    **{"seed=1,2": "seed=1", "seed=1,2,3": "seed=1 model=genre,dsi_semantic"},
}
# The finished runs below outputs/.
COLBERT = ("t5_colbert", *TINY)
OWN = {"A": "bm25", "B": "t5_colbert"}  # on the collection of FOLDER
RUNS = {
    **{"RUN": COLBERT, "demo": COLBERT, "DSI": ("dsi_semantic", *TINY)},
    **{"OTHER": ("bm25",), "BM25": ("bm25",)},
}
# What makes a command small; a key that a block types wins.
SHORT = ("logger=none", *NO_ANALYSIS)
FEW = [f"{kind}queries=2" for kind in ("", "search_", "case_", "patched_", "axiom_")]
SMALL = {
    "train.py": (*SHORT, "data.n_documents=50", *TINY),
    "analysis.run": [f"analysis.{size}" for size in ("pairs=4", "sample_pairs=2", *FEW)],
}


class Block(NamedTuple):
    """A code block, the file that it is (or ""), why it is not run (or ""), the files above it."""

    name: str
    kind: str
    text: str
    file: str
    reason: str
    files: dict[str, str]


def read_blocks(page: Path) -> Iterator[Block]:
    above, files, number = "", {}, 0
    for token in MarkdownIt("commonmark").parse(page.read_text()):
        kind = token.info.partition("{")[0] if token.info else "shell"  # {…} is Sphinx's own
        if token.type in ("html_block", "inline"):
            above = token.content
        elif token.type in ("fence", "code_block") and kind not in ("text", ""):
            number += 1
            file = re.search(r"`([\w/]+\.(?:py|yaml))`(?: \([^)]*\))?:$", above)
            reason = re.search("no-test: (.+) -->", above)
            why = "records" if page.name in RECORDS else reason[1] if reason else ""
            name, above = file[1] if file else "", ""
            yield Block(f"{page.name}-{number}", kind, token.content, name, why, dict(files))
            files |= {name: token.content} if name else {}


BLOCKS = [block for page in PAGES for block in read_blocks(page)]


def parameters(marked: bool) -> list:
    """The blocks that are marked, or not; those that train or start commands are slow."""
    chosen = [block for block in BLOCKS if bool(block.reason) == marked and not block.file]
    slow = {True: [pytest.mark.slow], False: []}
    return [
        pytest.param(one, id=one.name, marks=slow[one.kind == "shell" and not marked])
        for one in chosen
    ]


def lines_of(block: Block) -> tuple[str, list[list[str]]]:
    """Its text with `WORDS` replaced, and the words of its lines if it is shell."""
    words = "|".join(map(re.escape, WORDS))
    text = re.sub(rf"(?<!\w)(?:{words})(?![\w,])", lambda word: WORDS[word[0]], block.text)
    lines = text.replace("\\\n", "").splitlines() if block.kind == "shell" else ()
    return text, [words for line in lines if (words := shlex.split(line, comments=True))]


def test_the_readme_is_a_page_and_blocks_are_left_out_for_a_reason_that_is_counted():
    assert len(PAGES[0].read_bytes()) <= 8192
    assert {block.kind for block in BLOCKS} <= {"python", "shell", "yaml"}
    assert Counter(one.reason for one in BLOCKS if one.reason not in ("", "records")) == NOT_RUN


@pytest.mark.parametrize("block", parameters(marked=True))
def test_the_training_commands_of_a_block_that_is_not_run_compose(block):
    """A key or an option that has another name now would stop them."""
    for words in lines_of(block)[1]:
        if words[:2] == ["python", "train.py"] and "…" not in words:
            keys = [w for w in prepare_arguments(words[2:]) if w[0] != "-" and w[:5] != "hydra"]
            compose_config("train", *(re.sub(r"(=[^][,]+),.*", r"\1", key) for key in keys))
    if block.kind == "python":
        compile(block.text, block.name, "exec")


@pytest.mark.parametrize("block", parameters(marked=False))
def test_a_code_block_runs_as_printed(block, tmp_path, monkeypatch, finished_run, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, content in block.files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    text, lines = lines_of(block)
    if "owner/name" in text:
        request.getfixturevalue("hub")
    with undrawn():
        make_what_it_reads(text, finished_run)
        monkeypatch.setattr("analysis.explore.open_port", nullcontext)
        monkeypatch.setattr("analysis.explore.serve", lambda *_: None)
        for words in lines:
            assert run_small(words) == 0, words
        if block.kind == "python":
            for library in re.findall("^import (mteb|pyterrier)", text, re.M):
                pytest.importorskip(library)
            small = [*SHORT, "experiment=smoke"]
            monkeypatch.setattr("train.train", lambda asked: train([*asked, *small]))
            exec(text, {})


def make_what_it_reads(text: str, finished_run) -> None:
    """Makes the runs and files that a block names and does not make."""
    for name in {*re.findall(r"outputs/(\w+)", text)} & {*RUNS}:
        shutil.copytree(finished_run(*RUNS[name]), f"outputs/{name}")
        if f'"outputs/{name}/export"' in text:
            assert run_small(["python", "-m", "analysis.export", f"run=outputs/{name}"]) == 0
        if f"outputs/{name}/alignments" in text:
            asked = ["python", "-m", "analysis.run", f"run=outputs/{name}", "analysis=none"]
            assert run_small(asked) == 0
    ids = pd.read_json(COLLECTION / "corpus.jsonl", lines=True, dtype={"_id": str})["_id"].tolist()
    vectors = list(np.random.default_rng(0).random((len(ids), 8), np.float32))
    pd.DataFrame({"id": ids, "vector": vectors}).to_parquet("items.parquet")
    Path("docids.tsv").write_text("".join(f"{name}\t<1_{n}>\n" for n, name in enumerate(ids)))
    Path("passages.csv").write_text("text\nThe bridge.\nThe river.\n")
    rows = "".join(f"Where is {n}?,The answer {n % 9}.\n" for n in range(60))
    Path("faq.csv").write_text(f"question,answer\n{rows}")
    for name in {*re.findall(r"outputs/(\w+)", text)} & {*OWN}:
        data = ["data=files", f"data.path={COLLECTION}", "data.test_split=[test,dev]"]
        asked = [f"model={OWN[name]}", *data, "output=outputs", f"name={name}"]
        assert run_small(["python", "train.py", *asked]) == 0
        shutil.copy(f"outputs/{name}/retrieve.trec", f"{name.lower()}.trec")


def run_small(words: list[str]) -> int | str:
    """Runs `python …` of a block, with what makes it small."""
    words = words[words.index("python") + 1 :]
    module, typed = (words[1], words[2:]) if words[0] == "-m" else (Path(words[0]).name, words[1:])
    keys = {word.lstrip("+").partition("=")[0] for word in typed}
    small = [one for one in SMALL.get(module, ()) if one.partition("=")[0] not in keys]
    if module == "train.py" and "--help" not in typed:
        chosen = [word.partition("=")[2] for word in typed if word.startswith("experiment=")]
        typed = [word for word in typed if not word.startswith("experiment=")]
        typed += [f"experiment=[{','.join([*chosen, 'smoke'])}]"]
        small = [one for one in small if "data" not in keys or "n_documents" not in one]
    return command(*(words[:2] if words[0] == "-m" else [module]), *typed, *small, folder=".")


def test_every_file_that_a_document_names_is_there():
    for document in (*PAGES, ROOT / "CONTRIBUTING.md"):
        text = document.read_text()
        links = re.findall(r"\]\(([^)#:]+)[^):]*\)", text)
        missing = [link for link in links if not (document.parent / link).exists()]
        paths = re.findall(
            r"`((?:gr_mvdr|models|data_modules|analysis|conf|tests|docs)/[^`*…]*(?:/|\.\w+))`",
            text,
        )
        named = [path for path in paths if not re.search("[A-Z]{4}", path)]  # NAME, PAPER
        shown = {block.file for block in BLOCKS}
        missing += [path for path in named if not (path in shown or (ROOT / path).exists())]
        assert not missing, (document.name, missing)


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
