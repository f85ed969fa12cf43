"""A published encoder-decoder with identifiers from a file: scores are transformers' own."""

import json

import pytest
import torch
from transformers import AutoTokenizer, BartForConditionalGeneration

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


@torch.no_grad()
def test_genre_scores_identifiers_as_transformers_does(published, tmp_path):
    checkpoint, data, file, names = published
    asked = ["model=genre", f"data.identifiers={file}", "data=beir", f"data.path={data}"]
    asked += ["logger=none", *NO_ANALYSIS, f"output={tmp_path}", f"weights={checkpoint}"]
    few = ("data.max_test_queries=2", "data.max_rerank_queries=2", "name=run")
    opened = Retriever.load(train(compose_config("train", *asked, *few)))
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
