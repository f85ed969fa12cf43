"""Frozen parts of a backbone, and adapters, in float64."""

import json

import pytest
import torch
from safetensors.torch import load_file

from gr_mvdr.backbones import load_backbone
from gr_mvdr.fine_tuning import merge_adapters
from models.base import find_backbone
from tests.models.conftest import (
    BACKBONE,
    make_cross_encoder,
    make_docid,
    make_multi_vector,
    make_seal,
    untied_backbone,
)

TARGETS = ["q", "v"]
MAKERS = {
    "aligner": lambda **options: make_multi_vector("aligner", **options),
    "cross-encoder": make_cross_encoder,
    "seal": make_seal,
    "docids": make_docid,
}


@pytest.fixture(autouse=True, scope="module")
def _float64(float64):
    """Models and data are float64."""


def make(kind, **fine_tuning):
    system = MAKERS[kind](backbone=BACKBONE | fine_tuning)
    return system.train()


def is_target(name):
    return any(f".{target}." in name for target in TARGETS) and "Attention" in name


@pytest.mark.parametrize("kind", MAKERS)
def test_a_step_of_full_rank_is_a_step_of_the_layers_themselves(kind, tools):
    """With A the identity and alpha = r, W + B A learns as W does."""
    full, adapted = make(kind), make(kind, lora={"r": 16, "alpha": 16, "targets": TARGETS})
    adapted.configure_model()
    backbone = find_backbone(adapted)[1]
    for name, weight in backbone.named_parameters():
        if "lora_A" in name:
            weight.data.copy_(torch.eye(16))
            weight.requires_grad_(False)
    learned = [w for name, w in find_backbone(full)[1].named_parameters() if is_target(name)]
    steps = [w for name, w in backbone.named_parameters() if "lora_B" in name]
    assert len(learned) == len(steps) > 3
    for system, weights in ((full, learned), (adapted, steps)):
        for seed in range(2):  # the second step starts from another function than the first
            grads = torch.autograd.grad(system.loss(tools.make_batch(seed=seed)), weights)
            for weight, gradient in zip(weights, grads, strict=True):
                weight.data.sub_(0.1 * gradient)
    merge_adapters(backbone)
    state, own = full.state_dict(), adapted.state_dict()
    assert own.keys() == state.keys()
    for name in state.keys() - {"head._extra_state"}:
        assert torch.allclose(own[name], state[name], atol=1e-12), name


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("part", ["embeddings", "encoder", "all", "lora"])
def test_only_the_rest_and_our_own_parts_train(kind, part, tools):
    options = {"lora": {"targets": TARGETS}} if part == "lora" else {"frozen": part}
    system = make(kind, **options)
    place, _ = find_backbone(system)
    before = {name: weight.clone() for name, weight in system.named_parameters()}
    system.configure_model()
    if (kind, part) == ("seal", "all"):  # it has no parts of its own
        with pytest.raises(ValueError, match=r"backbone.frozen=all: leaves nothing to train"):
            system.configure_optimizers()
        return
    optimizer = system.configure_optimizers()
    system.loss(tools.make_batch()).backward()
    optimizer.step()
    after = {name.replace(".base_layer", ""): x for name, x in system.named_parameters()}
    changed = {name for name in before if not torch.equal(before[name], after.pop(name))}
    assert all("lora_" in name and weight.requires_grad for name, weight in after.items())
    assert len(after) == (part == "lora") * 2 * sum(map(is_target, before))
    own = {name for name in before if not name.startswith(f"{place}.")}
    tables = {name for name in before if name.endswith("shared.weight")}
    trained = before.keys() - own - tables if part in ("embeddings", "encoder") else set()
    if part == "encoder":
        trained = {name for name in trained if ".decoder." in name}
    # Docids are new rows of the table, which therefore trains.
    assert changed == own | trained | (tables if kind == "docids" else set())


def test_a_published_adapter_is_merged_into_its_base(tmp_path, tools):
    base = untied_backbone(tmp_path / "base")
    system = make_seal(backbone=base | {"lora": {"r": 2, "targets": TARGETS}})
    system.configure_model()
    for name, weight in system.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    (folder := tmp_path / "adapter").mkdir()
    merge_adapters(system.backbone, folder)
    assert {file.name for file in folder.iterdir()} >= {"adapter_config.json"}
    assert all("lora_" in name for name in load_file(folder / "adapter_model.safetensors"))
    opened = load_backbone(**base, adapter=str(folder), decodes=True)
    expected = system.backbone.state_dict()
    for name, weight in opened.state_dict().items():
        assert torch.allclose(weight, expected[name]), name
    assert all(weight.requires_grad for weight in opened.parameters())
    config = json.loads((folder / "adapter_config.json").read_text())
    for change, rule in (
        ({"use_dora": True}, "must be plain LoRA, has use_dora"),
        ({"peft_type": "IA3"}, "must be plain LoRA, has peft_type"),
        ({"megatron_config": {"a": 1}}, "must be plain LoRA, has megatron_config"),
        ({"r": 3}, "does not fit backbone.name=.*base: .*size mismatch"),
        ({"target_modules": ["nothing"]}, "Target modules .*nothing"),
    ):
        (folder / "adapter_config.json").write_text(json.dumps(config | change))
        with pytest.raises(ValueError, match=f"^backbone.adapter=.*{rule}"):
            load_backbone(**base, adapter=str(folder), decodes=True)
