"""Tiny random systems, tables and batches for the tests of the models."""

import sys
from tempfile import TemporaryDirectory

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    Qwen3Config,
    T5Config,
    T5ForConditionalGeneration,
)

from gr_mvdr.batch import PairBatch, cut, pad
from gr_mvdr.heads.plain import real_places
from gr_mvdr.texts import TextTable
from gr_mvdr.tokenizers import EOS_ID, build_word_tokenizer
from models.beyond.splade import SPLADE
from models.beyond.views import MultiViewSEAL
from models.cross_encoder import CrossEncoder
from models.docid import Docid
from models.multi_vector import MultiVector
from models.t5_seal import T5SEAL
from tests.searches import make_search

VOCABULARY = 60
SHAPE = dict(vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
BACKBONE = dict(name=None, dropout_rate=0.0, attention="eager", shape=SHAPE)
OPTIMIZER = {"learning_rate": 1e-3, "weight_decay": 0.01, "schedule": "constant"}
EVIDENCE = dict(alpha=2.0, beta=0.8, smoothing=0.1, max_occurrences_1=1500)

ATOMIC = {"_target_": "gr_mvdr.identifiers.docids.AtomicDocids"}
NAIVE = {"_target_": "gr_mvdr.identifiers.docids.NaiveDocids"}
SEMANTIC = {"_target_": "gr_mvdr.identifiers.cluster_tree.SemanticDocids", "k": 2, "leaf_size": 2}
QUANTISED = {
    "_target_": "models.beyond.quantised_docids.QuantisedDocids",
    **{"levels": 2, "codes": 2, "collisions": "share"},
}
TITLES = {"_target_": "gr_mvdr.identifiers.docids.Titles"}
PLAIN = {"_target_": "gr_mvdr.heads.plain.Head"}
PAWA = {"_target_": "gr_mvdr.heads.pawa.PawaHead", "layers": 1, "heads": 2}
NP = {"_target_": "gr_mvdr.heads.non_parametric.NonParametricHead", "clusters": 2}
# Every kind of docid system: identifiers and head. A token of the titles has several NP rows.
DOCIDS = {
    "atomic": (ATOMIC, PLAIN),
    "naive": (NAIVE, PLAIN),
    "semantic": (SEMANTIC, PLAIN),
    "quantised": (QUANTISED, PLAIN),
    "titles": (TITLES, PLAIN),
    "semantic-pawa": (SEMANTIC, PAWA),
    "shared-pawa": (SEMANTIC | {"positional": False}, PAWA),
    "titles-nci": (TITLES, PAWA | {"form": "nci"}),
    "titles-np": (TITLES, NP),
}

IN_BATCH = {"_target_": "gr_mvdr.losses.InBatchCrossEntropy"}


def _alignment(name, **options):
    return {"_target_": f"gr_mvdr.alignment.{name}", **options}


def _salience(gate, **options):
    part = {"_target_": "gr_mvdr.salience.LearnedSalience", "gate": gate, **options}
    return {"query": part, "document": part}


def _pooling(name, **options):
    return {"_target_": f"gr_mvdr.pooling.{name}", **options}


_IDF = {"_target_": "gr_mvdr.salience.IdfSalience"}
_SOFTMAX = dict(alignment=_alignment("Softmax", direction="query_to_document"))
_MVA = dict(**_SOFTMAX, projections="attention", normaliser="query_tokens")
# Every kind of multi-vector system, and what may be combined in one.
MULTI_VECTOR = {
    "t5_colbert": dict(alignment=_alignment("MaxSim")),
    "dpr": dict(
        alignment=_alignment("FirstToken"),
        pooling={"query": _pooling("FirstTokens", k=1), "document": _pooling("FirstTokens", k=1)},
    ),
    "sentence_t5": dict(
        alignment=_alignment("FirstToken"),
        pooling={"query": _pooling("MeanTokens"), "document": _pooling("MeanTokens")},
    ),
    "first": dict(alignment=_alignment("FirstToken")),
    "me_bert": dict(alignment=_alignment("FirstK", k=3)),
    "coil": dict(alignment=_alignment("LexicalMaxSim")),
    "aligner": dict(
        alignment=_alignment("TopK", k=1),
        normaliser="alignment",
        salience=_salience("lp", sparsity=0.5, epsilon=0.002),
    ),
    "aligner-top-p": dict(
        alignment=_alignment("TopP", p=0.3),
        normaliser="alignment",
        salience=_salience("relu"),
    ),
    "aligner-soft": dict(
        alignment=_alignment("SoftTopK", k=2, epsilon=0.1), normaliser="alignment"
    ),
    "idf": dict(alignment=_alignment("MaxSim"), salience={"query": _IDF, "document": _IDF}),
    "xtr": dict(
        alignment=_alignment("MaxSim"),
        training_alignment=_alignment("InBatchTopK", k=4),
        normaliser="alignment",
    ),
    "mva": _MVA,
    "mva-heads": _MVA | dict(heads=2),
    "mva-learned": _MVA | dict(pooling={"document": _pooling("LearnedTokens", k=3)}),
    "mva-temporal": _MVA | dict(pooling={"document": _pooling("Temporal", factor=2)}),
    "wu": dict(alignment=_alignment("MaxSim", direction="document_to_query")),
}


class Texts(TextTable):
    """A table of texts by their tokens, with ids PREFIX0, PREFIX1, …; columns may be replaced."""

    def __init__(self, tokens, prefix, titles=None):
        ids = [f"{prefix}{n}" for n in range(len(tokens))]
        texts = [" ".join(map(str, row)) for row in tokens]
        titles = [row[:3] for row in tokens] if titles is None else titles
        super().__init__(dict(id=ids, tokens=tokens, text=texts, title_tokens=titles))

    def __setitem__(self, name, column):
        self.columns[name] = column


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


def beams(step):
    """Takes two steps of a beam search over three queries.

    Yields the log-probabilities of each beam's next token, the beams' queries, and their tokens.
    """
    step(torch.zeros(3, dtype=torch.int64), torch.arange(3))
    rows, prefixes = torch.arange(3), [[] for _ in range(3)]
    for tokens, parents in (([9, 8, 7, 6], [0, 0, 1, 2]), ([11, 12], [3, 1])):
        found = step(torch.tensor(tokens), torch.tensor(parents))
        rows = rows[parents]
        prefixes = [[*prefixes[p], t] for p, t in zip(parents, tokens, strict=True)]
        yield found[:], rows, prefixes


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


def make_multi_vector(kind="t5_colbert", backbone=None, template=None, **options):
    """A multi-vector system: a kind of `MULTI_VECTOR`, and options that differ."""
    torch.manual_seed(0)
    backbone = {**(backbone or BACKBONE), "template": template}
    defaults = dict(dimension=8, query_length=8, document_length=12, loss=IN_BATCH)
    settings = dict(search={}, optimizer=OPTIMIZER, **MULTI_VECTOR[kind])
    options = {**defaults, **settings, **options}
    options["search"] = make_search(**options["search"]).settings
    model = MultiVector(backbone, **options)
    texts = Texts(draw_tokens([3, 9, 5], seed=8), "d")
    model.prepare(texts, range(3), "")
    return sharpen(model).eval()


def make_cross_encoder(**options):
    torch.manual_seed(0)
    defaults = dict(backbone=BACKBONE, query_length=8, document_length=12, loss=IN_BATCH)
    return sharpen(CrossEncoder(**{**defaults, "optimizer": OPTIMIZER, **options})).eval()


def make_splade(**options):
    """Some terms have weight, many have none."""
    torch.manual_seed(0)
    defaults = dict(backbone=BACKBONE, query_length=8, document_length=12, loss=IN_BATCH)
    terms = dict(keep={"query": 9, "document": 20}, regulariser={"query": 0.1, "document": 0.2})
    settings = dict(initial_bias=-1.0, optimizer=OPTIMIZER, **terms)
    return sharpen(SPLADE(**{**defaults, **settings, **options})).eval()


def make_seal(backbone=None, **options):
    torch.manual_seed(0)
    defaults = dict(query_length=8, document_length=12, key_length=4, beam_size=3)
    settings = dict(evidence=EVIDENCE, optimizer=OPTIMIZER)
    kind = MultiViewSEAL if options.keys() & {"special_tokens", "query_ngrams"} else T5SEAL
    return kind(backbone=backbone or BACKBONE, **{**defaults, **settings, **options}).eval()


def logits_of(system, queries, query_mask, rows, mask):
    """(n, R) logits of the n real target positions, row by row of `mask`."""
    return system.head.logits(*system.target_states(queries, query_mask, rows, real_places(mask)))


def save_tokenizer(folder):
    """A tokeniser of the words w4 … w59, which are the tokens 4 … 59."""
    tokenizer = build_word_tokenizer([" ".join(f"w{token}" for token in range(4, VOCABULARY))])
    tokenizer.save_pretrained(folder)
    return str(folder)


def make_docid(kind="semantic", documents=None, known=None, directory=None, **options):
    """A docid system, prepared on a table.

    Args:
        kind: of `DOCIDS`; identifiers and head may also be given as options.
        known: rows of the documents known in training; None = all.
        directory: where the identifiers are kept; None = nowhere.
    """
    torch.manual_seed(0)
    documents = named_documents() if documents is None else documents
    known = range(len(documents)) if known is None else known
    identifiers, head = DOCIDS[kind]
    defaults = dict(
        backbone=BACKBONE,
        identifiers=identifiers,
        head=head,
        query_length=8,
        document_length=12,
        beam_size=20,
        optimizer=OPTIMIZER,
    )
    model = sharpen(Docid(**{**defaults, **options}))
    with TemporaryDirectory() as folder:
        model.prepare(documents, known, directory or f"{folder}/identifiers")
    return model.eval()


def pairs_of(system, query, rows):
    """A query with each of some documents; a docid system looks their identifiers up."""
    ids, mask = pad([system.prepare_query(query)] * len(rows))
    junk = torch.full((len(rows), 2), 5)
    return PairBatch(ids, mask, junk, junk > 0, torch.tensor(rows))


def named_documents():
    """Eight documents whose titles share tokens and beginnings; the last two share theirs."""
    texts = draw_tokens([3, 14, 1, 6, 6, 20, 9, 2], seed=3)
    titles = [[9, 8], [9, 8, 7], [9], [8, 9, 8], [7, 7, 7, 8], [11, 9], [12, 8], [12, 8]]
    return Texts(texts, "d", titles)


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


def untied_backbone(folder):
    """A T5 v1.1, whose output table is its own and not scaled, as arguments of a backbone."""
    torch.manual_seed(1)
    config = T5Config(
        **SHAPE, feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0
    )
    source = T5ForConditionalGeneration(config)
    source.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, 16))
    source.save_pretrained(folder)
    return dict(name=str(folder), dropout_rate=0.0, attention="sdpa")


