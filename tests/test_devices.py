"""Every system on an accelerator that is not there: a tensor left on the CPU fails here first."""

from dataclasses import fields
from functools import partial

import pytest
import torch

from tests.models.conftest import (
    DOCIDS,
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
REFUSED = {
    "a mask of the CPU": lambda x: x.masked_fill(torch.tensor([True, False, True]), 0.0),
    "a range of the CPU": lambda x: x * torch.arange(3),
    "the device's numbers into the CPU's": lambda x: torch.zeros(3).add_(x),
    "an index of the device into the CPU's": lambda x: torch.zeros(3)[x.long()],
    "numpy": lambda x: x.numpy(),
    "a product": lambda x: torch.ones(3, 3) @ x,
}
ALLOWED = {
    "a scalar of the CPU": lambda x: x * torch.tensor(2.0),
    "an index of the CPU": lambda x: x[torch.tensor([0, 2])],
    "there and back": lambda x: x.cpu().to(x.device),
    "a value from the CPU in place": lambda x: x.masked_fill_(x > 0, torch.tensor(1.0)),
}
WAITING = {
    "a number": lambda x: x[0].item(),
    "the CPU": lambda x: x.cpu(),
    "from the CPU": lambda x: torch.zeros(3).to(x.device),
    "places": lambda x: torch.where(x > 0),
    "a mask as an index": lambda x: x[x > 0],
    "a number of the device as an index": lambda x: x[x[1].long()],
    "repeats": lambda x: x.repeat_interleave(x.long()),
}
GOING_ON = {
    "repeats of a known sum": lambda x: x.repeat_interleave(x.long(), output_size=3),
    "one value at a mask": lambda x: x.__setitem__(x > 0, 0.0),
    "a choice": lambda x: torch.where(x > 0, x.masked_fill(x > 1, 0.0), 0.0),
    "from the CPU, later": lambda x: torch.zeros(3).to(x.device, non_blocking=True),
    "the CPU's own": lambda x: torch.arange(3)[torch.arange(3) > 1].tolist(),
}


@pytest.mark.parametrize("inference", [False, True])
def test_what_waits_for_the_device_is_counted(inference):
    for names in (WAITING, GOING_ON):
        for name, operation in names.items():
            with stand_in(), torch.inference_mode(inference):
                x = torch.arange(3.0).to(DEVICE)
                with synchronisations() as found:
                    operation(x)
            assert bool(found) == (names is WAITING), name
            assert all(place.startswith("tests/test_devices.py:") for place in found)


@pytest.mark.parametrize("inference", [False, True])
def test_the_stand_in_refuses_and_allows_what_cuda_does(inference):
    with stand_in(), torch.inference_mode(inference):
        for name, operation in ALLOWED.items():
            found = operation(torch.arange(3.0).to(DEVICE))
            assert found.device == DEVICE and isinstance(found, OnDevice), name
        for name, operation in REFUSED.items():
            refused = False
            try:
                operation(torch.arange(3.0).to(DEVICE))
            except (RuntimeError, TypeError):
                refused = True
            assert refused, name


GATHER = dict(search=dict(mode="gather", neighbours=4, probes=None, refine=2))
RERANK = dict(search=dict(mode="rerank", neighbours=3))
VIEWS = dict(special_tokens={"body": [50], "title": [51, 52], "title_end": [53]}, query_ngrams=2)
SYSTEMS = {
    **{kind: partial(make_multi_vector, kind) for kind in MULTI_VECTOR},
    "gather": partial(make_multi_vector, **GATHER),
    "gather-salience": partial(make_multi_vector, "aligner", **GATHER),
    "impute": partial(make_multi_vector, "xtr", search=dict(mode="impute", neighbours=9)),
    "fde": partial(make_multi_vector, search=dict(mode="fde", refine=2)),
    "rerank": partial(make_multi_vector, "mva", **RERANK),
    "cross-encoder": make_cross_encoder,
    "cross-encoder-first": partial(make_cross_encoder, pooling="first"),
    "splade": make_splade,
    "seal": make_seal,
    "views": partial(make_seal, **VIEWS),
    **{kind: partial(make_docid, kind) for kind in DOCIDS},
    "preference": partial(make_docid, "semantic", ranking=PREFERENCE),
}


WAITS = {"clusters", "aligner-soft"}  # k-means, and the solver's end, are decided on the CPU


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_works_on_its_device_in_mixed_precision_too(name):
    system, batch = SYSTEMS[name](), make_batch()
    if name == "preference":
        system.setup("fit")
    documents, queries = named_documents(), Texts(draw_tokens([4, 2, 11], seed=4), "q")
    candidates = dict.fromkeys(queries["id"], documents["id"][:3])
    with torch.autocast("cpu", torch.bfloat16):
        loss = system.train().float().training_step(batch)
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in system.parameters() if p.grad is not None)
    with stand_in():
        batch = batch.to(DEVICE)
        system.to(DEVICE).zero_grad()
        with synchronisations() as waits:
            system.training_step(batch).backward()
        assert not waits or system.paradigm != "multi_vector" or name in WAITS, waits
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
