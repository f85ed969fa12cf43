"""Bad values are refused before anything is built: one line, the key named, no folder."""

import math
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_object
from omegaconf import OmegaConf

import train
from conf.checks import check_values, walk
from conf.command import report_errors, run_command
from conf.composition import list_options, register_experiments, run_name
from conf.signatures import read_signature
from gr_mvdr.options import (
    ROOMS,
    admitting,
    find_part,
    find_targets,
    fits_type,
    inspect_signature,
)

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"

# What the user types, and the line that ends the command: one row for each kind of rule and for
# each way in which a key is declared.
MESSAGES = """
retrieval_depth=1e3 → retrieval_depth=1000.0: must be a whole number ≥ 1
resume=1 → resume=1: must be true or false
name=../x → name=../x: must be a folder's name within output=outputs
tokenizer.path=nowhere → tokenizer.path=nowhere: must be an existing file or folder or null
weights=nowhere → weights=nowhere: must be an existing folder or a hub name or null
backbone.dropout_rate=nan → backbone.dropout_rate=nan: must be a number ≥ 0 and < 1, or null
backbone=from_encoder +backbone.from_encoder.depth=2 → backbone.from_encoder.depth=2: must be one of
data.groups='(' → data.groups=(: must be a regular expression
data.views={a:nowhere} → data.views={'a': 'nowhere'}: must be a group of keys, each an existing
negatives=run → data.examples.negatives.teacher=null: must be an existing file or folder, unless
model.loss.temperature=0 → model.loss.temperature=0: must be a number > 0
model.loss._target_=gr_mvdr.losses.Nothing → model.loss._target_=gr_mvdr.losses.Nothing: cannot be
+model.colour=red → model.colour=red: must be one of
alignments.top_k={_target_:gr_mvdr.alignment.TopK,k:0} → alignments.top_k.k=0: must be a whole
model=rerank_pipeline model.stages=[{run:a,depth:0},{run:b}] → model.stages.0.depth=0: must be a
"""
# The same by the other commands: the configuration, then the overrides.
MESSAGES_ELSEWHERE = """
analyse run=nowhere → run=nowhere: no such run folder
compare runs=[.,nowhere] → runs=[., nowhere]: must be an existing file or folder or a list of them
build data.n_documents=0 → data.n_documents=0: must be a whole number ≥ 50 and ≤ 1,000,000
"""


@cache
def base(name: str, *groups: str) -> dict:
    """A configuration with the options of its groups: composing takes a while."""
    further = ["name=run"] if name == "train" else []
    register_experiments()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_container(compose(name, [*further, *groups]))


def test_help_leaves_registered_experiments_whole():
    register_experiments()
    register_experiments.__wrapped__(names_only=True)
    assert ConfigStore.instance().load("experiment/demo.yaml").node.trainer.max_epochs == 18


