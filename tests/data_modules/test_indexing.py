"""The indexing task: even, mixed by the ratio, of known documents, the same when repeated."""

import json
from collections import Counter

import numpy as np
import pytest

from data_modules.examples import IdentifierExamples
from data_modules.indexing import (
    DocumentStart,
    GeneratedQueries,
    Indexing,
    Mixed,
    RandomSpans,
)
from data_modules.module import RetrievalDataModule
from gr_mvdr.tokenizers import EOS_ID
from tests.data_modules.tiny import TOKENIZER, make_collection, words, written

pytestmark = pytest.mark.usefixtures("cache")

N_DOCUMENTS, N_PAIRS = 9, 12


class Tiny(RetrievalDataModule):
    """Nine documents of 1 to 9 words; the last two are asked about in the split `new` only."""

    def read(self):
        texts = [words(n, n + 1) for n in range(N_DOCUMENTS)]
        queries = {f"q{n}": words(50 + n, 2 + n % 3) for n in range(N_PAIRS + 2)}
        train = [(f"q{n}", f"d{n % 7}") for n in range(N_PAIRS)]
        qrels = {"train": train, "new": [("q12", "d7"), ("q13", "d8")]}
        return make_collection(texts, queries, qrels=qrels)


def tiny(inputs=None, ratio=1.0, **options):
    defaults = dict(
        test_split="new",
        new_documents=["new"],
        tokenizer_options=TOKENIZER,
        examples=IdentifierExamples(),
        indexing=Indexing(ratio, inputs or DocumentStart(4)),
        query_length=4,
        document_length=6,
        batch_size=4,
    )
    return Tiny(**{**defaults, **options})


def batches(data, epoch):
    columns = ("query_ids", "document_ids", "document_index")
    return [
        [getattr(b, name).tolist() for name in columns] for b in data._loader(data.epoch(epoch))
    ]


@pytest.fixture
def generated(tmp_path):
    """Two or three queries for every second document, none for the others."""
    queries = {n: [words(70 + 5 * n + k, 2 + k) for k in range(2 + n % 2)] for n in (0, 2, 3, 8)}
    lines = [{"document_id": f"d{n}", "queries": texts} for n, texts in queries.items()]
    lines += [{"document_id": "d1", "queries": []}, {"document_id": "d5", "queries": ["", "?!"]}]
    return written(tmp_path / "queries.jsonl", *map(json.dumps, lines)), queries


# How tasks are mixed


@pytest.mark.parametrize("ratio", [0, 0.3, 1, 2.5, 10])
def test_an_epoch_has_every_pair_and_documents_by_the_ratio_evenly(ratio):
    data = tiny(ratio=ratio)
    for epoch in range(3):
        examples = list(data.epoch(epoch))
        assert len(examples) == N_PAIRS + round(ratio * N_PAIRS)
        assert [e.document for e in examples[:N_PAIRS]] == [n % 7 for n in range(N_PAIRS)]
        counts = Counter(example.document for example in examples[N_PAIRS:])
        of_each = [counts[row] for row in range(7)]
        assert max(of_each) - min(of_each) <= 1 and sum(of_each) == sum(counts.values())


def test_an_epoch_depends_on_seed_and_epoch_alone():
    """Resuming at an epoch, and loader workers, change nothing."""
    options = dict(inputs=Mixed([RandomSpans(2), DocumentStart(3)]), ratio=1.5)
    unbroken = tiny(**options)
    epochs = [batches(unbroken, epoch) for epoch in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert batches(tiny(**options), 2) == epochs[2], "resumed at the third epoch"
    assert batches(tiny(**options, num_workers=2), 2) == epochs[2]
    assert batches(tiny(**options, seed=1), 2) != epochs[2]
    assert sum(len(batch[0]) for batch in epochs[0]) == N_PAIRS + 18, "no example is lost"


# Inputs


def indexed(data, n=40):
    """Indexing examples of many epochs, by document, and the documents' own tokens."""
    task = data.training_tasks[1]
    rng = np.random.default_rng(0)
    examples = {int(row): [task.draw(int(row), rng) for _ in range(n)] for row in task.rows}
    return examples, data.documents["tokens"][:]


def test_first_tokens():
    examples, texts = indexed(tiny(DocumentStart(4)), 2)
    assert list(examples) == list(range(7))
    for row, found in examples.items():
        assert [e[:3] for e in found] == [([*texts[row][:3], EOS_ID], [[]], row)] * 2


def test_random_spans_start_anywhere_and_are_whole():
    examples, texts = indexed(tiny(RandomSpans(3)), 60)
    for row, found in examples.items():
        starts = range(max(1, len(texts[row]) - 2))
        expected = {(*texts[row][start : start + 3], EOS_ID) for start in starts}
        assert {tuple(example.source) for example in found} == expected


def test_generated_queries(generated):
    path, queries = generated
    data = tiny(GeneratedQueries(str(path)))
    examples, _ = indexed(data)
    assert list(examples) == [0, 2, 3], "d8 is new, d1 and d5 have no query"
    for row, found in examples.items():
        tokens = [data.tokenizer(text)["input_ids"] for text in queries[row]]
        assert {tuple(e.source) for e in found} == {(*ids[:3], EOS_ID) for ids in tokens}
    counts = Counter(example.document for example in list(data.epoch(0))[N_PAIRS:])
    assert counts == {0: 4, 2: 4, 3: 4}
    assert list(data.training_sources) == [str(path)]
    assert [len(key) for key in data.training_sources.values()] == [64]


def test_mixed_inputs_draw_one_of_those_that_a_document_has(generated):
    path, queries = generated
    data = tiny(Mixed([DocumentStart(2), GeneratedQueries(str(path))]))
    examples, texts = indexed(data, 400)
    assert list(examples) == list(range(7))
    for row, found in examples.items():
        first = sum(example.source == [texts[row][0], EOS_ID] for example in found)
        assert first == 400 if row not in queries else 150 < first < 250
    assert list(data.training_sources) == [str(path)]
    with pytest.raises(ValueError, match="must be a list with at least one"):
        Mixed([])
