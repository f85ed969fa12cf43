"""Exported systems: what transformers, sentence-transformers and this library read back."""

import json

import pytest
import torch
from transformers import AutoTokenizer, T5EncoderModel, T5ForConditionalGeneration

from gr_mvdr.backbones import load_backbone
from gr_mvdr.heads.plain import real_places
from gr_mvdr.tokenizers import EOS_ID, load_tokenizer
from models.beyond.query_generator import QueryGenerator
from models.cross_encoder import CrossEncoder
from models.export.folder import load_exported, write_system
from models.export.sentence_transformers import find_obstacles
from models.generative import target_states

DOCIDS = "naive semantic-pawa titles-nci titles-np".split()
EXPRESSIBLE = ["t5_colbert", "xtr"]
INEXPRESSIBLE = "dpr aligner idf mva-learned".split()
QUERIES = ["w4", "w5 w9 unknown w7", "w20 w21 w22 w23 w24 w25 w26 w27 w28 w29", ""]
DOCUMENTS = ["w8 w9", " ".join(f"w{n}" for n in range(10, 40)), "w5", "w4 w9 w9 w20"]


@pytest.fixture
def tokenizer(tools, tmp_path):
    return load_tokenizer(tools.save_tokenizer(tmp_path / "tokenizer"))


@pytest.fixture
def export(tokenizer, tmp_path):
    """Writes a system into a folder of its own, which holds its weights exactly: they are fp32."""

    def written(system, name="exported"):
        dtype = next(system.parameters()).dtype
        system.float().to(dtype)
        (tmp_path / name).mkdir()
        write_system(system, tokenizer, tmp_path / name)
        return tmp_path / name

    return written


@pytest.fixture
def untied(tools, tmp_path):
    return tools.untied_backbone(tmp_path / "t5_v1_1")


def plain_logits(system, batch):
    """(n, V) of a system's own decoder, row by row of the targets' mask."""
    encoded = system.encode(batch.query_ids, batch.query_mask)
    places = real_places(batch.document_mask)
    states = target_states(system, encoded, batch.query_mask, batch.document_ids, places)
    return system.head.logits(*states)


def library_logits(folder, batch):
    model = T5ForConditionalGeneration.from_pretrained(folder).eval().double()
    found = model(
        input_ids=batch.query_ids,
        attention_mask=batch.query_mask.long(),
        decoder_input_ids=torch.nn.functional.pad(batch.document_ids, (1, 0))[:, :-1],
    ).logits
    return found[batch.document_mask]


