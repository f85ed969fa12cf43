"""Exported systems: what transformers, sentence-transformers and this library read back."""

import json
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import T5ForConditionalGeneration

from gr_mvdr.heads.plain import real_places
from gr_mvdr.template import read_template
from gr_mvdr.tokenizers import SPECIAL_TOKENS, load_tokenizer, wrap_tokenizer
from models.beyond.query_generator import QueryGenerator
from models.export import export_model
from models.saved_model import open_model, write_tokenizer

DOCIDS = "naive semantic-pawa titles-nci titles-np".split()


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
        export_model(system, tmp_path / name, tokenizer, {})
        return tmp_path / name

    return written


@pytest.fixture
def untied(tools, tmp_path):
    return tools.untied_backbone(tmp_path / "t5_v1_1")


def plain_logits(system, batch):
    """(n, V) of a system's own decoder, row by row of the targets' mask."""
    encoded = system.encode(batch.query_ids, batch.query_mask)
    places = real_places(batch.document_mask)
    states = system.target_states(encoded, batch.query_mask, batch.document_ids, places)
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
    loaded = open_model(export(system)).double()
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
def test_a_query_generator_loads_back(tools, export, tmp_path):
    lengths, batch = dict(query_length=8, document_length=12), tools.make_batch()
    options = dict(n_queries=2, top_k=3, optimizer=tools.OPTIMIZER)
    asks = QueryGenerator(tools.BACKBONE, str(tmp_path / "gone"), **lengths, **options).eval()
    loaded = open_model(export(asks)).double()
    assert torch.allclose(loaded.score(batch), asks.score(batch), atol=1e-6)
    assert len(list(loaded.generate(tools.named_documents()))) == 8  # with the folder's tokeniser


def test_a_tokeniser_without_an_end_token_appends_its_separator(tmp_path):
    """A BERT whose tokeniser adds no [CLS] and no [SEP] of its own."""
    words = {token: number for number, token in enumerate([*SPECIAL_TOKENS, "a", "b"])}
    model = Tokenizer(WordLevel(words, unk_token="<unk>"))
    model.pre_tokenizer = WhitespaceSplit()
    tokenizer = wrap_tokenizer(model)
    tokenizer.eos_token, tokenizer.sep_token = None, "</s>"
    write_tokenizer(tokenizer, tmp_path)
    written = load_tokenizer(tmp_path)
    assert written("a b")["input_ids"] == [*tokenizer("a b")["input_ids"], tokenizer.sep_token_id]
    assert read_template(written) == replace(read_template(tokenizer), pair=())
