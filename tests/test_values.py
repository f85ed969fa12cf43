"""Bad values are refused before anything is built: one line, the key named, no folder."""

import os
import subprocess
import sys
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

import train
from conf.checks import check_values, find_types, walk
from conf.command import compose_command, report_errors, run_command
from conf.rules import RULES
from gr_mvdr.options import Size

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir())

# Overrides, of which the last is at fault. Another key that the message names: "→ key".
BAD = """
retrieval_depth=0
retrieval_depth=-1
retrieval_depth=abc
retrieval_depth=null
retrieval_depth=1.5
retrieval_depth=true
retrieval_depth=[100]
retrieval_depth=1e3
retrieval_depth='100'
query_length=0
query_length=1
query_length=-5
query_length=null
query_length=long
data.training_length=1
document_length=0
document_length=1
document_length=1e9
document_length=[1,2]
seed=-1
seed=4294967296
seed=1.5
seed=null
seed=abc
seed=true
resume=maybe
resume=1
resume=null
resume=[true]
name=null
name=''
name=..
name=../x
name=a/../../b
name=/tmp/elsewhere
output=null
output=5
output=''
system=null
system=''
system=7
weights=5
weights=''
initial=5
initial=''
rerank=null
rerank=5
rerank=relevance
rerank=[relevance]
neighbours=5 model.search.neighbours=0
tokenizer.vocab_size=6
tokenizer.vocab_size=0
tokenizer.vocab_size=-1
tokenizer.vocab_size=null
tokenizer.vocab_size=many
tokenizer.unit=letter
tokenizer.unit=null
tokenizer.lowercase=2
tokenizer.lowercase=null
tokenizer.path=5
tokenizer=null
tokenizer.special_tokens=null
backbone.name=5
backbone.dropout_rate=1
backbone.dropout_rate=-0.1
backbone.dropout_rate=nan
backbone.attention=flash
backbone.gradient_checkpointing=sometimes
backbone.shape.d_model=0
backbone.shape.num_layers=-1
backbone.shape.num_layers=0
backbone.shape.num_heads=1.5
backbone.shape.d_ff=null
backbone.shape.d_kv=abc
trainer.max_epochs=null
trainer.max_epochs=-1
trainer.max_epochs=0
trainer.max_epochs=some
trainer.max_epochs=1.5
trainer.max_steps=null
trainer.max_steps=0
trainer.max_steps=-2
trainer.accelerator=tpu9
trainer.accelerator=null
trainer.devices=2x
trainer.devices=0
trainer.devices=-2
trainer.devices=null
trainer.devices=[]
trainer.devices=[-1]
trainer.devices=1.5
trainer.num_nodes=0
trainer.num_nodes=null
trainer.precision=foo
trainer.precision=8
trainer.precision=null
trainer.gradient_clip_val=-1
trainer.gradient_clip_val=nan
trainer.gradient_clip_val=high
+trainer.accumulate_grad_batches=0
+trainer.accumulate_grad_batches=null
+trainer.limit_train_batches=1.5
+trainer.limit_train_batches=-1
+trainer.limit_train_batches=0
+trainer.limit_train_batches=0.0
+trainer.enable_checkpointing=false
+trainer.strategy=dppp
+trainer.strategy=5
+trainer.max_hours=3
+backbone.shape.d_model_size=32
+model.search.normalise=vocabulary
model=t5_seal +model.evidence.gamma=2
trainer.log_every_n_steps=-1
trainer.callbacks=null
trainer.callbacks=[5]
trainer.plugins=5
trainer=5
data.batch_size=0
data.batch_size=-4
data.batch_size=64.0
data.batch_size=null
data.num_workers=-1
data.num_workers=two
data.candidates=0
data.candidates=-1
data.candidates=null
data.candidates_run=5
data.identifiers=5
data.add_relevant=perhaps
data.drop_identical=null
data.max_test_queries=0
data.max_test_queries=-1
data.max_test_queries=all
data.max_rerank_queries=0
data.max_rerank_queries=-3
data.max_rerank_queries=0.5
data.metrics=[]
data.metrics=recall@1
data.metrics=[foo@0]
data.metrics=[recall]
data.metrics=[recall@0]
data.metrics=[recall@ten]
data.metrics=[bpref@10]
data.metrics=null
data.groups=(
data.shard=4
data.shard=4/4
data.shard=-1/4
data.shard=0/2
data.text_fields=[]
data.text_fields=title
data.text_fields=[1]
data.cleaning=[soap]
data.cleaning=html
data.cleaning=null
data.empty_documents=drop
data.empty_documents=true
data.store=3
data.test_split=5
data.test_split=''
data.test_split=[1]
data.train_split=[train]
data.validation_split=0
data.new_documents=null
data.n_documents=0
data.n_documents=null
data.train_questions=0
data.collection_seed=-1
data.examples=null
data=files data.path=null
data=files data.path=5
data=files data.path=x data.format=5
data=public data.name=''
data=nq320k data.path=x data.text=[]
data=nq320k data.path=x data.first_tokens=0
data=nq320k data.path=x data.check_counts=no_idea
data=msmarco_doc data.path=x data.document_ids=1
negatives=bm25 data.examples.negatives.n=0
negatives=bm25 data.examples.negatives.n=some
negatives=bm25 data.examples.negatives.depth=-1
negatives=bm25 data.examples.negatives.teacher=1
negatives=run data.examples.negatives.path=null
indexing=first_tokens data.indexing.ratio=-1
indexing=first_tokens data.indexing.ratio=nan
indexing=first_tokens data.indexing.ratio=inf
indexing=first_tokens data.indexing.inputs.length=0
experiment=pretrain data.examples.inputs.density=0
experiment=pretrain data.examples.inputs.mean_span=0.5
indexing=first_tokens data.indexing.inputs=null
indexing=random_spans data.indexing.inputs.unit=letters
indexing=seal data.indexing.inputs.max_tokens=0
model.dimension=0
model.dimension=128.5
model.dimension=null
model.normaliser=sum
model.projections=separate
model.gradient_cache=0
model.expansion_length=1
model.loss=null
model.loss.temperature=0
model.loss.temperature=nan
model.loss.temperature=-0.05
model.loss._target_=gr_mvdr.losses.Nothing
model.optimizer=null
model.optimizer.learning_rate=abc
model.optimizer.learning_rate=null
model.optimizer.learning_rate=-1
model.optimizer.learning_rate=0
model.optimizer.learning_rate=nan
model.optimizer.learning_rate=inf
model.optimizer.learning_rate=true
model.optimizer.learning_rate=[0.1]
model.optimizer.weight_decay=-0.01
model.optimizer.weight_decay=null
model.optimizer.schedule=cosine
model.search=null
model.search.mode=quick
model.search.dtype=int8
model.search.dtype=pq model.search.pq_bytes=7
model.search.pq_bytes=0
model.search.neighbours=-1
model.search.neighbours=null
model.search.probes=0
model.search.lists=0
model.search.refine=-1
model.search.imputation=guess
model.search.imputation=nan
model.search.keep_query=0
model.search.keep_document=1.5
model.search.seed=-1
+model.colour=red
alignment=top_k model.alignment.k=0
alignment=top_p model.alignment.p=0
alignment=top_p model.alignment.p=2
alignment=soft_top_k model.alignment.epsilon=0
alignment=softmax model.alignment.direction=sideways
alignment=in_batch_top_k model.alignment.k=many
model.pooling.document=null
pooling@model.pooling.document=temporal model.pooling.document.factor=0
pooling@model.pooling.document=learned_tokens model.pooling.document.k=-1
salience=lp model.salience.query.gate=soft
salience=lp model.salience.query.sparsity=0
salience=lp model.salience.document.epsilon=nan
salience=lp model.salience.document.solver=exactly
salience=l1 model.salience.query.l1=0
salience=bm25 model.salience.document.b=2
salience=learned_bm25 model.salience.document.prior.k1=-1
model=aligner model.optimizer.learning_rate=1e400
model=bm25 model.k1=-1
model=bm25 model.b=1.5
model=splade model.keep.document=0
model=splade model.regulariser.query=-1
model=splade model.initial_bias=low
model=splade model.initial_bias=1e30
model=splade model.initial_bias=-1e30
model.search.pq_bytes=8
model.expansion_length=16
model.attend_expansion=false
tokenizer.markers.query=Q tokenizer.markers.document=Q
data.test_split=[test,test]
data.new_documents=[test,test]
data.text_fields=[text,text]
model=cross_encoder model.pooling=max
model=cross_encoder model.negatives_per_query=0
model=cross_encoder model.depth=0
model=query_generator model.top_k=0
model=query_generator model.n_queries=null
model=t5_seal model.key_length=0
model=t5_seal model.key_length=1000
model=t5_seal model.beam_size=0
model=t5_seal model.label_smoothing=-1
model=t5_seal model.label_smoothing=nan
model=t5_seal model.label_smoothing=1
model=t5_seal model.evidence.alpha=0
model=t5_seal model.evidence.beta=2
model=t5_seal model.evidence.smoothing=-1
model=t5_seal model.evidence.max_occurrences_1=-1
model=t5_seal rerank.paper.pool=median
model=t5_seal rerank.paper.segments.n_spans=0
model=t5_seal rerank.paper.segments=null
model=t5_seal data.examples.n_spans=0
model=t5_seal spans.temperature=0
model=t5_seal spans.max_tokens=0
model=genre model.beam_size=many
model=genre model.length_penalty=nan
model=genre model.length_penalty=-5
model=genre model.decoder_layers=0
model=genre model.decoder_layers=-1
model=genre model.consistency=-0.1
model=genre model.trained_rows=some
model=genre model.identifiers.missing=ignore
model=genre model.identifiers.long=wrap
model=genre model.identifiers.max_length=1
model=genre model.identifiers.first_tokens=0
model=genre_np_base model.head.clusters=0
model=genre_np_base model.head.form=quick
model=genre_np_async model.head.rebuild_every=0
model=genre_np_contrastive model.head.contrastive_epochs=0
model=dsi_pawa model.head.layers=0
model=dsi_pawa model.head.heads=-1
model=dsi_pawa model.head.dropout=1
model=dsi_semantic model.identifiers.k=1
model=dsi_semantic model.identifiers.k=two
model=dsi_semantic model.identifiers.leaf_size=0
model=dsi_semantic model.identifiers.balanced=half
model=dsi_semantic model.identifiers.new_documents=drop
model=dsi_semantic model.identifiers.embeddings.dimension=0
model=dsi_rq model.identifiers.levels=0
model=dsi_rq model.identifiers.codes=1
model=dsi_rq model.identifiers.quantiser=vq
model=dsi_rq model.identifiers.collisions=drop
model=dsi_rq model.identifiers.embeddings.run=""
model=dsi_pq model.identifiers.embeddings.otherwise.dimension=0
model=rerank_pipeline model.stages=null
model=rerank_pipeline model.stages=run
model=rerank_pipeline model.stages=[5]
model=rerank_pipeline model.stages=[{run:outputs/a,depth:0},{run:outputs/b}] → model.stages.0.depth
model=rerank_pipeline model.stages=[{run:5}] → model.stages.0.run
analysis=null
analysis.pairs=-1
analysis.pairs=1.5
analysis.pairs=null
analysis.precision=foo
analysis.precision=32
analysis.cases=-1
analysis.curve_pairs=-1
analysis.queries=abc
analysis.search_queries=-2
analysis.sample_pairs=true
analysis.questions=all
analysis.questions=5
analysis.questions.kernel.features=[]
analysis.questions.kernel.features=[0]
study=adaptation study.k=[0]
study=adaptation study.p=[1.5]
study=adaptation study.alignments=[{_target_:gr_mvdr.alignment.TopK,k:0}] → study.alignments.0.k
study=adaptation study.settings={refine:[-1]} → study.settings.refine
study=adaptation study.folds_of=[]
study=adaptation study.depth=0
study=pruning study.settings.neighbours=[0]
study=pruning study.settings.keep_document=0.5
study=pruning study.settings.mode=[best]
study=pruning study.curves.log=maybe
study=5
logger=wandb logger.offline=perhaps
trainer=fsdp trainer.strategy.tensor_parallel_size=0
"""
# Of the other commands: the configuration, the overrides.
BAD_ELSEWHERE = """
analyse run=5
analyse run=x peers=y
analyse run=x peers=[1]
analyse run=x analysis.pairs=-1
analyse run=x analysis.precision=foo
compare runs=null
compare runs=[1]
compare runs=[a] mixed=perhaps
compare runs=[a] output=5
fuse runs=[a,b] method=best
fuse runs=[a,b] norm=percent
fuse runs=[a,b] part_weights=[1]
fuse runs=[a,b] metrics=[bpref]
export run=x check=maybe
export run=x output=3
export run=5
mteb run=. tasks=5
build data=files data.path=5
build data.n_documents=0
build data=public data.name=x data.empty_documents=hide
"""