@torch.no_grad()
@pytest.mark.parametrize("tables", ["tied", "untied"])
@pytest.mark.parametrize("kind", ["seal", "atomic", "semantic"])
def test_transformers_gives_a_generative_systems_logits(tools, export, untied, kind, tables):
    options = {} if tables == "tied" else {"backbone": untied}
    system = tools.make_seal(**options) if kind == "seal" else tools.make_docid(kind, **options)
    tools.sharpen(system)
    folder = export(system)
    loaded = T5ForConditionalGeneration.from_pretrained(folder)
    assert (loaded.lm_head.weight is loaded.shared.weight) == (tables == "tied")
    rows = 60 if kind == "seal" else 68
    assert rows == len(loaded.shared.weight) == len(loaded.lm_head.weight)
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] == (tables == "tied") and config["vocab_size"] == rows
    batch = system.targets(tools.make_batch())
    expected = plain_logits(system, batch)
    assert expected.std() > 0.1
    assert torch.allclose(library_logits(folder, batch), expected, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", DOCIDS)
def test_a_docid_system_loads_back_with_its_scores_and_documents(
    tools, export, queries, kind, tmp_path
):
    documents = tools.named_documents()
    depth = {"decoder_layers": 1} if kind == "naive" else {}  # a new decoder is loaded, not new
    system = tools.make_docid(kind, documents=documents, known=range(6), **depth)
    system.assign_new(documents)
    loaded = load_exported(export(system)).double()
    names = {name for name, _ in loaded.named_parameters()}
    assert names == {name for name, _ in system.named_parameters()}
    assert loaded.identifiers.hash == system.identifiers.hash and not loaded.training
    rows = [row for row in range(8) if system.covers(row)]
    batch = tools.pairs_of(system, queries["tokens"][0], rows)
    assert torch.allclose(loaded.score(batch), system.score(batch), atol=1e-6)
    system.index(documents, tmp_path / "a")
    loaded.index({"id": loaded.identifiers.document_ids}, tmp_path / "b")
    found, expected = loaded.retrieve(queries), system.retrieve(queries)
    for query in queries["id"]:
        assert found.scores(query) == pytest.approx(expected.scores(query), abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("head", ["PLAIN", "PAWA", "NP"])
def test_t5_seal_loads_back_with_its_scores(tools, export, untied, documents, head):
    system = tools.sharpen(tools.make_seal(untied, head=getattr(tools, head)))
    system.prepare(documents, range(5), "")
    loaded, batch = load_exported(export(system)).double(), tools.make_batch()
    assert type(loaded.head) is type(system.head)
    assert torch.allclose(loaded.score(batch), system.score(batch), atol=1e-6)
    assert torch.allclose(loaded.align(batch).alignment, system.align(batch).alignment, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("kind", EXPRESSIBLE + INEXPRESSIBLE)
def test_a_multi_vector_system_loads_back_with_its_scores(tools, export, tokenizer, kind):
    system = tools.make_multi_vector(kind)
    folder = export(system)
    batch = tools.make_batch()
    loaded = load_exported(folder).double()
    assert torch.allclose(loaded.score(batch), system.score(batch), atol=1e-6)
    encoder = T5EncoderModel.from_pretrained(folder).double()
    ids, mask = batch.query_ids, batch.query_mask.long()
    expected = system.encoder.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
    found = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    assert torch.allclose(found, expected, atol=1e-5)
    assert bool(find_obstacles(system, tokenizer)) == (kind in INEXPRESSIBLE)
    assert (folder / "modules.json").is_file() == (kind in EXPRESSIBLE)


@torch.no_grad()
def test_other_systems_with_a_t5_load_back(tools, export, tmp_path):
    backbone = dict(name=None, dropout_rate=0.0, attention="eager", shape=tools.SHAPE)
    lengths, batch = dict(query_length=8, document_length=12), tools.make_batch()
    loss = {"_target_": "gr_mvdr.losses.InBatchCrossEntropy"}
    cross = CrossEncoder(backbone, **lengths, loss=loss, optimizer=tools.OPTIMIZER).eval()
    options = dict(n_queries=2, top_k=3, optimizer=tools.OPTIMIZER)
    asks = QueryGenerator(backbone, str(tmp_path / "gone"), **lengths, **options).eval()
    for name, system in {"cross": cross, "asks": asks}.items():
        loaded = load_exported(export(system, name)).double()
        assert torch.allclose(loaded.score(batch), system.score(batch), atol=1e-6)
    assert len(list(loaded.generate(tools.named_documents()))) == 8  # with the folder's tokeniser


@torch.no_grad()
def test_an_exported_folder_is_a_backbone(tools, export, tokenizer, untied):
    seal = tools.sharpen(tools.make_seal(untied))
    colbert, batch = tools.make_multi_vector(), tools.make_batch()
    folders = export(seal, "seal"), export(colbert, "colbert")
    again = tools.make_seal(dict(name=str(folders[0]), dropout_rate=0.0, attention="sdpa")).double()
    assert torch.allclose(again.score(batch), seal.score(batch), atol=1e-5)
    ids, mask = batch.query_ids, batch.query_mask.long()
    expected = colbert.encoder.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
    found = load_backbone(str(folders[1]), 0.0).double().eval()(input_ids=ids, attention_mask=mask)
    assert torch.allclose(found.last_hidden_state, expected, atol=1e-5)
    assert load_backbone(str(folders[0])).shared.weight.equal(seal.backbone.shared.weight)
    with pytest.raises(ValueError, match=r"backbone.name=.*colbert: holds an encoder alone"):
        load_backbone(str(folders[1]), decodes=True)
    for folder in folders:
        loaded = load_tokenizer(folder)
        texts = [*QUERIES, *DOCUMENTS]
        own = tokenizer(texts, add_special_tokens=False)["input_ids"]
        assert loaded(texts, add_special_tokens=False)["input_ids"] == own
        ended = AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]
        assert ended == [[*row, EOS_ID] for row in own]
    assert tokenizer("w4")["input_ids"] == [4]  # the run's own stays as it was