@pytest.fixture(autouse=True, scope="module")
def _float64(float64):
    """Models and data are float64. What is stored and searched stays fp32."""


@pytest.fixture(params=["tied", "untied"], name="seal")
def _seal(request, tmp_path_factory):
    """T5-SEAL on an original T5 and on a T5 v1.1."""
    if request.param == "tied":
        return sharpen(make_seal())
    seal = make_seal(untied_backbone(tmp_path_factory.mktemp("t5_v1_1")))
    assert seal.backbone.lm_head.weight is not seal.backbone.shared.weight
    assert seal.head.scale == 1
    return sharpen(seal)


# Tiny causal language models: grouped queries, norms of queries and keys, sandwich norms and
# sliding windows, learned positions and biases.
_DECODER = dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4)
_GROUPED = dict(_DECODER, num_key_value_heads=2, head_dim=6, intermediate_size=24)
_SLIDING = dict(sliding_window=5, layer_types=["sliding_attention", "full_attention"])
CAUSAL = {
    "qwen3": (Qwen3Config, _GROUPED | dict(tie_word_embeddings=False)),
    "llama": (LlamaConfig, _GROUPED),
    "gemma3": (Gemma3TextConfig, _GROUPED | _SLIDING),
    "gpt2": (GPT2Config, _DECODER),
}


