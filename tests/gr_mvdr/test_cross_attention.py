"""The paths of any decoder: they sum to transformers' own logit, and S ⊙ A is one of them."""

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BlenderbotSmallConfig,
    BlenderbotSmallForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
)

from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.cross_attention import (
    CONSTANTS,
    align_layer,
    collect_factors,
    sum_paths,
    trace_decoder,
)
from gr_mvdr.heads.plain import Head
from gr_mvdr.relevance import similarity

VOCABULARY = 40
T5 = dict(vocab_size=VOCABULARY, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=3)
T5 |= dict(decoder_start_token_id=0)
BART = dict(vocab_size=VOCABULARY, d_model=16, max_position_embeddings=32, scale_embedding=True)
BART |= dict(pad_token_id=1, eos_token_id=2, bos_token_id=0, decoder_start_token_id=2)
BART |= dict(encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=24)
BART |= dict(decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=24)
FAMILIES = {
    "t5": (T5ForConditionalGeneration, T5Config, T5),
    "umt5": (UMT5ForConditionalGeneration, UMT5Config, T5),
    "bart": (BartForConditionalGeneration, BartConfig, BART),
    "mbart": (MBartForConditionalGeneration, MBartConfig, BART),
    "marian": (MarianMTModel, MarianConfig, BART),
    "pegasus": (PegasusForConditionalGeneration, PegasusConfig, BART),
    "m2m100": (M2M100ForConditionalGeneration, M2M100Config, BART),
}


@pytest.fixture(autouse=True, scope="module")
def _float64(float64):
    """Models and data are float64."""


def make(model, config, options):
    """A model whose biases, norms and attentions all count."""
    torch.manual_seed(0)
    built = model(config(**options)).eval()
    with torch.no_grad():
        for name, weight in built.named_parameters():
            small = ("fc", "DenseReluDense")  # or they drown what came before the norms
            size = 0.1 if any(part in name for part in small) else 0.5
            is_norm = weight.dim() == 1 and name.endswith("weight")
            weight.copy_(
                0.5 + torch.rand_like(weight) if is_norm else size * torch.randn_like(weight)
            )
        if hasattr(built, "final_logits_bias"):
            built.final_logits_bias.normal_()
    return built


def trace(model, window=None):
    """Pairs, their trace, and transformers' own output for them."""
    texts = [[5, 6, 7, 8, 2], [9, 2], [11, 12, 2]], [[3, 20, 21, 22, 2], [3, 30, 2], [31, 32, 2]]
    batch = PairBatch(*pad(texts[0]), *pad(texts[1]), torch.arange(3))
    start = torch.full((3, 1), model.config.decoder_start_token_id)
    model.set_attn_implementation("eager")
    sides = dict(input_ids=batch.query_ids, attention_mask=batch.query_mask.long())
    shifted = torch.cat([start, batch.document_ids[:, :-1]], 1)
    output = model(**sides, decoder_input_ids=shifted, output_attentions=True)
    queries = model.get_encoder()(**sides).last_hidden_state
    return batch, trace_decoder(Head(model), batch, queries, window), output


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_paths_sum_to_the_logit_of_transformers(family):
    batch, traced, output = trace(make(*FAMILIES[family]))
    paths, real = sum_paths(traced), batch.document_mask
    expected = output.logits.gather(2, batch.document_ids.unsqueeze(2)).squeeze(2)
    # UMT5's norm computes in fp32.
    tolerance = 1e-5 if family == "umt5" else 1e-12
    assert torch.allclose(paths.contributions.sum(1)[real], expected[real], atol=tolerance)
    assert torch.allclose(paths.logits[real], expected[real], atol=tolerance)
    log_probs = output.logits.log_softmax(-1).gather(2, batch.document_ids.unsqueeze(2)).squeeze(2)
    assert torch.allclose(paths.log_probs[real], log_probs[real], atol=tolerance)
    # Each path counts: a law of zeros would prove nothing.
    assert (paths.contributions.abs().amax((0, 2)) > 1e-3).all()
    constants = () if "t5" in family else CONSTANTS[: 2 if family == "m2m100" else 3]
    assert paths.names[7:] == constants


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_layers_path_is_its_similarity_times_its_alignment(family):
    """Value biases and the scale of the products are in S and A; output biases are not."""
    batch, traced, output = trace(make(*FAMILIES[family]))
    paths, real = sum_paths(traced), batch.document_mask
    for layer in (0, 1):
        pairs = align_layer(traced, torch.zeros(3), layer)
        expected = paths.contributions[:, paths.names.index(f"cross_attention_{layer + 1}")]
        assert torch.allclose(
            (pairs.similarity * pairs.alignment).sum((1, 3)), expected, atol=1e-12
        )
        assert torch.allclose(pairs.alignment.sum(-1), real[:, None].double(), atol=1e-12)
        theirs = output.cross_attentions[layer] * real[:, None, :, None]
        assert torch.allclose(pairs.alignment, theirs, atol=1e-12)
        factors = collect_factors(traced, layer)
        logits = similarity(factors.document_keys, factors.query_keys)
        made = logits.masked_fill(~batch.query_mask[:, None, None], -torch.inf).softmax(-1)
        assert torch.allclose(made * real[:, None, :, None], pairs.alignment, atol=1e-12)
        # Appendix B: biases of the keys leave the bound on the centred logits untouched.
        for number in range(3):
            own = logits[number][:, real[number]][..., batch.query_mask[number]]
            own = own - own.mean(1, keepdim=True)
            norm = (own - own.mean(2, keepdim=True)).abs().sum(1).amax(-1)
            bound = paths.document_norms[number, layer] * paths.query_norms[number, layer]
            assert (norm <= bound * paths.projection_norms[layer] * (1 + 1e-9)).all()


@torch.no_grad()
def test_windows_begin_at_position_0_and_an_infinite_bias_is_no_nan():
    model = make(*FAMILIES["bart"])
    model.final_logits_bias[0, :2] = -torch.inf  # SEAL's: not <s>, not <pad>
    batch, whole, _ = trace(model)
    paths, windows = sum_paths(whole), sum_paths(trace(model, window=3)[1])
    assert paths.contributions.isfinite().all() and paths.log_probs.isfinite().all()
    first = batch.document_mask[:, :3]
    for name in ("logits", "log_probs"):
        traced, expected = getattr(windows, name), getattr(paths, name)
        assert torch.allclose(traced[:, :3][first], expected[:, :3][first], atol=1e-12)
    query, rest = (batch.query_ids[:1], batch.query_mask[:1]), slice(3, None)
    document = batch.document_ids[:1, rest], batch.document_mask[:1, rest]
    second = PairBatch(*query, *document, batch.document_index[:1])
    alone = trace_decoder(Head(model), second, whole.queries[:1])
    assert torch.allclose(sum_paths(alone).logits, windows.logits[:1, 3:], atol=1e-12)


@torch.no_grad()
def test_a_decoder_whose_stream_is_another_sum_is_refused():
    """BlenderbotSmall adds its positions after the first norm."""
    family = BlenderbotSmallForConditionalGeneration, BlenderbotSmallConfig, BART
    with pytest.raises(ValueError, match="must have a decoder that is built like T5's"):
        trace(make(*family))
