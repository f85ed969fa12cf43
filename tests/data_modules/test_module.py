from itertools import pairwise

import datasets
import numpy as np
import pytest
import torch
from datasets import Dataset

from data_modules.collection import JUDGEMENTS, Collection, relevant_pairs
from data_modules.epoch import collate
from data_modules.examples import SpanExamples
from data_modules.module import RetrievalDataModule
from data_modules.tasks import Example
from gr_mvdr.tokenizers import EOS_ID, UNK_ID

LEXICON = "river stone amber castle hollow marsh bright winter copper lantern north harbour".split()
TOKENIZER = dict(backbone=None, path=None, unit="word", vocab_size=500, lowercase=True)


def text(seed, n):
    return " ".join(np.random.default_rng(seed).choice(LEXICON, n))


def collection():
    documents = {
        "id": [f"d{n}" for n in range(30)],
        "title": [f"title{n}" for n in range(30)],
        "text": [text(n, 5 + n) for n in range(30)],
    }
    queries = {
        "id": [f"q{n}" for n in range(20)],
        "text": [text(100 + n, 2 + n % 5) for n in range(20)],
    }

    def judged(rows):
        columns = zip(*rows, strict=True)
        names = ("query_id", "document_id", "relevance")
        return Dataset.from_dict(dict(zip(names, columns, strict=True)), features=JUDGEMENTS)

    train = [(f"q{n}", f"d{2 * n}", 1) for n in range(10)] + [("q0", "d7", 2), ("q1", "d8", 0)]
    test = [(f"q{n}", f"d{n}", 1) for n in range(10, 20)] + [("q10", "d29", 1), ("q11", "d3", 0)]
    return Collection(
        "tiny",
        Dataset.from_dict(documents),
        Dataset.from_dict(queries),
        {"train": judged(train), "test": judged(test), "dev": judged([("q3", "d3", 1)])},
        {},
    )


class Tiny(RetrievalDataModule):
    def read(self):
        return collection()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def tiny(**options):
    return Tiny(**{"test_split": "test", "tokenizer": TOKENIZER, **options})


def test_collate_pads():
    examples = [Example([5, 6, 7, 1], [[10, 1], [11, 12, 1]], 4), Example([5, 1], [[14], []], 2)]
    batch = collate(examples)
    assert batch.query_ids.tolist() == [[5, 6, 7, 1], [5, 1, 0, 0]]
    assert batch.query_mask.sum(1).tolist() == [4, 2]
    assert batch.document_ids.tolist() == [[10, 1, 0], [11, 12, 1], [14, 0, 0], [0, 0, 0]]
    assert batch.document_mask.sum(1).tolist() == [2, 3, 1, 0]
    assert batch.document_index.tolist() == [4, 2]


def test_examples_with_several_targets_are_taken_apart_where_others_have_one():
    """A model finds as many targets for every source of a batch."""
    batch = collate([Example([5, 6], [[10, 1], [11]], 4), Example([7], [[14, 1]], 2)])
    assert batch.query_ids.tolist() == [[5, 6], [5, 6], [7, 0]]
    assert batch.document_ids.tolist() == [[10, 1], [11, 0], [14, 1]]
    assert batch.document_index.tolist() == [4, 4, 2]


def test_training_examples_are_the_relevant_judgements():
    data = tiny(query_length=4, document_length=9)
    epoch = data.epoch(0)
    found = {(tuple(example.source), example.document) for example in epoch}
    rows = data.queries("train")
    names = {row["id"]: (*row["tokens"][:3], EOS_ID) for row in rows}
    expected = {(names[f"q{n}"], 2 * n) for n in range(10)} | {(names["q0"], 7)}
    assert found == expected and len(epoch) == 11
    for _, targets, document, negatives in epoch:
        assert negatives is None
        assert targets == [[*data.documents[document]["tokens"][:8], EOS_ID]]


def epochs(data, *numbers):
    """All batches of some epochs, as lists."""
    found = []
    for epoch in numbers:
        batches = list(data._loader(data.epoch(epoch)))
        columns = ("query_ids", "document_ids", "document_index")
        found.append([[getattr(b, name).tolist() for name in columns] for b in batches])
    return found


def test_every_epoch_draws_fresh_spans_in_a_fresh_order_the_same_for_the_same_seed():
    options = dict(examples=SpanExamples(n_spans=3, length=3), batch_size=4)
    one, two, one_again = epochs(tiny(**options, seed=7), 1, 2, 1)
    assert one == one_again != two
    assert epochs(tiny(**options, seed=7), 1) == [one], "another process would see the same"
    assert epochs(tiny(**options, seed=8), 1) != [one]
    assert sorted(len(batch[0]) for batch in one) == [3, 4, 4], "no pair is lost"
    assert [len(batch[1]) for batch in one] == [3 * len(batch[0]) for batch in one]
    data = tiny(**options)
    assert data.epoch(1)[5].source == data.epoch(0)[5].source
    assert data.epoch(1)[5].targets != data.epoch(0)[5].targets


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_hold_every_pair_once(shuffle, monkeypatch):
    monkeypatch.setattr("data_modules.epoch._POOL_BATCHES", 2)
    data = tiny()
    batches = data.epoch(0).batches(2, shuffle)
    assert sorted(pair for batch in batches for pair in batch) == list(range(11))
    assert sorted(map(len, batches)) == [1, 2, 2, 2, 2, 2]
    assert data.epoch(0).batches(2, shuffle) == batches
    assert (data.epoch(1).batches(2, shuffle) != batches) == shuffle