@cache
def base(name: str, *groups: str) -> dict:
    """A configuration with the options of its groups: composing takes a while."""
    further = ["name=run"] if name == "train" else []
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_container(compose(name, [*further, *groups]))


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
    """Whether an override chooses a group's file."""
    key, _, value = override.partition("=")
    return (CONF / key.partition("@")[0] / f"{value}.yaml").is_file()


def rows(table: str) -> list[tuple[list[str], str]]:
    found = []
    for line in table.strip().splitlines():
        typed, _, key = line.partition(" → ")
        overrides = typed.split()
        found.append((overrides, key or overrides[-1].partition("=")[0].lstrip("+")))
    return found


def refusal(name: str, overrides: list[str]) -> str:
    with pytest.raises(SystemExit) as raised, report_errors():
        check_values(configuration(name, overrides))
    return str(raised.value.code)


def assert_one_line(said: str, key: str) -> None:
    assert said.startswith(f"error: {key}="), said
    assert len(said.splitlines()) == 1 and len(said) < 800 and "Traceback" not in said, said


@pytest.mark.parametrize(("overrides", "key"), rows(BAD), ids=lambda value: str(value)[-60:])
def test_a_bad_value_is_refused_in_one_line_that_names_the_key(overrides, key):
    said = refusal("train", overrides)
    assert_one_line(said, key)


