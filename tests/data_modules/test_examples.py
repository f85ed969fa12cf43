import datasets
import numpy as np
import pytest
from datasets import Dataset

from data_modules.examples import DocumentExamples, SpanExamples, TrainingTables
from data_modules.spans import span_weights
from data_modules.tokenisation import add_tokens
from gr_mvdr.tokenizers import word_tokenizer

DOCUMENTS = ["alpha beta gamma delta epsilon zeta", "one two three", "alone"]
QUERIES = ["gamma delta?", "who is three", "beta"]


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Three texts a side; the pairs are not in the documents' order."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    tokenizer = word_tokenizer(DOCUMENTS + QUERIES)

    def table(texts):
        rows = {"id": [str(n) for n in range(len(texts))], "text": texts}
        return add_tokens(Dataset.from_dict(rows), tokenizer)

    pairs = Dataset.from_dict({"query_row": [1, 0, 2, 2], "document_row": [1, 0, 0, 2]})
    return TrainingTables(pairs, table(QUERIES), table(DOCUMENTS), 256)


def test_the_document_itself(tables):
    targets = DocumentExamples().prepare(tables)
    rng = np.random.default_rng(0)
    documents = tables.documents["tokens"][:]
    found = [targets.draw(pair, rng) for pair in range(4)]
    assert found == [[documents[1]], [documents[0]], [documents[0]], [documents[2]]]
    assert targets.lengths().tolist() == [3, 6, 6, 1]


def contiguous(piece, whole):
    return any(whole[s : s + len(piece)] == piece for s in range(len(whole)))


def test_span_targets_are_contiguous_pieces_of_the_pairs_document(tables):
    pairs, documents = tables.pairs, tables.documents
    targets = SpanExamples(n_spans=7, length=2).prepare(tables)
    for pair, row in enumerate(pairs["document_row"]):
        spans = targets.draw(pair, np.random.default_rng(pair))
        assert len(spans) == 7
        for span in spans:
            assert 1 <= len(span) <= 2 and contiguous(span, documents[row]["tokens"])


def test_span_starts_follow_the_weights_of_the_pair(tables):
    queries, documents = tables.queries, tables.documents
    targets = SpanExamples(n_spans=20_000, length=1, temperature=0.5).prepare(tables)
    tokens = documents[0]["tokens"]
    drawn = [span[0] for span in targets.draw(1, np.random.default_rng(0))]
    frequency = [drawn.count(token) / len(drawn) for token in tokens]
    expected = span_weights(queries[0]["text"], documents[0]["text"], 0.5)
    assert np.allclose(frequency, expected, atol=0.02)
    assert expected.max() - expected.min() > 0.1


def test_draws_depend_on_the_generator_alone(tables):
    targets = SpanExamples(n_spans=5, length=2).prepare(tables)
    one, two, other = (targets.draw(1, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert one == two != other


def test_weights_are_computed_once_for_each_temperature(tables, monkeypatch):
    SpanExamples().prepare(tables)
    monkeypatch.setattr("data_modules.examples.span_weights", None)
    SpanExamples(n_spans=3, length=4).prepare(tables)
    with pytest.raises(TypeError):
        SpanExamples(temperature=0.5).prepare(tables)


def test_spans_may_be_cut_to_the_length_of_a_key(tables):
    options = dict(n_spans=9, length=4)
    whole, cut = (
        SpanExamples(**options, max_tokens=limit).prepare(tables).draw(1, np.random.default_rng(0))
        for limit in (None, 2)
    )
    assert max(map(len, whole)) > 2 and cut == [span[:2] for span in whole]


@pytest.mark.parametrize("key", ["n_spans", "length", "max_tokens"])
def test_sizes_below_one_are_refused(key):
    with pytest.raises(ValueError, match=rf"data.examples.{key}=0: must be ≥ 1"):
        SpanExamples(**{key: 0})
