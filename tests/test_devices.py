"""Every system on an accelerator that is not there: a tensor left on the CPU fails here first."""

import gc
from dataclasses import fields
from functools import partial

import pytest
import torch

from conf.launch import choose_precision
from tests.models.conftest import (
    MULTI_VECTOR,
    Texts,
    draw_tokens,
    make_batch,
    make_cross_encoder,
    make_docid,
    make_multi_vector,
    make_seal,
    make_splade,
    named_documents,
)
from tests.stand_in import DEVICE, OnDevice, stand_in
from tests.synchronisations import synchronisations

pytestmark = pytest.mark.filterwarnings("ignore:You are trying to `self.log")
PREFERENCE = {"_target_": "models.beyond.ranking_losses.PreferenceRanking"}


TF = {"_target_": "gr_mvdr.salience.FrequencySalience"}
GATHER = dict(search=dict(mode="gather", neighbours=4, probes=None, refine=2))
RERANK = dict(search=dict(mode="rerank", depth=3))
VIEWS = dict(special_tokens={"body": [50], "title": [51, 52], "title_end": [53]}, query_ngrams=2)
SYSTEMS = {
    **{kind: partial(make_multi_vector, kind) for kind in MULTI_VECTOR},
    "skip": partial(make_multi_vector, template={"skip": [10, 11]}),
    "frequency": partial(make_multi_vector, salience=dict.fromkeys(["query", "document"], TF)),
    "gather": partial(make_multi_vector, **GATHER),
    "gather-salience": partial(make_multi_vector, "aligner", **GATHER),
    "impute": partial(make_multi_vector, "xtr", search=dict(mode="impute", neighbours=9)),
    "fde": partial(make_multi_vector, search=dict(mode="one_vector", refine=2)),
    "rerank": partial(make_multi_vector, "mva", **RERANK),
    "cross-encoder": make_cross_encoder,
    "cross-encoder-first": partial(make_cross_encoder, pooling="first"),
    "splade": make_splade,
    "seal": make_seal,
    "views": partial(make_seal, **VIEWS),
    # Each head: how identifiers are made has no part in what is computed.
    **{
        kind: partial(make_docid, kind)
        for kind in ("atomic", "semantic", "semantic-pawa", "titles-nci", "titles-np")
    },
    "preference": partial(make_docid, "semantic", ranking=PREFERENCE),
}
# How often a training step makes the CPU wait for the device: SPLADE lists each side's terms of
# positive weight, and only the device knows how many there are.
WAITS = {"splade": 2}


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_works_on_its_device_in_mixed_precision_too(name):
    system, batch = SYSTEMS[name](), make_batch()
    if name == "preference":
        system.setup("fit")
    documents, queries = named_documents(), Texts(draw_tokens([4, 2, 11], seed=4), "q")
    candidates = dict.fromkeys(queries["id"], documents["id"][:3])
    check_mixed_precision(system, batch)
    with stand_in():
        batch = batch.to(DEVICE)
        system.to(DEVICE).zero_grad()
        if name == "preference":
            system.ranking_loss.frozen.to(DEVICE)  # once in a training
        with synchronisations() as waits:
            system.training_step(batch).backward()
        assert sum(waits.values()) == WAITS.get(name, 0), waits
        trained = [p for p in system.parameters() if p.grad is not None]
        assert trained and all(isinstance(p.grad, OnDevice) for p in trained)
        system.eval().index(documents)
        check_pairs(system, batch)
        ranking = system.retrieve(queries, 5)
        system.retrieve(queries, 5, documents["id"][:4], with_shares=True)
        system.rerank(queries, documents, candidates)
        system.statistics()
        system.search_fidelity(queries, ranking, 5)
    on_cpu = system.to("cpu").retrieve(queries, 5)
    for query in queries["id"]:
        assert ranking.scores(query) == pytest.approx(on_cpu.scores(query), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["aligner", "aligner-top-p", "aligner-soft", "semantic"])
def test_a_system_works_on_a_device_without_double_precision(name, monkeypatch):
    """As on MPS."""
    monkeypatch.setattr("gr_mvdr.alignment._NO_FLOAT64", (DEVICE.type,))
    system, queries = SYSTEMS[name](), Texts(draw_tokens([4, 2, 11], seed=4), "q")
    system.index(named_documents())
    on_cpu = system.retrieve(queries, 5)
    with stand_in(float64=False):
        system.to(DEVICE).train().training_step(make_batch().to(DEVICE)).backward()
        system.eval().index(named_documents())
        ranking = system.retrieve(queries, 5)
    for query in queries["id"]:
        assert ranking.scores(query) == pytest.approx(on_cpu.scores(query), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["aligner", "idf"])
def test_a_model_in_half_precision_keeps_its_salience_in_fp32(name):
    """Gates 1/1000 apart are equal in bf16, and a table of IDF loses its digits."""
    system = SYSTEMS[name]().eval()
    salience = system.encoder.salience
    before = {key: value.clone() for key, value in salience.state_dict().items()}
    system.to(torch.bfloat16)
    assert next(system.encoder.backbone.parameters()).dtype == torch.bfloat16
    assert before and all(torch.equal(salience.state_dict()[key], before[key]) for key in before)
    assert system.score(make_batch()).dtype == torch.float32
    system.double()
    assert {value.dtype for value in salience.state_dict().values()} == {torch.float64}


@pytest.mark.parametrize("emulates", [False, True])
def test_bf16_is_chosen_where_the_gpu_computes_in_it(emulates, monkeypatch):
    def supports(including_emulation=True):
        return including_emulation or not emulates

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supports)
    assert choose_precision("gpu") == ("32-true" if emulates else "bf16-mixed")
    on_cpu = choose_precision("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_precision("cpu") == on_cpu, "it depends on the GPU"


def check_mixed_precision(system, batch):
    """A call of its own: a loss that is kept holds the parameters, which then cannot move.

    So does a frame in a cycle, which some Pythons leave to the garbage collector.
    """
    with torch.autocast("cpu", torch.bfloat16):
        loss = system.train().float().training_step(batch)
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in system.parameters() if p.grad is not None)
    del loss
    gc.collect()


@torch.no_grad()
def check_pairs(system, batch):
    """What a system says of given pairs is on its device."""
    verbs = ["score"] + ["align", "explain"] * system.alignable
    verbs += ["factors"] * (system.paradigm in ("multi_vector", "generative"))
    for verb in verbs:
        assert_on_device(getattr(system, verb)(batch), verb)
    assert len(system.shares(batch)) == len(batch)


def assert_on_device(found, where):
    """Of a tensor, or of a dataclass and what it holds."""
    if isinstance(found, torch.Tensor):
        assert isinstance(found, OnDevice), where
    elif isinstance(found, list):
        for part in found:
            assert_on_device(part, where)
    elif hasattr(found, "__dataclass_fields__"):
        for field in fields(found):
            assert_on_device(getattr(found, field.name), f"{where}.{field.name}")
