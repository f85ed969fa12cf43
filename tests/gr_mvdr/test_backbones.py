import json
import socket

import pytest
import torch
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)

from gr_mvdr import files
from gr_mvdr.backbones import (
    check_embedding_ties,
    hash_weights,
    load_encoder,
    load_encoder_decoder,
)

SHAPE = dict(vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
FAMILIES = ["t5", "t5_v1_1", "mt5"]


def save_pretrained(folder, family):
    """A tiny checkpoint as the hub has it; v1.1 and mT5 with an output table of their own."""
    torch.manual_seed(0)
    config_class, model_class = {
        "mt5": (MT5Config, MT5ForConditionalGeneration),
    }.get(family, (T5Config, T5ForConditionalGeneration))
    tied = family == "t5"
    model = model_class(config_class(**SHAPE, decoder_start_token_id=0, tie_word_embeddings=tied))
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(torch.randn(40, 16))
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config.pop("scale_decoder_outputs", None)
    config["tie_word_embeddings"] = tied
    (folder / "config.json").write_text(json.dumps(config))
    return model.eval()


def batch():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, 40, (2, 5), generator=generator)
    return ids, torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pretrained_encoder_is_the_checkpoints(tmp_path, family, attention):
    saved = save_pretrained(tmp_path, family)
    loaded = load_encoder(str(tmp_path), attention=attention).eval()
    assert loaded.config._attn_implementation == attention
    assert not any(name.startswith(("decoder", "lm_head")) for name in loaded.state_dict())
    ids, mask = batch()
    expected = saved.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    found = loaded(input_ids=ids, attention_mask=mask).last_hidden_state
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pretrained_encoder_decoder_gives_the_checkpoints_logits(tmp_path, family):
    saved = save_pretrained(tmp_path, family)
    loaded = load_encoder_decoder(str(tmp_path)).eval()
    assert (loaded.lm_head.weight is loaded.shared.weight) == (family == "t5")
    assert torch.equal(loaded.lm_head.weight, saved.lm_head.weight)
    assert getattr(loaded.config, "scale_decoder_outputs", False) == (family == "t5")
    ids, mask = batch()
    arguments = dict(input_ids=ids, attention_mask=mask, decoder_input_ids=ids)
    assert torch.allclose(loaded(**arguments).logits, saved(**arguments).logits, atol=1e-5)


def test_a_new_model_has_the_asked_shape_and_t5s_tied_scaled_output():
    model = load_encoder_decoder(None, shape=SHAPE)
    assert model.shared.weight.shape == (40, 16) and len(model.decoder.block) == 1
    assert model.lm_head.weight is model.shared.weight and model.config.scale_decoder_outputs
    assert model.config.decoder_start_token_id == 0
    encoder = load_encoder(None, shape=SHAPE)
    assert isinstance(encoder, T5EncoderModel)
    assert encoder.encoder.embed_tokens.weight is encoder.shared.weight


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_stack_with_a_table_of_its_own_is_refused(stack):
    model = load_encoder_decoder(None, shape=SHAPE)
    check_embedding_ties(model)
    part = getattr(model, stack)
    part.embed_tokens = torch.nn.Embedding.from_pretrained(model.shared.weight.detach().clone())
    with pytest.raises(ValueError, match=rf"{stack}.embed_tokens is not tied to the shared"):
        check_embedding_ties(model)


def test_the_hash_of_the_weights_changes_with_any_of_them():
    model = torch.nn.Module()
    model.layer, model.step = torch.nn.Linear(3, 2), torch.nn.Parameter(torch.zeros(()))
    first = hash_weights(model)
    assert first == hash_weights(model)
    with torch.no_grad():
        model.layer.weight[1, 1] += 1e-3
    assert hash_weights(model) != first


@pytest.fixture
def no_hub(tmp_path, monkeypatch):
    """A hub that refuses connections, and an empty cache, which is the value."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    files._hub_failure.cache_clear()
    yield tmp_path / "cache"
    files._hub_failure.cache_clear()


@pytest.mark.parametrize("load", [load_encoder, load_encoder_decoder])
def test_without_a_hub_a_cached_model_is_loaded_and_another_refused_at_once(no_hub, load):
    kept = no_hub / "models--owner--tiny"
    saved = save_pretrained(kept / "snapshots" / "1", "t5")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("1")
    loaded = load("owner/tiny")
    assert torch.equal(loaded.shared.weight, saved.shared.weight)
    with pytest.raises(FileNotFoundError, match="backbone.name=owner/tin: .* cannot be reached"):
        load("owner/tin")


def test_a_hub_that_answers_late_is_waited_for(no_hub, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as late:
        address = f"http://127.0.0.1:{late.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr(files, "_HUB_SECONDS", 0.1)
        assert files.hub_options("owner/tiny") == {}


@pytest.mark.parametrize(
    ("key", "value"), [("d_kv", 0), ("num_heads", 1.5), ("relative_attention_max_distance", 0)]
)
@pytest.mark.parametrize("load", [load_encoder, load_encoder_decoder])
def test_a_shape_that_no_t5_has_is_refused(load, key, value):
    message = f"backbone.shape={{.*'{key}': {value}.*}}: must be values that a T5 can have"
    with pytest.raises(ValueError, match=message) as error:
        load(None, shape=SHAPE | {key: value})
    assert "\n" not in str(error.value)
