"""Published models whose head scores: each equals its own library, and trains on."""

import shutil
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer
from transformers import AutoModelForSequenceClassification as Classifier

from models.retriever import Retriever
from tests.families import save_family
from tests.published_folders import WORDS, make_bert
from tests.runs import beir
from train import train

QUERIES = ["w4", "which fruit is w6?", "W9 w10"]
DOCUMENTS = ["w8 (w9).", "The plum is a fruit.", "w5", "w4, w9, w9 w20 w7"]


def make_head(auto, family, folder, **options):
    """A random model of a family with a head, and its tokeniser."""
    save_family(family, folder, [*WORDS, "( ) , . ?"], max_length=160, initializer_range=0.5)
    config = AutoConfig.from_pretrained(folder, **options)
    torch.manual_seed(3)
    auto.from_config(config).half().save_pretrained(folder)
    return folder


def make_cross_encoder(family, folder, saved=False):
    make_head(Classifier, family, folder, num_labels=1)
    if saved:
        CrossEncoder(str(folder), device="cpu").save_pretrained(str(folder))


def score_pairs(folder):
    model = CrossEncoder(str(folder), device="cpu", activation_fn=torch.nn.Identity()).double()
    rows = [[(query, document) for document in DOCUMENTS] for query in QUERIES]
    return torch.stack([model.predict(row, convert_to_tensor=True) for row in rows])


def make_splade(family, folder, activation="relu", free=False):
    raw = folder / "raw"
    make_head(AutoModelForMaskedLM, family, raw)
    encoder = Transformer(str(raw), transformer_task="fill-mask")
    parts = [encoder, SpladePooling("max", activation)]
    if free:
        words = AutoTokenizer.from_pretrained(raw)
        table = SparseStaticEmbedding(words, weight=torch.rand(len(words)))
        parts = [Router.for_query_document([table], parts)]
    SparseEncoder(modules=parts, device="cpu").save_pretrained(str(folder))


def score_terms(folder, opener=SparseEncoder):
    model = opener(str(folder), device="cpu").double()
    queries, documents = model.encode_query(QUERIES), model.encode_document(DOCUMENTS)
    return model.similarity(queries, documents)


def make_static(folder, unit=True):
    raw = make_bert(folder / "raw", ())
    torch.manual_seed(3)
    parts = [StaticEmbedding(AutoTokenizer.from_pretrained(raw), embedding_dim=12)]
    parts += [Normalize()] if unit else []
    SentenceTransformer(modules=parts, device="cpu").save_pretrained(str(folder))
    shutil.rmtree(folder / "raw")


HEADS = {
    "static": (make_static, partial(score_terms, opener=SentenceTransformer)),
    "static, any length": (
        partial(make_static, unit=False),
        partial(score_terms, opener=SentenceTransformer),
    ),
    "cross-encoder, bert": (partial(make_cross_encoder, "bert"), score_pairs),
    "cross-encoder, xlm-roberta": (partial(make_cross_encoder, "xlm-roberta"), score_pairs),
    "cross-encoder, modernbert": (partial(make_cross_encoder, "modernbert"), score_pairs),
    "cross-encoder, saved": (partial(make_cross_encoder, "bert", saved=True), score_pairs),
    "splade, bert": (partial(make_splade, "bert"), score_terms),
    "splade, distilbert": (partial(make_splade, "distilbert"), score_terms),
    "splade, twice": (partial(make_splade, "bert", activation="log1p_relu"), score_terms),
    "splade, free": (partial(make_splade, "bert", activation="log1p_relu", free=True), score_terms),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_published_head_has_the_scores_of_its_library(name, tmp_path):
    make, score = HEADS[name]
    make(folder=tmp_path)
    expected = score(tmp_path).double()
    opened = Retriever.load(tmp_path, dtype=torch.float64)
    found = torch.tensor(opened.score(QUERIES, DOCUMENTS).to_numpy()).T
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert expected.std() > 0.01
    opened.save_pretrained(folder := tmp_path / "exported")
    again = Retriever.load(folder, dtype=torch.float64).score(QUERIES, DOCUMENTS)
    assert torch.allclose(torch.tensor(again.to_numpy()).T, expected, rtol=1e-6, atol=1e-6)
    if name.startswith("cross-encoder") or name in ("splade, bert", "splade, distilbert"):
        assert torch.allclose(score(folder).double(), expected, atol=1e-6)


def make_bge(folder):
    """BGE-M3: one vector, those of the other tokens by a projection, and lexical weights."""
    raw = folder.with_name("raw")
    save_family("xlm-roberta", raw, [*WORDS, "( ) , . ?"], max_length=160, initializer_range=0.5)
    parts = [Transformer(str(raw)), Pooling(32, "cls"), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save_pretrained(str(folder))
    torch.manual_seed(3)
    for name, size in (("colbert_linear", 24), ("sparse_linear", 1)):
        torch.save(torch.nn.Linear(32, size).float().state_dict(), folder / f"{name}.pt")


def score_late(folder):
    """FlagEmbedding's: MaxSim of all states but the first, divided by the query's tokens."""
    model = SentenceTransformer(str(folder), device="cpu").double()
    state = torch.load(folder / "colbert_linear.pt", weights_only=True)

    def encode(texts):
        states = (model.encode(t, output_value="token_embeddings")[1:] for t in texts)
        return [
            F.normalize(F.linear(s, *(x.double() for x in state.values())), dim=-1) for s in states
        ]

    queries, documents = encode(QUERIES), encode(DOCUMENTS)
    return torch.tensor([[float((q @ d.T).amax(1).mean()) for d in documents] for q in queries])


CONTINUED = {
    "cross_encoder": (partial(make_cross_encoder, "bert", saved=True), score_pairs),
    "splade": (partial(make_splade, "bert", activation="log1p_relu", free=True), score_terms),
    "sentence_t5": (make_static, partial(score_terms, opener=SentenceTransformer)),
    "t5_colbert": (make_bge, score_late),
}


@pytest.mark.parametrize("model", CONTINUED)
def test_a_published_head_trains_on_from_its_own_scores(model, tmp_path, capsys):
    make, score = CONTINUED[model]
    make(folder=(folder := tmp_path / "published"))
    expected = score(folder).double()
    asked = (f"model={model}", f"data.path={beir(tmp_path)}", f"output={tmp_path}", "data=beir")
    asked += ("logger=none", "analysis=none", "trainer.max_steps=2", "data.max_rerank_queries=2")
    asked += ("model.optimizer.schedule=constant", "model.optimizer.learning_rate=0.01")
    for option in ("weights", "initial"):
        done = train([*asked, f"{option}={folder}", f"name={option}"])
        found = Retriever.load(done, dtype=torch.float64).score(QUERIES, DOCUMENTS)
        same = torch.allclose(torch.tensor(found.to_numpy()).T, expected, rtol=1e-5, atol=1e-5)
        assert same == (option == "weights")
    said = capsys.readouterr().out
    assert ("without its other scores, of sparse_linear.pt" in said) == (model == "t5_colbert")