def causal_backbone(folder, family="gemma3"):
    """A tiny causal language model whose norms and biases count, as arguments of a backbone."""
    torch.manual_seed(0)
    config, shape = CAUSAL[family]
    model = AutoModelForCausalLM.from_config(config(**shape, bos_token_id=3, eos_token_id=1))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.5 * torch.randn_like(weight) + 0.3 * (weight.dim() == 1))
    model.save_pretrained(folder)
    template = dict(query=[3], document=[3], target=[3], suffix=[2, 1])
    return dict(name=str(folder), dropout_rate=0.0, template=template)


# Every head, all kinds of identifiers, both kinds of T5, and a causal language model.
GENERATIVE = ["seal", "semantic-pawa", "titles-nci", "titles-np", "titles-gemma3"]


def make_generative(kind, folder):
    if kind == "seal":
        return sharpen(make_seal())
    backbones = {"titles-nci": untied_backbone, "titles-gemma3": causal_backbone}
    options = {"backbone": backbones[kind](folder)} if kind in backbones else {}
    return make_docid(kind.removesuffix("-gemma3"), **options)


@pytest.fixture(params=GENERATIVE)
def system(request, tmp_path):
    return make_generative(request.param, tmp_path)


@pytest.fixture
def documents():
    return Texts(draw_tokens([3, 14, 1, 6, 6, 20, 9], seed=3), "d")


@pytest.fixture
def queries():
    return Texts(draw_tokens([4, 2, 11], seed=4), "q")


@pytest.fixture(name="tools")
def _tools():
    """The helpers of this file."""
    return sys.modules[__name__]
