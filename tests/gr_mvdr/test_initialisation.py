import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from gr_mvdr.backbones import load_backbone
from gr_mvdr.initialisation import take_latent_meanings

SHAPE = dict(vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)


def test_attention_starts_by_matching_and_copying():
    """Every attention: logits √d_kv for a token and its equal, values passed on as they are."""
    shape = {"vocab_size": 30, "d_model": 16, "d_kv": 4, "num_heads": 4, "num_layers": 2}
    model = load_backbone(None, 0.0, shape=shape, initialisation="mimetic", decodes=True).double()
    attentions = [part for part in model.modules() if isinstance(part, T5Attention)]
    assert len(attentions) == 6
    x = 4 * torch.eye(16, dtype=torch.float64)  # 16 tokens of norm √d
    for part in attentions:
        logits = part.q(x) @ part.k(x).T
        assert torch.allclose(logits, 2 * x, atol=1e-5)  # 4 heads of √4 = 2 on average
        assert torch.allclose(part.o(part.v(x)), x, atol=1e-5)
    with pytest.raises(ValueError, match="initialisation=none: must be random or mimetic"):
        load_backbone(None, shape=shape, initialisation="none", decodes=True)


def test_token_vectors_start_as_what_tokens_mean_in_the_documents():
    """A quarter of a row's square is its token's direction, one for tokens of equal documents."""
    model = load_backbone(None, shape=SHAPE, latent=0.25)
    table = model.get_input_embeddings().weight
    before = table.detach().clone()
    take_latent_meanings(model, [[1, 2, 9], [2, 1, 9], [3, 4, 9], [3, 4, 9], [9], []])
    unknown = [row for row in range(len(table)) if row not in (1, 2, 3, 4, 9)]
    assert torch.equal(table[unknown], before[unknown])
    meanings = (table * 2 - before * 3**0.5)[[1, 2, 3, 4]] / table.shape[1] ** 0.5
    similar = torch.tensor([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])
    assert torch.allclose(meanings @ meanings.T, similar, atol=1e-2)
