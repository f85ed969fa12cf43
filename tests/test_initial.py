"""`initial=` a training that begins with a finished run's weights, of this system or another."""

import hashlib
import json
import shutil

import pytest
import torch
from hydra.utils import instantiate

import train as train_module
from models.retriever import Retriever
from models.saved_model import MODEL, WEIGHTS, find_weights, open_model
from tests.runs import NO_ANALYSIS, TINY, small
from train import prepare_model, train

KEYS = [*TINY, *NO_ANALYSIS]


@pytest.fixture(scope="module")
def first(finished_run):
    return finished_run("dsi_semantic", *TINY)


@pytest.fixture(scope="module")
def state(first):
    return open_model(first / MODEL).state_dict()


@pytest.fixture
def begin(first, tmp_path, capsys):
    """The system of these overrides as its training begins with `first`, and what is said."""

    def begun(*overrides):
        config = small(tmp_path, *KEYS, f"initial={first}", *overrides)
        initial = find_weights("initial", config.initial)
        train_module.take_settings(config, initial.settings(config), overrides)
        model = prepare_model(config, instantiate(config.data), tmp_path / "run", initial)
        return model, capsys.readouterr().out.strip().splitlines()[-1]

    return begun


def test_the_same_system_begins_with_all_of_it_and_the_names_of_the_run(
    first, state, tmp_path, monkeypatch
):
    begun = {}

    def fit(model, *arguments, _fit=train_module.fit):
        begun.update({name: value.clone() for name, value in model.state_dict().items()})
        return _fit(model, *arguments)

    monkeypatch.setattr(train_module, "fit", fit)
    keys = ["model=dsi_semantic", "seed=2", "ranking=preference", f"initial={first}"]
    run = train(small(tmp_path, *KEYS, *keys))
    assert begun.keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in begun.items())
    after = open_model(run.path / MODEL).state_dict()
    assert after.keys() == state.keys()
    assert not torch.equal(after["backbone.shared.weight"], state["backbone.shared.weight"])
    # Another seed would make another tree.
    ours, theirs = (one / "identifiers/identifiers.safetensors" for one in (run.path, first))
    assert ours.read_bytes() == theirs.read_bytes()
    file = first / MODEL / WEIGHTS
    recorded = json.loads((run.path / "provenance.json").read_text())["training_sources"]
    assert recorded == {str(file): hashlib.sha256(file.read_bytes()).hexdigest()}


@pytest.mark.parametrize("model", ["t5_colbert", "cross_encoder", "genre_np_base", "dsi_naive"])
def test_another_system_begins_with_the_backbone_and_the_words(model, begin, state):
    system, said = begin(f"model={model}")
    theirs = {name.removeprefix("backbone."): value for name, value in state.items()}
    tables, layers = 0, 0
    for name, value in system.state_dict().items():
        end = name.removeprefix("encoder.").removeprefix("backbone.")
        end = end if end in theirs else f"encoder.{end}"
        if end.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight")):
            own = getattr(getattr(system, "scheme", None), "n_tokens", 0)  # docid tokens
            text = (system.vocabulary_size or len(value)) - own
            assert torch.equal(value[:text], theirs[end][:text]), name
            assert not own or not torch.equal(value[text:][:5], theirs[end][text:][:5])
            tables += 1
        elif end in theirs:
            assert torch.equal(value, theirs[end]), name
            layers += 1
    assert tables and layers > 10 and said.startswith("initial=")
    if model == "genre_np_base":  # its rows are what the trained encoder reads
        before = system.head.table.clone()
        system.head.renew_table()
        assert torch.allclose(system.head.table, before)
    new = {"t5_colbert": "encoder", "cross_encoder": "head, query_type"}
    new |= {"dsi_naive": "docid tokens", "genre_np_base": "docid tokens"}
    assert said.endswith(f", not all of: {new[model]}")


def test_what_does_not_fit_is_refused_in_one_line(begin, first, tmp_path):
    for overrides, said in (
        (
            ["model=t5_seal", "data.n_documents=60", "tokenizer.path=null"],
            "was trained with another tokeniser",
        ),
        (
            ["model=t5_colbert", "backbone.shape.d_ff=96"],
            r"is \(64, 32\) there, must be \(96, 32\)",
        ),
        (["model=bm25"], "must be null, nothing of this system is trained"),
        (
            ["model=dsi_semantic", "model.identifiers.k=5"],
            r"model.identifiers.k=5: the identifiers",
        ),
    ):
        with pytest.raises(ValueError, match=said) as raised:
            begin(*overrides)
        assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="initial=.*: must be null with weights=…"):
        train([f"initial={first}", f"weights={first}", f"output={tmp_path}"])


def test_a_query_generator_writes_queries_with_the_weights_of_a_run(tmp_path):
    keys = [*KEYS, "model=query_generator", "model.n_queries=2", "data.language=none"]
    trained = train(small(tmp_path, *keys, "name=trained"))
    again = train(small(tmp_path, *keys, f"weights={trained.path}", "name=again"))
    shutil.rmtree(trained.path)  # the other run holds the weights itself
    assert len(Retriever.load(again.path).search("It is a city", 3)) == 3
    assert again.metrics["rerank/mrr@10"] == pytest.approx(trained.metrics["rerank/mrr@10"])
