"""Generative systems on BART, mBART, and a BERT with a decoder: what transformers computes."""

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    MBartConfig,
    MBartForConditionalGeneration,
)

from gr_mvdr.backbones import find_start_token
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.relevance import relevance
from gr_mvdr.template import TextTemplate
from models.saved_model import write_backbone

SHAPE = dict(vocab_size=60, d_model=16, max_position_embeddings=64, pad_token_id=1, bos_token_id=0)
SHAPE |= {
    f"{stack}_{size}": number
    for stack in ("encoder", "decoder")
    for size, number in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 24))
}
CODE = 3  # mBART's language code, which ends a text and starts the decoder
TEMPLATES = {
    "bart": TextTemplate(query=(0,), document=(0,), target=(0,), suffix=(2,), stop=2, pad=1),
    "bert": TextTemplate(query=(0,), document=(0,), target=(0,), suffix=(2,), stop=2, pad=1),
    "mbart": TextTemplate(suffix=(2, CODE), stop=2, pad=1),
}


@pytest.fixture(scope="module")
def backbones(tmp_path_factory):
    """Arguments of a backbone for each family: saved models, the mBART without a start token."""
    made = {}
    bert = dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24)
    for family, model, config, options in (
        ("bert", BertModel, BertConfig, bert),
        ("bart", BartForConditionalGeneration, BartConfig, {"decoder_start_token_id": 2}),
        ("mbart", MBartForConditionalGeneration, MBartConfig, {"scale_embedding": True}),
    ):
        torch.manual_seed(0)
        built = model(config(**SHAPE, **options, eos_token_id=2))
        with torch.no_grad():
            for name, weight in built.named_parameters():
                is_norm = weight.dim() == 1 and name.endswith("weight")
                weight.copy_(
                    0.5 + torch.rand_like(weight) if is_norm else 0.4 * torch.randn_like(weight)
                )
            if family != "bert":
                built.final_logits_bias.normal_()
        built.save_pretrained(folder := tmp_path_factory.mktemp(family))
        fixed = dict(dropout_rate=0.0, attention="eager", template=TEMPLATES[family].settings)
        made[family] = dict(name=str(folder), **fixed)
    made["bert"]["from_encoder"] = {"layers": 2}
    return made


def make_pairs(template, seed=0):
    """Queries as the encoder reads them, and targets as the decoder writes them."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randint(4, 60, (n,), generator=generator).tolist()  # noqa: E731
    queries = [template.read_query(draw(n), 20) for n in (3, 5, 1)]
    targets = [template.read_target(draw(n), 20) for n in (4, 1, 6)]
    return PairBatch(*pad(queries), *pad(targets), torch.arange(3))


@pytest.mark.parametrize("family", TEMPLATES)
@torch.no_grad()
def test_loss_and_cached_decoding_are_those_of_transformers(family, backbones, tools, tmp_path):
    seal, template = tools.make_seal(backbones[family]), TEMPLATES[family]
    batch = make_pairs(template)
    labels = batch.document_ids.masked_fill(~batch.document_mask, -100)
    sides = dict(input_ids=batch.query_ids, attention_mask=batch.query_mask.long())
    if family != "mbart":
        expected = seal.backbone(**sides, labels=labels)
    else:  # transformers takes the start off the labels' end: theirs end with the code
        start = torch.full((3, 1), CODE)
        shifted = torch.cat([start, batch.document_ids[:, :-1]], 1)
        expected = seal.backbone(**sides, decoder_input_ids=shifted, labels=labels)
        write_backbone(seal.backbone, tmp_path)  # its own configuration leaves the start open
        assert MBartConfig.from_pretrained(tmp_path).decoder_start_token_id == CODE
    assert torch.isclose(seal.loss(batch), expected.loss, atol=1e-9)
    step = seal.decoding_step(batch.query_ids, batch.query_mask)
    for found, rows, prefixes in tools.beams(step):
        inputs = torch.tensor([[find_start_token(seal.backbone), *prefix] for prefix in prefixes])
        own = {name: value[rows] for name, value in sides.items()}
        logits = seal.backbone(**own, decoder_input_ids=inputs).logits[:, -1]
        assert torch.allclose(found, logits.log_softmax(-1), atol=1e-9)


@pytest.mark.parametrize(
    ("family", "head"),
    [("mbart", "PLAIN"), ("bert", "PLAIN"), *(("bart", h) for h in ("PLAIN", "PAWA", "NP"))],
)
@torch.no_grad()
def test_every_head_aligns_searches_and_scores_by_one_number(head, family, backbones, tools):
    """Titles, <s> first on a BART; paths sum to logits; the search's score is `score`."""
    documents = tools.named_documents()
    options = dict(backbone=backbones[family], head=getattr(tools, head), identifiers=tools.TITLES)
    system, template = tools.make_docid("titles", **options), TEMPLATES[family]
    title = documents["title_tokens"][1]
    assert system.identifiers.sequences[1] == [*template.target, *title, 2]
    system.index(documents)
    queries = tools.Texts([[10, 12, 14], [20]], "q")
    ranking = system.retrieve(queries, k=8)
    for number, name in enumerate(queries["id"]):
        found = ranking.scores(name)
        assert len(found) == 8, "the beam is wider than the collection"
        rows = [documents["id"].index(document) for document in found]
        pairs = tools.pairs_of(system, queries["tokens"][number], rows)
        assert torch.allclose(system.score(pairs), torch.tensor(list(found.values())), atol=1e-9)
    explanation = system.explain(pairs)
    decoder, real = explanation.decoder, explanation.layers[-1].document_mask
    assert torch.allclose(decoder.contributions.sum(1)[real], decoder.logits[real], atol=1e-9)
    assert ("output_bias" in decoder.names) == (head == "PLAIN")
    layer = explanation.layers[0]
    path = decoder.contributions[:, decoder.names.index("cross_attention_1")]
    assert torch.allclose((layer.similarity * layer.alignment).sum((1, 3)), path, atol=1e-9)
    assert torch.allclose(layer.relevance, relevance(layer.similarity, layer.alignment).sum(1))