def configuration(name: str, overrides: list[str]):
    """What Hydra makes of a command line, its values read by Hydra's own grammar."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    groups = [text for text in overrides if is_choice(text)]
    config = OmegaConf.create(base(name, *groups))
    for override, text in zip(parsed, overrides, strict=True):
        if text not in groups:
            OmegaConf.update(config, override.key_or_group, override.value(), merge=False)
    return config


def is_choice(override: str) -> bool:
    """Whether an override chooses an option of a group."""
    key, _, value = override.partition("=")
    return value in options(key.partition("@")[0])


def rows(table: str) -> list[list[str]]:
    return [line.split(" → ") for line in table.strip().splitlines()]


def refusal(name: str, overrides: list[str]) -> str:
    with pytest.raises(SystemExit) as raised, report_errors():
        check_values(configuration(name, overrides))
    return str(raised.value.code)


def assert_one_line(said: str, start: str) -> None:
    assert said.startswith(f"error: {start}"), said
    assert len(said.splitlines()) == 1 and len(said) < 800 and "Traceback" not in said, said


@pytest.mark.parametrize(("typed", "message"), rows(MESSAGES))
def test_a_bad_value_is_refused_in_one_line_that_names_the_key(typed, message):
    assert_one_line(refusal("train", typed.split()), message)


@pytest.mark.parametrize(("typed", "message"), rows(MESSAGES_ELSEWHERE))
def test_the_other_commands_refuse_bad_values_too(typed, message):
    name, *overrides = typed.split()
    assert_one_line(refusal(name, overrides), message)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("class Mine:", "IndentationError: expected an indented block"),
        ("", "AttributeError: module 'own.part' has no attribute 'Mine'"),
    ],
)
def test_what_hinders_the_import_of_an_own_class_is_shown(text, cause, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/part.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("own", "own.part"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    rule = f"model.loss._target_=own.part.Mine: cannot be imported ({cause}"
    assert_one_line(refusal("train", ["model.loss._target_=own.part.Mine"]), rule)
    with admitting({"_target_": "own.part.Mine"}), pytest.raises(ValueError) as raised:
        find_part("model.loss", "own.part.Mine")
    assert str(raised.value).startswith(rule)


# The types that the checks read ----------------------------------------------------------------

PROBES = [None, True, -1, 0, 1, 2, 0.5, 2.0, math.nan, "", "x", [], [0], ["x"], {}, {"x": 0}]


def project_targets() -> set[str]:
    """The classes and functions of this project that a YAML names."""
    files = [OmegaConf.to_container(OmegaConf.load(file)) for file in CONF.rglob("*.yaml")]
    names = {name for content in files for name in find_targets(content)}
    return {name for name in names if name.partition(".")[0] in ROOMS}


def test_a_signature_read_from_source_accepts_what_the_imported_one_accepts():
    targets = project_targets()
    assert len(targets) > 40
    for path in targets:
        read, imported = read_signature(path), inspect_signature(get_object(path))
        assert read is not None, path
        # A parent in a library may take further options, which it checks itself.
        assert read.open_ended or read.types.keys() == imported.types.keys(), path
        for name, kind in ((n, kind) for n, kind in imported.types.items() if n in read.types):
            for value in PROBES:
                fits = fits_type(value, read.types[name]), fits_type(value, kind)
                assert fits[0] == fits[1], (path, name, value)


# What only several keys together show.
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("document_length=8 model=t5_seal", "model.key_length=10: must be ≤ document_length=8"),
        (
            "model.search.source.dtype=codes model.search.source.code_bytes=16 model.dimension=100",
            "model.search.source.code_bytes=16: must divide",
        ),
        ("query_length=0", "query_length=0: must be a whole number ≥ 2"),
        ("initial=. weights=.", "initial=.: must be null with weights"),
        ("name=x-${nothing}", "name: Interpolation key 'nothing' not found"),
        ("data=files", "data.path=…: must be given on the command line"),
    ],
)
def test_values_are_refused_together_and_named_as_they_were_typed(overrides, said):
    assert_one_line(refusal("train", overrides.split()), said)


GOOD = """
data.metrics=[nDCG@10,RR@10,hit_rate@1]
trainer.devices='0,1'
trainer.max_steps=5 trainer.max_epochs=-1
trainer.max_epochs=null +trainer.max_time=00:01:00:00
+trainer.limit_train_batches=0.5
search=impute model.search.scorer.imputation=0.2
analysis.questions.kernel=null
study=pruning study.settings=[{search:[gather],neighbours:[10]}]
+data.examples.negatives=null
model=aligner +model.salience.document.iterations=5
+analysis.questions.deletion.draws=5
"""


@pytest.mark.parametrize("overrides", [line.split() for line in GOOD.strip().splitlines()])
def test_good_values_pass(overrides):
    check_values(configuration("train", overrides))


def options(group: str) -> list[str]:
    return sorted({path.stem for path in (CONF / group).glob("*.yaml")} | {*list_options(group)})


def combinations() -> list[list[str]]:
    """Every model, every data, and of the groups that go with them the n-th options together."""
    found = [[f"model={model}", "data=beir"] for model in options("model")]
    found += [["model=genre", f"head={head}"] for head in options("head")]
    found += [[f"model={model}", "backbone=pretrained"] for model in ("t5_seal", "mva")]
    found += [["analysis=none"], ["data=files", "smoke=small"]]
    groups = ["alignment", "salience", "negatives", "indexing", "study"]
    found += [["model=genre", f"ranking={ranking}"] for ranking in options("ranking")]
    groups += ["data", "trainer", "logger", "pooling@model.pooling.document", "search", "source"]
    for number in range(max(len(options(group.partition("@")[0])) for group in groups)):
        chosen = []
        for group in groups:
            names = options(group.partition("@")[0])
            chosen.append(f"{group}={names[number % len(names)]}")
        found.append([*chosen, "collection=beir/nq"])
    return found


@pytest.mark.parametrize("overrides", combinations(), ids="-".join)
def test_every_default_is_valid(overrides):
    config = OmegaConf.create(base("train", *overrides))
    for key, value in walk(OmegaConf.to_container(config)):
        # What must be given is a folder that is there; a run is, unless there is a teacher.
        if value in ("???", "${data.examples.negatives.teacher}", "${data.new_documents}"):
            OmegaConf.update(config, key, ".")
    check_values(config)


# What Hydra itself refuses.
TYPED = [
    ("model=typo", "model=typo: must be one of aligner, bm25, coil, "),
    ("foo=1", "foo=1: no such key"),
    (
        "learning_rate=1e-5",
        "learning_rate=1e-5: no such key, did you mean model.optimizer.learning_r",
    ),
    ("trainer.foo=1", "trainer.foo=1: no such key, +trainer.foo=… adds it"),
    ("data.path=/a=b/c", "data.path=/a=b/c: must be quoted: \"data.path='/a=b/c'\""),
    (
        "data.metrics=[P(rel=2,judged_only=true)@1,judged@5]",
        "data.metrics=[P(rel=2,judged_only=true)@1,judged@5]: must be quoted: "
        "\"data.metrics=['P(rel=2,judged_only=true)@1','judged@5']\"",
    ),
    ("model.query_ngrams=3", "model.query_ngrams=3: not a key of the chosen model, model=t5_seal_"),
    ("data.path=x", "data.path=x: not a key of the chosen data, data=files or "),
    ("+seed=2", "Could not append to config. An item is already at 'seed'."),
    ("seed", "seed: Error parsing override 'seed' missing EQUAL"),
    ("salience=null", "salience=null: must be one of bm25, hard, "),
    ("--config-dir=/none", "Additional config directory '/none' not found"),
]


@pytest.mark.parametrize(("typed", "said"), TYPED)
def test_what_hydra_refuses_is_one_line_too(typed, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", f"output={tmp_path}/o", "logger=none", typed])
    with pytest.raises(SystemExit) as raised:
        run_command("train", "train:main")
    found = str(raised.value.code)
    assert found.startswith(f"error: {said}") and len(found.splitlines()) == 1, found
    assert capsys.readouterr().err == "" and not any(tmp_path.iterdir())


def test_a_runs_name_shows_what_a_sweep_varies():
    typed = ["data=files", "data.path=/a/nq", "backbone=pretrained", "backbone.name=/m/MiniLM"]
    typed += ["data.metrics=[recall@10,mrr@10]", "data.test_split=dev", "trainer.max_epochs=3"]
    names = [
        run_name("xtr", "files", [*typed, f"model.optimizer.learning_rate={rate}", "seed=2"])
        for rate in ("1e-5", "3e-05")
    ]
    short = [name.rpartition("-")[0] for name in names]
    for rate, name in zip(("1e-5", "3e-05"), short, strict=True):
        assert name.startswith(f"xtr-nq-seed2-learning_rate_{rate}-max_epochs_3-backbone_pretr")
    assert "--" not in run_name("bm25", "files", ["data=files", "data.path=/a/nq"])


def test_a_fault_of_the_code_keeps_its_traceback(monkeypatch, tmp_path):
    def broken(config):
        raise KeyError("broken")

    monkeypatch.setattr(train, "train", broken)
    monkeypatch.setattr(sys, "argv", ["train.py", "model=bm25", f"output={tmp_path}"])
    with pytest.raises(KeyError, match="broken"):
        run_command("train", "train:main")


# Importing any of these takes longer than all that is needed to refuse a command line.
HEAVY = "torch pytorch_lightning transformers datasets matplotlib pandas sklearn".split()
LIGHT = """
train.py --help
train.py -m seed=x,1 logger=none
-m analysis.compare runs=[nowhere]
-m data_modules.build data=files data.path=nowhere
"""


@pytest.mark.parametrize("line", LIGHT.strip().splitlines())
def test_help_and_errors_of_the_command_line_import_nothing_heavy(line, tmp_path):
    words = [str(ROOT / word) if word == "train.py" else word for word in line.split()]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == (0 if "--help" in line else 1), done.stderr[-2000:]
    said = [text for text in done.stderr.splitlines() if not text.startswith("import time:")]
    assert [text.partition(":")[0] for text in said] == ([] if "--help" in line else ["error"])
    if "--help" in line:  # it fits a screen and names every group
        assert "(key=value)" in done.stdout and len(done.stdout.splitlines()) <= 50
        for group in ("backbone", "data", "model", "trainer", "analysis", "logger", "experiment"):
            assert re.search(rf"^\s*{group}: ", done.stdout, re.M), group
    imported = {text.rpartition("|")[2].strip() for text in done.stderr.splitlines()}
    assert not imported & set(HEAVY)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] in ([], ["multirun.yaml"])