@pytest.mark.parametrize(("words", "key"), rows(BAD_ELSEWHERE), ids=lambda value: str(value)[-60:])
def test_so_it_is_by_the_other_commands(words, key):
    assert_one_line(refusal(words[0], words[1:]), key)


def test_there_are_as_many_as_were_tried():
    assert len(rows(BAD)) + len(rows(BAD_ELSEWHERE)) >= 230


# What only several keys together, the file system or the machine show.
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("output=FILE", "output=FILE: must be a folder, FILE is a file"),
        ("output=FILE/below", "output=FILE/below: must be a folder, FILE is a file"),
        ("run=FILE", "run=FILE: must be a folder, FILE is a file"),
        ("trainer.max_epochs=-1", "trainer.max_epochs=-1: must be ≥ 1 without trainer.max_steps"),
        ("document_length=8 model=t5_seal", "model.key_length=10: must be ≤ document_length=8"),
        (
            "model.search.dtype=pq model.search.pq_bytes=16 model.dimension=100",
            "model.search.pq_bytes=16: must divide",
        ),
        ("query_length=0", "query_length=0: must be a whole number ≥ 2"),
        ("name=x-${nothing}", "name: Interpolation key 'nothing' not found"),
        ("data=files", "data.path=…: must be given on the command line"),
    ],
)
def test_values_are_refused_together_and_named_as_they_were_typed(overrides, said, tmp_path):
    file = tmp_path / "file"
    file.touch()
    found = refusal("train", overrides.replace("FILE", str(file)).split())
    assert found.startswith(f"error: {said.replace('FILE', str(file))}"), found
    assert len(found.splitlines()) == 1


