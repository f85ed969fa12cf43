"""Tiny random systems, tables and batches for the tests of the models."""

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from gr_mvdr.batch import PairBatch, cut, pad
from gr_mvdr.tokenizers import EOS_ID
from models.t5_colbert import T5ColBERT
from models.t5_seal import T5SEAL

VOCABULARY = 60
SHAPE = dict(vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
OPTIMIZER = {"learning_rate": 1e-3, "weight_decay": 0.01, "schedule": "constant"}
SEARCH = dict(mode="exact", dtype="float32", lists=None, neighbours=1000, probes=64)
EVIDENCE = dict(alpha=2.0, beta=0.8, smoothing=0.1, max_occurrences_1=1500)


class Texts(dict):
    """The least that a table is: columns by name, slices and rows by number."""

    def __init__(self, tokens, prefix):
        ids = [f"{prefix}{n}" for n in range(len(tokens))]
        texts = [" ".join(map(str, row)) for row in tokens]
        super().__init__(id=ids, tokens=tokens, text=texts)

    def __len__(self):
        return len(self["id"])

    def __iter__(self):
        return (self[number] for number in range(len(self)))

    def __getitem__(self, key):
        if isinstance(key, str):
            return super().__getitem__(key)
        if isinstance(key, list):
            return {name: [column[row] for row in key] for name, column in self.items()}
        return {name: column[key] for name, column in self.items()}

    def select(self, rows):
        found = Texts([], "")
        found.update(self[[int(row) for row in rows]])
        return found


def draw_tokens(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def make_batch(query_lengths=(3, 6, 1), document_lengths=(7, 2, 9), seed=0):
    """Pairs of random texts of these lengths, end tokens included."""
    queries = [cut(t, 99, EOS_ID) for t in draw_tokens([n - 1 for n in query_lengths], seed)]
    documents = [
        cut(t, 99, EOS_ID) for t in draw_tokens([n - 1 for n in document_lengths], seed + 1)
    ]
    return PairBatch(*pad(queries), *pad(documents), torch.arange(len(queries)))


def widen(batch, columns=3, junk=7):
    """The same pairs with more padding, and junk instead of zeros in it."""
    ids, masks = [], []
    for side in ("query", "document"):
        grown = torch.nn.functional.pad(getattr(batch, f"{side}_mask"), (0, columns))
        token_ids = torch.nn.functional.pad(getattr(batch, f"{side}_ids"), (0, columns))
        ids.append(token_ids.masked_fill(~grown, junk))
        masks.append(grown)
    return PairBatch(ids[0], masks[0], ids[1], masks[1], batch.document_index)


def one(batch, number):
    """A pair on its own, without padding."""
    query, document = batch.query_mask[number], batch.document_mask[number]
    return PairBatch(
        batch.query_ids[number][query][None],
        batch.query_mask[number][query][None],
        batch.document_ids[number][document][None],
        batch.document_mask[number][document][None],
        batch.document_index[number][None],
    )


def make_colbert(backbone=None, **options):
    torch.manual_seed(0)
    backbone = backbone or dict(name=None, dropout_rate=0.0, attention="eager", shape=SHAPE)
    defaults = dict(dimension=8, query_length=8, document_length=12)
    settings = dict(search=SEARCH, optimizer=OPTIMIZER)
    return T5ColBERT(backbone, **{**defaults, **settings, **options}).eval()


def make_seal(backbone=None, **options):
    torch.manual_seed(0)
    backbone = backbone or dict(name=None, dropout_rate=0.0, attention="eager", shape=SHAPE)
    defaults = dict(query_length=8, document_length=12, key_length=4, beam_size=3)
    settings = dict(evidence=EVIDENCE, optimizer=OPTIMIZER)
    return T5SEAL(backbone, **{**defaults, **settings, **options}).eval()


def sharpen(model):
    """Larger weights and uneven norms: a fresh T5 attends to everything alike."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "layer_norm" in name:
                weight.copy_(0.5 + torch.rand(weight.shape, generator=generator))
            elif "Attention" in name:
                weight.copy_(0.5 * torch.randn(weight.shape, generator=generator))
    return model


@pytest.fixture(params=["tied", "untied"], name="seal")
def _seal(request, tmp_path_factory):
    """T5-SEAL on an original T5 and on a T5 v1.1, whose output table is its own and not scaled."""
    if request.param == "tied":
        return sharpen(make_seal())
    torch.manual_seed(1)
    config = T5Config(
        **SHAPE, feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0
    )
    source = T5ForConditionalGeneration(config)
    source.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, 16))
    folder = tmp_path_factory.mktemp("t5_v1_1")
    source.save_pretrained(folder)
    seal = make_seal(dict(name=str(folder), dropout_rate=0.0, attention="sdpa"))
    assert seal.backbone.lm_head.weight is not seal.backbone.shared.weight
    assert seal.head.scale == 1
    return sharpen(seal)


@pytest.fixture
def documents():
    return Texts(draw_tokens([3, 14, 1, 6, 6, 20, 9], seed=3), "d")


@pytest.fixture
def queries():
    return Texts(draw_tokens([4, 2, 11], seed=4), "q")


@pytest.fixture(name="tools")
def _tools():
    """The helpers of this file, as test files cannot import a conftest."""
    from types import SimpleNamespace

    names = (make_batch, widen, one, make_colbert, make_seal, draw_tokens, Texts, sharpen)
    constants = dict(SHAPE=SHAPE, SEARCH=SEARCH, OPTIMIZER=OPTIMIZER, EVIDENCE=EVIDENCE)
    return SimpleNamespace(**{helper.__name__: helper for helper in names}, **constants)
