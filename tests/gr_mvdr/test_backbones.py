import json
from functools import partial

import pytest
import torch
import transformers
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from gr_mvdr import files
from gr_mvdr.backbones import (
    check_embedding_ties,
    load_backbone,
    read_states,
)
from tests.families import save_family
from tests.published_folders import make_classifier, make_pylate, make_single, make_stanford

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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pretrained_model_gives_the_checkpoints_vectors_and_logits(tmp_path, family):
    saved, (ids, mask) = save_pretrained(tmp_path, family), batch()
    expected = saved.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    for attention in ("sdpa", "eager"):
        encoder = load_backbone(str(tmp_path), attention=attention).eval()
        assert (encoder.config._attn_implementation == "eager") is (attention == "eager")
        assert not any(name.startswith(("decoder", "lm_head")) for name in encoder.state_dict())
        vectors = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        assert torch.allclose(vectors, expected, atol=1e-5)
    loaded = load_backbone(str(tmp_path), decodes=True).eval()
    assert (loaded.lm_head.weight is loaded.shared.weight) == (family == "t5")
    assert getattr(loaded.config, "scale_decoder_outputs", False) == (family == "t5")
    arguments = dict(input_ids=ids, attention_mask=mask, decoder_input_ids=ids)
    assert torch.allclose(loaded(**arguments).logits, saved(**arguments).logits, atol=1e-5)


def test_gradient_checkpointing_computes_each_layer_twice_and_the_same_gradients(float64):
    """Dropout draws the same numbers both times."""
    ids, mask = batch()
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = load_backbone(
            None,
            shape=SHAPE,
            dropout_rate=0.3,
            decodes=True,
            gradient_checkpointing=checkpointing,
        )
        calls = []
        for stack in (model.encoder, model.decoder):
            layer = stack.block[0].layer[0]
            layer.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        assert len(calls) == 2 * (1 + checkpointing)
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    for plain, recomputed in zip(*found, strict=True):
        assert torch.allclose(plain, recomputed, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_stack_with_a_table_of_its_own_is_refused(stack):
    model = load_backbone(None, shape=SHAPE, decodes=True)
    check_embedding_ties(model)
    part = getattr(model, stack)
    part.embed_tokens = torch.nn.Embedding.from_pretrained(model.shared.weight.detach().clone())
    with pytest.raises(ValueError, match=rf"{stack}.embed_tokens is not tied to the shared"):
        check_embedding_ties(model)


def test_the_expansion_is_a_token_with_a_trained_vector(tmp_path):
    saved = save_pretrained(tmp_path, "t5")
    rows = saved.config.vocab_size
    load_backbone(str(tmp_path), template={"expansion": rows - 1})
    with pytest.raises(ValueError, match=rf"tokenizer\.expansion: .* has no row {rows:,}"):
        load_backbone(str(tmp_path), template={"expansion": rows})


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (make_pylate, ["1_Dense/model.safetensors"]),
        (make_stanford, ["linear.weight"]),
        (make_single, []),
        (make_classifier, ["classifier.bias", "classifier.weight"]),
        (partial(save_pretrained, family="mt5"), []),
        (partial(save_family, "bart", texts=["a b"]), []),
    ],
)
def test_what_a_checkpoint_holds_besides_its_encoder_is_listed(make, expected, tmp_path):
    make(folder=tmp_path)
    assert load_backbone(str(tmp_path)).left_out == expected
    (tmp_path / "colbert_linear.pt").touch()
    assert sorted(load_backbone(str(tmp_path)).left_out) == sorted([*expected, "colbert_linear.pt"])
    (tmp_path / "adapter_config.json").write_text("{}")  # may name another model
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"^backbone.name=.*: holds an adapter, .* backbone.adapter"
        ):
            load_backbone(str(tmp_path))
        (tmp_path / "config.json").unlink(missing_ok=True)


@pytest.fixture
def no_hub(tmp_path, monkeypatch):
    """A hub that refuses connections, and an empty cache, which is the value."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    files.find_hub_failure.cache_clear()
    yield tmp_path / "cache"
    files.find_hub_failure.cache_clear()


def test_without_a_hub_a_cached_model_is_loaded_and_another_refused_at_once(no_hub):
    kept = no_hub / "models--owner--tiny"
    saved = save_pretrained(kept / "snapshots" / "1", "t5")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("1")
    loaded = load_backbone("owner/tiny", decodes=True)
    assert torch.equal(loaded.shared.weight, saved.shared.weight)
    with pytest.raises(FileNotFoundError, match="backbone.name=owner/tin: .* cannot be reached"):
        load_backbone("owner/tin", decodes=True)


def test_a_key_that_no_t5_has_is_named():
    """transformers would take any."""
    with pytest.raises(ValueError, match=r"backbone\.shape\.d_modle: must be a key of"):
        load_backbone(None, shape=SHAPE | {"d_modle": 32})


@pytest.mark.parametrize("kind", ["clip", "resnet"])
def test_a_model_of_images_is_refused(kind, tmp_path):
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    with pytest.raises(ValueError, match=rf"backbone.name=.*: is of the family {kind}, must be an"):
        load_backbone(str(tmp_path))


@pytest.mark.parametrize("family", ["Bert", "Electra", "Roberta", "XLMRoberta"])
def test_packed_texts_get_the_states_and_gradients_of_padded_ones(family, tmp_path, float64):
    shape = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    config = getattr(transformers, f"{family}Config")(vocab_size=40, embedding_size=16, **shape)
    getattr(transformers, f"{family}Model")(config).save_pretrained(tmp_path)
    encoder, (ids, mask) = load_backbone(str(tmp_path), dropout_rate=0.0).double(), batch()
    ids, mask = ids[[0, 1, 0]], mask[[0, 1, 0]].bool()
    mask[2] = False  # a text without tokens
    read = []
    encoder.register_forward_pre_hook(
        lambda _, args, given: read.append([*given["input_ids"].shape]), with_kwargs=True
    )
    found = []
    for attention in ("packed", "sdpa"):
        encoder.set_attn_implementation(attention)
        states = read_states(encoder, mask, input_ids=ids)[mask]
        gradients = torch.autograd.grad(states.pow(3).sum(), [*encoder.parameters()])
        found.append([states, *gradients])
    assert read == [[1, 8], [3, 5]]
    for packed, padded in zip(*found, strict=True):
        assert torch.allclose(packed, padded, rtol=0, atol=1e-12)