@pytest.mark.parametrize("accelerator", ["gpu", "cuda"])
def test_a_gpu_is_refused_where_there_is_none(accelerator, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    said = refusal("train", [f"trainer.accelerator={accelerator}"])
    assert_one_line(said, "trainer.accelerator")
    assert_one_line(refusal("train", ["trainer.devices=[0,1]"]), "trainer.devices")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    check_values(
        configuration("train", [f"trainer.accelerator={accelerator}", "trainer.devices=2"])
    )
    for devices in ("3", "[0,2]", "'0,2'"):
        for kind in (accelerator, "auto"):
            asked = [f"trainer.accelerator={kind}", f"trainer.devices={devices}"]
            assert_one_line(refusal("train", asked), "trainer.devices")


GOOD = """
model.optimizer.learning_rate=1e-3
model.optimizer.learning_rate=3E-5
model.optimizer.learning_rate=1
model.optimizer.weight_decay=0
data.metrics=[recall@1000,success@5,nDCG@10,RR@10,hit_rate@1]
data.max_rerank_queries=null
data.test_split=test
data.test_split=[test]
data.cleaning=[html,unicode]
trainer.devices=auto
trainer.devices=-1
trainer.devices=[0,1]
trainer.devices='0,1'
trainer.max_steps=5 trainer.max_epochs=-1
trainer.max_steps=5 trainer.max_epochs=null
trainer.max_epochs=null +trainer.max_time=00:01:00:00
trainer.precision=16
trainer.precision=bf16
trainer.gradient_clip_val=null
+trainer.limit_train_batches=0.5
+trainer.limit_train_batches=3
+trainer.limit_val_batches=0
+trainer.accumulate_grad_batches=2
+trainer.strategy=ddp
model=xtr model.search.mode=exact
model.search.probes=null
model.search.imputation=0.2
model.search.dtype=pq model.search.pq_bytes=8
tokenizer.expansion='[MASK]' model.attend_expansion=false
name=a/b-seed1
name=5
model=genre model.length_penalty=0
model=bm25 model.k1=0
model=t5_seal rerank={}
analysis.questions=null
analysis.questions.kernel=null
study=pruning study.settings=[{mode:[gather],neighbours:[10]}]
+data.examples.negatives=null
model=t5_seal +model.evidence.special_ids=[0,1,2]
model=aligner +model.salience.document.iterations=5
+backbone.shape.num_decoder_layers=1
+analysis.questions.deletion.draws=5
+analysis.questions.token_retrieval.neighbours=50
"""


@pytest.mark.parametrize("overrides", [line.split() for line in GOOD.strip().splitlines()])
def test_good_values_pass(overrides, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    check_values(configuration("train", overrides))


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def combinations() -> list[list[str]]:
    """Every model, every data, and of the groups that go with them the n-th options together."""
    found = [[f"model={model}", "data=beir"] for model in options("model")]
    found += [["model=genre", f"head={head}"] for head in options("head")]
    found += [[f"model={model}", "backbone=pretrained"] for model in ("t5_seal", "mva")]
    found += [["analysis=none"], ["data=files", "smoke=small"]]
    found += [[f"experiment={name}"] for name in ("seal_full", "query_generation")]
    groups = [g for g in GROUPS if g in ("alignment", "salience", "negatives", "indexing", "study")]
    found += [["model=genre", f"ranking={ranking}"] for ranking in options("ranking")]
    groups += ["data", "trainer", "logger", "pooling@model.pooling.document"]
    for number in range(max(len(options(group.partition("@")[0])) for group in groups)):
        chosen = []
        for group in groups:
            names = options(group.partition("@")[0])
            chosen.append(f"{group}={names[number % len(names)]}")
        found.append([*chosen, "collection=beir/nq"])
    return found


@pytest.mark.parametrize("overrides", combinations(), ids="-".join)
def test_every_key_is_declared_and_every_default_is_valid(overrides, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)  # as trainer=fsdp asks for
    config = OmegaConf.create(base("train", *overrides))
    for key, value in walk(OmegaConf.to_container(config)):
        if value == "???":
            OmegaConf.update(config, key, ".")  # a folder that is there
    check_values(config)
    assert not undeclared_keys(config)


@pytest.mark.parametrize(
    "name",
    ["analyse", "compare", "export", "build", "mteb", "fuse", "axioms", "claims", "results"],
)
def test_the_keys_of_other_commands_are_declared(name):
    config = OmegaConf.create(base(name))
    check_values(config)
    assert not undeclared_keys(config)


def undeclared_keys(config) -> list[str]:
    """The keys whose values neither the table nor a signature declares."""
    nodes = dict(walk(OmegaConf.to_container(config)))
    return [
        key
        for key, value in nodes.items()
        if not isinstance(value, dict)
        and not key.rpartition(".")[2].startswith("_")
        and not any(fnmatchcase(key, pattern) for pattern in RULES)
        and not any(map(says_its_values, find_types(nodes, key)))
    ]


def says_its_values(kind: Any) -> bool:
    """Whether a type restricts its values: int, float and text alone do not."""
    if get_origin(kind) in (Annotated, Literal):
        return True
    parts = [part for part in get_args(kind) if part is not type(None)]
    if dict in (kind, get_origin(kind)):  # its keys are declared each by themselves
        return True
    return all(map(says_its_values, parts)) if parts else kind is bool


def test_a_new_key_must_be_declared():
    config = OmegaConf.create({**base("train"), "colour": "red", "rooms": [{"size": 3}]})
    assert undeclared_keys(config) == ["colour", "rooms", "rooms.0.size"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Size, True),
        (bool | None, True),
        (Literal["a", "b"] | Size | None, True),
        (list[Size] | None, True),
        (int, False),
        (list[str], False),
        (Size | float, False),
        (Any, False),
    ],
)
def test_a_type_without_a_range_declares_nothing(kind, expected):
    assert says_its_values(kind) == expected


