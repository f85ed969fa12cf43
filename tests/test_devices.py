"""Every system on an accelerator that is not there: a tensor left on the CPU fails here first."""

from dataclasses import fields
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hydra.utils import instantiate

import train
from tests.models.conftest import (
    Texts,
    draw_tokens,
    make_batch,
    make_cross_encoder,
    make_docid,
    make_multi_vector,
    named_documents,
)
from tests.runs import NO_ANALYSIS, ROOT, TINY, beir, compose_config
from tests.stand_in import DEVICE, OnDevice, stand_in
from tests.synchronisations import synchronisations

pytestmark = pytest.mark.filterwarnings("ignore:You are trying to `self.log")
MODELS = sorted(path.stem for path in (ROOT / "conf/model").glob("*.yaml"))
SMALLEST = ("backbone.shape.d_model=16", "backbone.shape.d_kv=8", "backbone.shape.d_ff=16")
SMALLEST += ("backbone.shape.num_layers=1", "backbone.shape.num_heads=2", "data.batch_size=4")
FEW = {
    "query_generator": ("model.n_queries=1", "query_length=4"),
    "xtr": ("model.search.neighbours=9",),
}

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


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return beir(tmp_path_factory.mktemp("beir"))


@pytest.fixture(scope="module", params=MODELS, name="made")
def _made(request, collection, tmp_path_factory):
    """A tiny system of each configuration, as a run makes it, its data and its folder."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    source = ["data=files", f"data.path={collection}", "data.test_split=test"]
    if name == "rerank_pipeline":
        run = request.getfixturevalue("finished_run")
        first, last = run("bm25"), run("t5_colbert", *TINY)
        stages = f"[{{run: {first}, depth: 3}}, {{run: {last}}}]"
        source = ["data.n_documents=50", f"model.stages={stages}"]
    keys = [f"model={name}", "logger=none", f"output={folder}", "name=run", *NO_ANALYSIS]
    config = compose_config(
        "train", "experiment=smoke", *keys, *SMALLEST, *FEW.get(name, ()), *source
    )
    data = instantiate(config.data)
    system = train.prepare_model(config, data, folder / "run")
    data.tokenizer.save_pretrained(folder / "run/tokenizer")
    forms = instantiate(config.rerank, _convert_="all")
    return SimpleNamespace(system=system, data=data, folder=folder, forms=forms)


def test_a_training_step_runs_in_mixed_precision(made):
    if not made.system.trainable:
        return
    with torch.autocast("cpu", torch.bfloat16):
        loss = made.system.train().training_step(next(iter(made.data.train_dataloader())))
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in made.system.parameters() if p.grad is not None)


def test_every_verb_runs_on_the_systems_device(made):
    system, documents = made.system, made.data.documents
    queries = made.data.test_queries("test").select(range(2))
    candidates = dict.fromkeys(queries["id"], documents["id"][:3])
    with stand_in():
        system.to(DEVICE)
        assert system.device == DEVICE
        check_training_step(made)
        system.eval()
        system.index(documents, made.folder / "run/index")
        check_pairs(made)
        found = system.retrieve(queries, 5)
        assert set(found.query_ids) == set(queries["id"])
        assert system.retrieve(queries, 5).query_ids == found.query_ids
        system.retrieve(queries, 5, documents["id"][:4], with_shares=True)
        for form in made.forms.values():
            system.rerank(queries, documents, candidates, **form)
        system.statistics()
        system.search_fidelity(queries, found, 5)
    on_cpu = system.to("cpu").retrieve(queries, 5)
    for query in queries["id"]:
        assert found.scores(query) == pytest.approx(on_cpu.scores(query), rel=1e-4, abs=1e-5)


# Choices that no configuration of `MODELS` makes.
GATHER = dict(search=dict(mode="gather", neighbours=4, probes=None, refine=2))
RERANK = dict(search=dict(mode="rerank", neighbours=3))
VARIANTS = {
    **{
        kind: partial(make_multi_vector, kind)
        for kind in (
            "aligner-top-p",
            "aligner-soft",
            "idf",
            "mva-heads",
            "mva-learned",
            "mva-temporal",
            "clusters",
            "wu",
        )
    },
    "gather": partial(make_multi_vector, **GATHER),
    "gather-salience": partial(make_multi_vector, "aligner", **GATHER),
    "fde": partial(make_multi_vector, search=dict(mode="fde", refine=2)),
    "rerank": partial(make_multi_vector, "mva", **RERANK),
    "cross-encoder-first": partial(make_cross_encoder, pooling="first"),
    **{kind: partial(make_docid, kind) for kind in ("shared-pawa", "titles-nci")},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_choice_runs_on_the_systems_device(name):
    system = VARIANTS[name]()
    documents, queries = named_documents(), Texts(draw_tokens([4, 2, 11], seed=4), "q")
    candidates = dict.fromkeys(queries["id"], documents["id"][:3])
    with stand_in():
        system.to(DEVICE).training_step(make_batch().to(DEVICE)).backward()
        system.eval().index(documents)
        system.score(make_batch().to(DEVICE))
        system.retrieve(queries, 5)
        system.retrieve(queries, 5, with_shares=True)
        system.rerank(queries, documents, candidates)


def check_training_step(made):
    if not made.system.trainable:
        return
    system, batch = made.system.train(), next(iter(made.data.train_dataloader())).to(DEVICE)
    system.zero_grad()
    with synchronisations() as found:
        system.training_step(batch).backward()
    if system.paradigm == "multi_vector":
        assert not found, found
    trained = [p for p in system.parameters() if p.grad is not None]
    assert trained and all(isinstance(p.grad, OnDevice) for p in trained)


@torch.no_grad()
def check_pairs(made):
    """What a system says of given pairs is on its device."""
    system, verbs = made.system, ["score"]
    _, (batch, *_) = made.data.test_pairs("test", 2, covers=system.covers)
    if system.alignable:
        verbs += ["align", "explain"]
    if system.paradigm in ("multi_vector", "generative"):
        verbs += ["factors"]
    for verb in verbs:
        assert_on_device(getattr(system, verb)(batch.to(DEVICE)), verb)
    if system.alignable or system.paradigm == "cross_encoder":
        assert len(system.shares(batch.to(DEVICE))) == len(batch)


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
