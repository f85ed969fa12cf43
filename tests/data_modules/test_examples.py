from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset

from data_modules.collection import TrainingTables
from data_modules.examples import DocumentExamples, Epoch, IdentifierExamples, QueryExamples
from data_modules.negatives import Bm25Negatives
from data_modules.seal_examples import SealExamples, SpanExamples, span_weights
from data_modules.tokenisation import add_tokens
from gr_mvdr.tokenizers import EOS_ID, build_word_tokenizer

DOCUMENTS = ["alpha beta gamma delta epsilon zeta", "one two three", "alone"]
QUERIES = ["gamma delta?", "who is three", "beta"]


@pytest.fixture
def tables(cache):
    """Three texts a side; the pairs are not in the documents' order."""
    tokenizer = build_word_tokenizer(DOCUMENTS + QUERIES)

    def table(texts):
        rows = {"id": [str(n) for n in range(len(texts))], "text": texts}
        return add_tokens(Dataset.from_dict(rows), tokenizer)

    pairs = Dataset.from_dict({"query_row": [1, 0, 2, 2], "document_row": [1, 0, 0, 2]})
    return TrainingTables(pairs, table(QUERIES), table(DOCUMENTS), 3, 5, tokenizer)


def draw_all(task):
    rng = np.random.default_rng(0)
    return [task.draw(int(number), rng) for number in task.numbers(rng)]


def ended(tokens, length):
    """The first tokens and the end token, `length` in all."""
    return [*tokens[: length - 1], EOS_ID]


def test_the_document_itself(tables):
    task = DocumentExamples().prepare(tables)
    queries, documents = tables.queries["tokens"][:], tables.documents["tokens"][:]
    assert [example[:3] for example in draw_all(task)] == [
        (ended(queries[1], 3), [ended(documents[1], 5)], 1),
        (ended(queries[0], 3), [ended(documents[0], 5)], 0),
        (ended(queries[2], 3), [ended(documents[0], 5)], 0),
        (ended(queries[2], 3), [ended(documents[2], 5)], 2),
    ]
    # A query's tokens and the document's, at most 5 of them.
    assert task.lengths.tolist() == [3 + 3, 2 + 5, 1 + 5, 1 + 1]


def test_an_identifier_is_left_to_the_model(tables):
    documents = draw_all(DocumentExamples().prepare(tables))
    found = draw_all(IdentifierExamples().prepare(tables))
    assert found == [example._replace(targets=[[]]) for example in documents]


def test_a_query_generator_reads_the_document_and_writes_the_query(tables):
    forwards = [example[:3] for example in draw_all(DocumentExamples().prepare(tables))]
    task = QueryExamples().prepare(tables)
    backwards = [(d, [query], row) for query, (d,), row in forwards]
    assert [example[:3] for example in draw_all(task)] == backwards
    short = QueryExamples().prepare(replace(tables, document_length=3))
    backwards = [(ended(d[:-1], 3), [query], row) for query, (d,), row in forwards]
    assert [example[:3] for example in draw_all(short)] == backwards
    assert task.lengths.tolist() == [6, 7, 6, 2] and short.lengths.tolist() == [6, 5, 4, 2]


def test_span_starts_follow_the_weights_of_the_pair(tables):
    queries, documents = tables.queries, tables.documents
    task = SpanExamples(n_spans=5_000, length=1, temperature=0.5).prepare(tables)
    expected = span_weights(queries[0]["text"], documents[0]["text"], 0.5)
    assert expected.max() - expected.min() > 0.1
    # The query as a source that is no pair's has the same targets, but for its punctuation.
    other = tables.tokenizer("gamma delta")["input_ids"]
    unpaired = span_weights("gamma delta", documents[0]["text"], 0.5)
    for weights, targets in (
        (expected, task.draw(1, np.random.default_rng(0)).targets),
        (unpaired, task.targets(0, [*other, EOS_ID], np.random.default_rng(0))),
    ):
        drawn = [span[0] for span in targets]
        frequency = [drawn.count(token) / len(drawn) for token in documents[0]["tokens"]]
        assert np.allclose(frequency, weights, atol=0.03)


def test_separate_spans_are_examples_of_their_own(tables):
    one, own = (
        SpanExamples(n_spans=3, length=2, separate=s).prepare(tables) for s in (False, True)
    )
    whole, parts = (Epoch([task], seed=0, epoch=0) for task in (one, own))
    pairs = len(tables.pairs)
    assert (len(whole), len(parts)) == (pairs, 3 * pairs)
    assert sorted(parts.numbers) == sorted([*range(pairs)] * 3)
    assert {len(parts[place].targets) for place in range(len(parts))} == {1}
    assert len(parts.batches(pairs, shuffle=True)) == 3 * len(whole.batches(pairs, shuffle=True))


def test_every_process_has_its_part_of_every_batch_and_no_example_is_lost():
    task = SimpleNamespace(lengths=np.arange(23) % 5, numbers=lambda rng: np.arange(23))
    epoch = Epoch([task], seed=0, epoch=0)
    for size, processes in ((4, 1), (4, 2), (5, 3), (11, 2)):  # 2 × 11 leaves one example for two
        parts = [epoch.batches(size, True, rank, processes) for rank in range(processes)]
        batches = [list(chain(*batch)) for batch in zip(*parts, strict=True)]
        assert sorted(chain(*batches)) == list(range(23))
        assert all(part for own in parts for part in own), "no process waits for another"
    few = SimpleNamespace(lengths=np.ones(2), numbers=lambda rng: np.arange(2))
    parts = [Epoch([few], seed=0, epoch=0).batches(8, True, rank, 3) for rank in range(3)]
    assert [len(batch) for own in parts for batch in own] == [1, 1, 1]
    assert {place for own in parts for batch in own for place in batch} == {0, 1}


def test_hard_negatives_are_refused_where_documents_are_no_targets():
    for make in (QueryExamples, SealExamples):
        with pytest.raises(ValueError, match=r"^data.examples.negatives: must be null"):
            make(Bm25Negatives(n=1))