# What Hydra itself refuses.
TYPED = [
    ("model=typo", "model=typo: must be one of aligner, bm25, coil, "),
    ("trainer=typo", "trainer=typo: must be one of default, fsdp"),
    ("foo=1", "foo=1: no such key, +foo=… adds it"),
    ("trainer.max_tme=1", "trainer.max_tme=1: no such key, did you mean trainer.max_time"),
    ("model.foo=1", "model.foo=1: no such key"),
    ("model.query_ngrams=3", "model.query_ngrams=3: not a key of the chosen model"),
    ("model.evidence.special_ids=[0]", "model.evidence.special_ids=[0]: no such key"),
    ("trainings=5", "trainings=5: no such key"),
    ("path=x", "path=x: no such key, did you mean data.path or tokenizer.path?"),
    ("modle=bm25", "modle=bm25: no such key, did you mean model?"),
    ("model=t5_colbertt", "model=t5_colbertt: must be one of "),
    ("bach_size=8", "bach_size=8: no such key, did you mean data.batch_size?"),
    ("data.path=x", "data.path=x: not a key of the chosen data, data=files or "),
    ("trainer.devices=2x", "trainer.devices=2x: must be a whole number"),
    ("+seed=2", "Could not append to config. An item is already at 'seed'."),
    ("a=b=c", "a=b=c: "),
    ("--model=bm25", "--model=bm25: must be key=value without dashes, did you mean model=bm25?"),
    ("--batch-size=8", "--batch-size=8: must be key=value without dashes, did you mean data.batch"),
    (
        "--backbone.name=t5-small",
        "--backbone.name=t5-small: must be key=value without dashes, did "
        "you mean backbone.name=t5-small?",
    ),
    ("data.metrics.1.x=2", "data.metrics.1.x=2: no such key"),
    ("-model=bm25", "-model=bm25: must be key=value without dashes, did you mean model=bm25?"),
    ("--cfg=jobs", "--cfg=jobs: argument --cfg/-c: invalid choice: 'jobs'"),
    ("seed", "seed: Error parsing override 'seed' missing EQUAL"),
    ("data.metrics=[recall@1", "data.metrics=[recall@1: "),
    ("salience=null", "salience=null: must be one of bm25, hard, "),
    ("analysis=5", "analysis=5: must be one of full, none"),
    ("data.path='x", "data.path='x: "),
    ("~nothing", "Could not delete"),
    ("nogroup@here=5", "Override nogroup@here=5 looks like a config group"),
    ("retrieval_depth=0", "retrieval_depth=0: must be a whole number ≥ 1"),
    ("smoke=huge", "smoke=huge: must be one of aligner, gr_as_mvdr, mva, small, xtr"),
]


