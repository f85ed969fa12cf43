"""Systems on every family of backbones: trained, indexed, searched and aligned."""

import json
import re

import pytest
import torch

from analysis.export import export_run
from models.retriever import Retriever
from tests.families import save_family
from tests.runs import beir, compose_config
from train import train

SHORT = (
    *("trainer.max_steps=2", "data.max_rerank_queries=2", "model.optimizer.schedule=constant"),
    "model.optimizer.learning_rate=3e-3",  # of random weights
)
COLBERT = ("tokenizer.skip=punctuation", "model.attend_expansion=false", "query_length=12")
QUERY = "which fruit is plum?"
# Each family under one system, and each kind of system on several families.
SYSTEMS = {
    "bert": ("t5_colbert", *COLBERT, "tokenizer.markers={query:'[unused0]',document:'[unused1]'}"),
    "distilbert": ("dpr",),
    "roberta": ("cross_encoder",),
    "xlm-roberta": ("xtr", "model.search.proposer.neighbours=20"),
    "modernbert": ("t5_colbert", *COLBERT, "tokenizer.markers={query:'[Q] ',document:'[D] '}"),
    "deberta-v2": ("mva",),
    "t5": ("t5_colbert",),
    "mt5": ("t5_seal",),
    "byt5": ("genre",),
    "bart": ("genre", "tokenizer.prefix_space=true"),
    "mbart": ("dsi_semantic",),
    "gpt2": ("dpr", "backbone.bidirectional=true"),
    "llama": ("xtr", "model.search.proposer.neighbours=20"),
    "qwen3": ("repllama", "backbone.gradient_checkpointing=true"),
    "gemma3": ("t5_colbert", "backbone.bidirectional=true"),
    "mamba": ("sentence_t5",),
    "lfm2": ("t5_colbert", "tokenizer.markers={query:'which one? ',document:'[D]'}"),
}


# Causal language models that generate.
GENERATORS = {
    "gemma3": ("genre", "tokenizer.prompt='Question: {text} Title:'"),
    "gpt2": ("dsi_semantic",),
    "llama": ("dsi_pawa", "model.head.layers=1"),
    "qwen3": ("genre_np_base",),
    "lfm2": ("genre",),
}


def texts(folder):
    files = folder / "corpus.jsonl", folder / "queries.jsonl"
    return [json.loads(line)["text"] for file in files for line in file.read_text().splitlines()]


def run(tmp_path, data, family, model, *overrides):
    """A run of a system on a tiny checkpoint of a family, saved in bf16 as most are today."""
    name = save_family(family, tmp_path / family, texts(data), dtype=torch.bfloat16)
    if "tokenizer.skip=punctuation" in overrides:
        overrides += ("tokenizer.expansion='[MASK]'",)
    fixed = (
        "data=beir",
        f"data.path={data}",
        "logger=none",
        "analysis=none",
        "backbone=pretrained",
    )
    named = (f"model={model}", f"backbone.name={name}", f"output={tmp_path}", "name=run")
    return train(compose_config("train", *fixed, *named, *overrides))


@pytest.mark.parametrize(("family", "system"), [*SYSTEMS.items(), *GENERATORS.items()])
def test_a_family_is_trained_indexed_searched_and_aligned(family, system, tmp_path):
    model, *overrides = system
    done = run(tmp_path, beir(tmp_path / "fruits"), family, model, *SHORT, *overrides)
    opened = Retriever.load(done)
    assert {weight.dtype for weight in opened.system.parameters()} == {torch.float32}
    hits = opened.search(QUERY, k=3)
    # T5-SEAL finds the documents of what a model of two steps happens to generate.
    assert len(hits) == 3 or (model == "t5_seal" and hits)
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert sum(share.value for share in hits[0].shares) == pytest.approx(hits[0].score, abs=1e-4)
    if not opened.system.alignable:
        return
    pair = opened.align(QUERY, "plum")
    total = (pair.similarity * pair.alignment).sum() / pair.normaliser[0]
    assert pair.relevance[0] == pytest.approx(float(total), abs=1e-4)
    if opened.system.paradigm == "generative":
        rest = 0.0 if pair.prefix is None else pair.prefix.alignment.sum(-1)
        assert torch.allclose(pair.alignment.sum(-1) + rest, torch.ones(()), atol=1e-5)


def test_the_card_of_a_causal_language_model_searches_as_we_do(tmp_path):
    """Its tokeniser makes the prompts, padded on the left; `generate` finds our documents."""
    prompt = "tokenizer.prompt='Question: {text} Title:'"
    done = run(tmp_path, beir(tmp_path / "fruits"), "gemma3", "genre", *SHORT, prompt)
    card = (export_run(done, tmp_path / "exported") / "README.md").read_text()
    queries = ["a query", QUERY]
    card = card.replace('"…"', repr(str(tmp_path / "exported"))).replace(
        '["a query"]', repr(queries)
    )
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", card, re.S)[:2]:
        exec(block, names)
    opened, beam = Retriever.load(done), len(names["documents"]) // 2
    for number, query in enumerate(queries):
        hits = opened.search(query, k=5)
        found = [d for named in names["documents"][number * beam :][:beam] for d in named]
        assert found[:5] == [hit.id for hit in hits]
        scores = names["scores"][number * beam :][:5].tolist()
        assert scores == pytest.approx([hit.score for hit in hits], abs=1e-4)
