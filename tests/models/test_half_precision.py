"""Checkpoints in half precision: every family of systems trains them as their fp32 twins."""

import json

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    T5Config,
    T5ForConditionalGeneration,
)

from models.base import find_backbone
from models.saved_model import write_backbone

BERT = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
BART = {f"{stack}_layers": 2 for stack in ("encoder", "decoder")} | dict(d_model=16)
BART |= {f"{stack}_attention_heads": 2 for stack in ("encoder", "decoder")}
T5 = dict(d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, decoder_start_token_id=0)
MODELS = {
    "bert": lambda: BertModel(BertConfig(vocab_size=60, **BERT)),
    "bart": lambda: BartForConditionalGeneration(BartConfig(vocab_size=60, **BART)),
    "t5": lambda: T5ForConditionalGeneration(T5Config(vocab_size=60, **T5)),
}
SYSTEMS = {
    "make_multi_vector": "bert",
    "make_cross_encoder": "bert",
    "make_splade": "bert",
    "make_seal": "t5",
    "make_docid": "bart",
    "make_docid, from an encoder": "bert",
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", SYSTEMS)
def test_a_half_precision_checkpoint_is_trained_as_its_full_precision_twin(
    kind, dtype, tools, tmp_path
):
    model = MODELS[SYSTEMS[kind]]().to(dtype)
    model.save_pretrained(tmp_path / "half")
    model.to(torch.get_default_dtype()).save_pretrained(tmp_path / "full")
    assert json.loads((tmp_path / "half/config.json").read_text())["dtype"] == str(dtype)[6:]
    make, _, from_encoder = kind.partition(",")
    trained = []
    for name in ("half", "full"):
        backbone = dict(name=str(tmp_path / name), dropout_rate=0.0, attention="eager")
        backbone |= {"from_encoder": {}} if from_encoder else {}
        system = getattr(tools, make)(backbone=backbone).train()
        weights = dict(system.named_parameters())
        assert {weight.dtype for weight in weights.values()} == {torch.get_default_dtype()}
        before = {key: weight.detach().clone() for key, weight in weights.items()}
        optimizer = torch.optim.AdamW(weights.values(), 5e-5)
        for _ in range(3):
            system.loss(tools.make_batch()).backward()
            optimizer.step()
        trained.append(weights)
        moved = [(before[key] != weight).flatten() for key, weight in weights.items()]
        assert torch.cat(moved).double().mean() > 0.7  # in half precision 4 of 100 weights moved
        folder = tmp_path / f"{name}-written"
        write_backbone(find_backbone(system)[1], folder)
        assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    for key, weight in trained[0].items():
        assert torch.allclose(weight, trained[1][key], rtol=0, atol=1e-12), key