@pytest.mark.parametrize(("typed", "said"), TYPED)
def test_what_hydra_refuses_is_one_line_too(typed, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", f"output={tmp_path}/o", "logger=none", typed])
    with pytest.raises(SystemExit) as raised:
        run_command("train", "train:main")
    found = str(raised.value.code)
    assert found.startswith(f"error: {said}") and len(found.splitlines()) == 1, found
    assert capsys.readouterr().err == "" and not any(tmp_path.iterdir())


# The files of `conf` leave these keys out; a class takes them, or the rules know them.
ADDED = """
trainer.accumulate_grad_batches=2
backbone.shape.feed_forward_proj=gated-gelu
model=t5_seal model.evidence.special_ids=[0,1]
experiment=smoke trainer.check_val_every_n_epoch=3
"""


@pytest.mark.parametrize("typed", [line.split() for line in ADDED.strip().splitlines()])
def test_a_key_that_a_class_takes_needs_no_plus(typed, tmp_path, monkeypatch):
    key, _, value = typed[-1].partition("=")
    jobs = []

    def note(config):
        jobs.append((config.name, config.seed, OmegaConf.select(config, key)))

    note(compose_command("train", typed))
    monkeypatch.setattr(train, "main", note)
    for moment in ("start", "end"):  # no group for wandb, no comparison
        monkeypatch.setattr(f"analysis.sweep.CompareRuns.on_multirun_{moment}", lambda *_, **__: 0)
    for sweep in ([], ["-m", "seed=1,2"]):
        monkeypatch.setattr(sys, "argv", ["train.py", *sweep, *typed, f"output={tmp_path}"])
        run_command("train", "train:main")
    note(compose_command("train", [*typed[:-1], f"+{typed[-1]}"]))
    assert {str(job[2]) for job in jobs} == {str(OmegaConf.create(f"v: {value}").v)}
    assert [job[1] for job in jobs] == [1, 1, 1, 2, 1]
    assert len({name for name, seed, _ in jobs if seed == 1}) == 1


def test_a_fault_of_the_code_keeps_its_traceback(monkeypatch, tmp_path):
    def broken(config):
        raise KeyError("broken")

    monkeypatch.setattr(train, "train", broken)
    monkeypatch.setattr(sys, "argv", ["train.py", "model=bm25", f"output={tmp_path}"])
    with pytest.raises(KeyError, match="broken"):
        run_command("train", "train:main")


COMMANDS = """
train.py retrieval_depth=0 → retrieval_depth=0
train.py model=typo → model=typo
train.py data.metrics=[recall@1 → data.metrics=[recall@1
train.py data=beir data.path=nowhere → nowhere
train.py -m retrieval_depth=0,-1 → retrieval_depth=0
-m analysis.run run=nowhere analysis.pairs=-1 → analysis.pairs=-1
-m analysis.compare runs=[] → runs: no finished run
-m analysis.export run=nowhere check=maybe → check=maybe
-m data_modules.build data.n_documents=-1 → data.n_documents=-1
"""


# Importing any of these takes longer than all that is needed to refuse a command line.
HEAVY = "torch pytorch_lightning transformers datasets matplotlib pandas sklearn".split()
LIGHT = """
train.py --help
train.py path=x
train.py model=typo
train.py retrieval_depth=0
train.py +model.typo=1
train.py -m seed=x,1 logger=none
-m analysis.run --help
-m analysis.run run=nowhere
-m analysis.compare --help
-m analysis.compare runs=[nowhere]
-m analysis.fuse --help
-m analysis.results runs=[nowhere]
-m analysis.export --help
-m analysis.export run=nowhere
-m data_modules.build --help
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
    assert "(key=value)" in done.stdout or "--help" not in line
    imported = {text.rpartition("|")[2].strip() for text in done.stderr.splitlines()}
    assert not imported & set(HEAVY)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] in ([], ["multirun.yaml"])


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS.strip().splitlines())
def test_a_command_ends_with_status_one_and_leaves_nothing(line, tmp_path):
    command, _, said = line.partition(" → ")
    words = command.split()
    if words[0] == "train.py":
        words = [str(ROOT / "train.py"), *words[1:], f"output={tmp_path}/o", "logger=none"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ") and said in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    # Hydra says what a sweep goes through before the first run.
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] in ([], ["multirun.yaml"])
    assert not [path for path in tmp_path.rglob("*") if path.is_dir() and path.name != "o"]
