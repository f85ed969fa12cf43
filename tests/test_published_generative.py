"""A published encoder-decoder with identifiers from a file: scores are transformers' own."""

import json

import pytest
import torch
from transformers import AutoTokenizer, BartForConditionalGeneration

from gr_mvdr.tokenizers import load_tokenizer
from models.retriever import Retriever
from tests.families import save_family
from tests.runs import NO_ANALYSIS, beir, compose_config
from train import train

QUERY = "which fruit is plum?"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A BART's folder, the collection's, and a file that names the documents."""
    folder = tmp_path_factory.mktemp("published")
    data = beir(folder / "fruits")
    rows = [json.loads(line) for line in (data / "corpus.jsonl").read_text().splitlines()]
    names = {row["_id"]: f"The {row['title']}, a fruit" for row in rows}
    checkpoint = save_family("bart", folder / "bart", [QUERY, *names.values()])
    lines = [f"{name}\t{text}\n" for name, text in names.items()]
    (folder / "identifiers.tsv").write_text("".join(lines))
    return checkpoint, data, folder / "identifiers.tsv", names


def searched(published, folder, *overrides):
    """The run of a search with the checkpoint's weights, opened again."""
    checkpoint, data, _, _ = published
    fixed = ("data=beir", f"data.path={data}", "logger=none", *NO_ANALYSIS, f"output={folder}")
    few = ("data.max_test_queries=2", "data.max_rerank_queries=2", "name=run")
    train(compose_config("train", *fixed, *few, f"weights={checkpoint}", *overrides))
    return Retriever.load(folder / "run")


@torch.no_grad()
def test_genre_scores_identifiers_as_transformers_does(published, tmp_path):
    checkpoint, _, file, names = published
    opened = searched(published, tmp_path, "model=genre", f"data.identifiers={file}")
    hits = opened.search(QUERY, k=12)
    assert len(hits) == 12
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = BartForConditionalGeneration.from_pretrained(checkpoint).eval()
    source = tokenizer(QUERY, return_tensors="pt")
    for hit in hits:
        labels = tokenizer(names[hit.id], return_tensors="pt")["input_ids"]  # <s> text </s>
        log_probs = model(**source, labels=labels).logits.log_softmax(-1)
        expected = log_probs.gather(2, labels.unsqueeze(2)).sum()
        assert hit.score == pytest.approx(float(expected), abs=1e-3)


def test_seal_reads_a_space_before_queries_and_keys(published, tmp_path):
    opened = searched(published, tmp_path, "model=t5_seal", "tokenizer.prefix_space=true")
    index, tokens = opened.system.names.corpus, opened.documents["tokens"][0]
    assert opened.tokenizer.convert_ids_to_tokens(tokens)[0].startswith("Ġ")
    saved = load_tokenizer(tmp_path / "run/tokenizer")
    assert saved(QUERY)["input_ids"] == opened.tokenizer(QUERY)["input_ids"]
    assert index.sequence(0).tolist() == [*tokens, opened.system.template.stop]
    pair = opened.align(QUERY, "plum")
    assert pair.query_tokens[0] == "<s>" and pair.query_tokens[1].startswith("Ġ")
    assert pair.document_tokens[0].startswith("Ġ") and pair.document_tokens[-1] == "</s>"
    assert torch.allclose(pair.alignment.sum(-1), torch.ones(()), atol=1e-5)