def test_pairs_of_like_length_share_a_batch():
    epoch = tiny().epoch(0)
    lengths = [len(example.source) + len(example.targets[0]) for example in epoch]
    batches = sorted([lengths[pair] for pair in batch] for batch in epoch.batches(3, True))
    assert all(max(one) <= min(two) for one, two in pairwise(batches))


def test_loader_workers_change_nothing():
    options = dict(examples=SpanExamples(n_spans=3, length=3), batch_size=4)
    assert epochs(tiny(**options, num_workers=1), 1) == epochs(tiny(**options), 1)


def test_validation_pairs_stay_the_same():
    assert tiny().val_dataloader() == []
    data = tiny(validation_split="dev", examples=SpanExamples(2, 3))
    runs = [[batch.document_ids.tolist() for batch in data.val_dataloader()] for _ in range(2)]
    assert runs[0] == runs[1] and len(runs[0]) == 1


def test_documents_have_the_joined_text_and_all_their_tokens():
    data = tiny(document_length=4)
    row = data.documents[25]
    assert row["text"].startswith("title25 | ") and len(row["tokens"]) == 31
    assert row["title_tokens"] == row["tokens"][:1]
    alone = tiny(text_fields=("text",)).documents[25]
    # The word is in no text that the tokeniser knows.
    assert alone["title_tokens"] == [UNK_ID] and len(alone["tokens"]) == 30


def test_documents_of_a_new_split_are_unknown_unless_training_has_them():
    assert tiny().known_documents.tolist() == list(range(30))
    # d10, d12, …, d18 are training documents too; d3 is only judged irrelevant.
    new = [11, 13, 15, 17, 19, 29]
    known = tiny(new_documents=["test"]).known_documents
    assert known.tolist() == [row for row in range(30) if row not in new]
    both = tiny(new_documents=["test", "dev"]).known_documents
    assert both.tolist() == [row for row in known if row != 3]


def test_samples_are_stable_and_nested():
    data = tiny(max_test_queries=6, max_rerank_queries=3)
    chosen, again = data.test_queries("test")["id"][:], tiny(max_test_queries=6)
    assert len(chosen) == 6 and again.test_queries("test")["id"][:] == chosen
    assert set(data.rerank_queries("test")["id"]) < set(chosen)
    # Runs of several seeds are measured on the same queries.
    assert tiny(max_test_queries=6, seed=1).test_queries("test")["id"][:] == chosen
    assert len(tiny(max_test_queries=99).test_queries("test")) == 10


def test_candidates_are_the_best_of_bm25_and_every_relevant_document_once():
    data = tiny(candidates=4)
    queries = data.rerank_queries("test")
    lists = data.candidates("test", queries)
    assert list(lists) == queries["id"][:]
    for query, row in zip(queries["id"], queries["text"], strict=True):
        best = list(data.bm25.best(row.split(), 4))
        relevant = [d for d, grade in data.judgements("test", queries)[query].items() if grade > 0]
        assert lists[query][: len(best)] == best and set(relevant) <= set(lists[query])
        assert len(set(lists[query])) == len(lists[query]) <= 4 + len(relevant)
    assert "d3" not in lists["q11"] or "d3" in data.bm25.best(
        data.queries("test")[1]["text"].split(), 4
    )
    assert tiny(candidates=0).candidates("test", queries)["q10"] == ["d10", "d29"]


def test_judgements_are_those_of_the_given_queries():
    data = tiny(max_test_queries=2)
    queries = data.test_queries("test")
    assert set(data.judgements("test", queries)) == set(queries["id"])


def test_cut_texts_counts_what_is_cut():
    data = tiny(query_length=5, document_length=20)
    splits, documents = ("train", "test"), data.documents["tokens"]
    queries = [tokens for split in splits for tokens in data.queries(split)["tokens"]]
    # A text keeps its length − 1 first tokens and the end token.
    expected = {
        "queries": sum(len(tokens) > 4 for tokens in queries),
        "documents": sum(len(tokens) > 19 for tokens in documents),
    }
    assert data.cut_texts() == expected and 0 < expected["documents"] < 30


def test_test_pairs_pair_test_queries_with_their_relevant_documents():
    data = tiny()
    names, batches = data.test_pairs("test", limit=8, batch_size=3)
    assert len(names) == 8 == sum(map(len, batches)) and [len(b) for b in batches] == [3, 3, 2]
    grades = collection().judgements("test")
    assert all(grades[query][document] > 0 for query, document in names)
    rows = torch.cat([batch.document_index for batch in batches]).tolist()
    assert [f"d{row}" for row in rows] == [document for _, document in names]


@pytest.mark.parametrize("key", ["test_split", "train_split", "validation_split", "new_documents"])
def test_an_unknown_split_names_the_splits_there_are(key):
    value = ["nope"] if key == "new_documents" else "nope"
    with pytest.raises(ValueError, match=rf"data.{key}=nope: must be one of dev, test, train"):
        _ = tiny(**{key: value}).collection


@pytest.mark.parametrize("key", ["query_length", "document_length", "batch_size"])
def test_lengths_that_leave_no_token_are_refused(key):
    with pytest.raises(ValueError, match=rf"{key}=0: must be ≥"):
        tiny(**{key: 0})


def test_relevant_pairs_leave_other_queries_out():
    table = relevant_pairs(
        collection().qrels["test"],
        Dataset.from_dict({"id": ["q11", "q10"]}),
        collection().documents,
    )
    pairs = sorted(zip(table["query_row"], table["document_row"], strict=True))
    assert pairs == [(0, 11), (1, 10), (1, 29)]
    nothing = Dataset.from_dict({"id": ["other"]})
    empty = relevant_pairs(collection().qrels["test"], nothing, collection().documents)
    assert len(empty) == 0 and set(empty.column_names) == {"query_row", "document_row"}
