"""An encoder as a BART: the same vectors, a decoder of its weights, saved and loaded."""

import pytest
import torch
from torch.nn.functional import normalize
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    RobertaConfig,
    RobertaModel,
)

from gr_mvdr.backbones import encode, load_backbone
from gr_mvdr.batch import pad
from gr_mvdr.template import TextTemplate

pytestmark = pytest.mark.usefixtures("float64")
SHAPE = dict(vocab_size=40, pad_token_id=1, max_position_embeddings=26)
BERT = SHAPE | dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=2)
FAMILIES = {
    "bert": (BertModel, BertConfig(**BERT, intermediate_size=24)),
    "roberta": (RobertaModel, RobertaConfig(**BERT, intermediate_size=24, type_vocab_size=1)),
    "distilbert": (
        DistilBertModel,
        DistilBertConfig(**SHAPE, dim=16, n_layers=3, n_heads=2, hidden_dim=24),
    ),
}
TEMPLATE = TextTemplate(query=(2,), document=(2,), target=(2,), suffix=(3,), stop=3, pad=1)
IDS, MASK = pad([[2, 10, 11, 12, 3], [2, 20, 3], [2, *range(4, 25), 3]])


def save_encoder(kind, folder):
    """An encoder whose every weight, ε included, makes a difference."""
    model, config = FAMILIES[kind]
    torch.manual_seed(0)
    encoder = model(config).double()
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    encoder.save_pretrained(folder)
    return encoder.eval()


def load(folder, **options):
    fixed = dict(dropout_rate=0.0, attention="eager", template=TEMPLATE.settings, decodes=True)
    return load_backbone(str(folder), **fixed, **options).double().eval()


@pytest.mark.parametrize("kind", FAMILIES)
@torch.no_grad()
def test_states_are_the_encoders_after_saving_and_loading_too(kind, tmp_path):
    encoder = save_encoder(kind, tmp_path / "encoder")
    expected = encoder(input_ids=IDS, attention_mask=MASK.long()).last_hidden_state[MASK]
    model = load(tmp_path / "encoder", from_encoder={})
    assert torch.allclose(encode(model, IDS, MASK)[MASK], expected, atol=1e-10)
    model.save_pretrained(tmp_path / "bart")
    again = load(tmp_path / "bart")
    assert torch.allclose(encode(again, IDS, MASK)[MASK], expected, atol=1e-10)
    targets = dict(input_ids=IDS, attention_mask=MASK.long(), decoder_input_ids=IDS)
    assert torch.equal(model(**targets).logits, again(**targets).logits)


@pytest.mark.parametrize("cross_attention", ["tokens", "copied", "random"])
def test_the_decoder_begins_with_layers_spread_over_the_encoder(cross_attention, tmp_path):
    encoder = save_encoder("bert", tmp_path)
    options = {"layers": 2, "cross_attention": cross_attention}
    model = load(tmp_path, from_encoder=options)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    layers = model.get_decoder().layers
    assert len(layers) == 2
    for layer, block in zip(layers, encoder.encoder.layer[::2], strict=True):
        assert torch.equal(layer.fc1.weight, block.intermediate.dense.weight)
        query = block.attention.self.query.weight
        assert torch.equal(layer.self_attn.q_proj.weight, query)
        copied = torch.equal(layer.encoder_attn.q_proj.weight, query)
        assert copied == (cross_attention != "random")


@torch.no_grad()
def test_the_last_cross_attention_writes_the_tokens_that_it_attends_to(tmp_path):
    save_encoder("bert", tmp_path)
    model = load(tmp_path, from_encoder={"cross_attention": "tokens"})
    part = model.get_decoder().layers[-1].encoder_attn
    written = part.out_proj(part.v_proj(encode(model, IDS, MASK)[MASK]))
    rows = model.get_input_embeddings().weight
    similar = normalize(written) @ normalize(rows - rows.mean(0)).T
    own = similar.gather(1, IDS[MASK][:, None])
    assert own.mean() > similar.mean() + 0.15  # of random weights; 95 % of a MiniLM's come first


def test_an_encoder_of_another_build_is_refused_by_name(tmp_path):
    sizes = dict(embedding_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    ElectraModel(ElectraConfig(**SHAPE, **sizes)).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"backbone\.name=.*: holds a electra; must be one of bert"
    ):
        load(tmp_path, from_encoder={})


def test_a_decoder_is_asked_for_once(tmp_path):
    with pytest.raises(
        ValueError, match=r"model\.decoder_layers=3: must be null with backbone=from"
    ):
        load(tmp_path, from_encoder={}, decoder_layers=3)
