"""Full SEAL's examples: every source asks with its special token, every title ends with its own."""

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from data_modules.collection import TrainingTables
from data_modules.seal_examples import (
    STOPWORDS,
    SealExamples,
    SpanExamples,
    UnsupervisedParts,
    sample_starts,
    span_weights,
)
from data_modules.tokenisation import add_tokens
from gr_mvdr.tokenizers import EOS_ID, build_word_tokenizer

TEXTS = ["alpha beta gamma delta epsilon zeta", "one two three four five", "alone"]
TITLES = ["Greek letters of old", "", "Solitude"]
QUERIES = ["gamma delta?", "who is three", "beta"]
SPECIAL_TOKENS = {"body": [901, 902], "title": [901, 903], "title_end": [904, 904]}


@pytest.fixture
def tables(cache):
    tokenizer = build_word_tokenizer(TEXTS + QUERIES + TITLES)
    documents = {"id": ["a", "b", "c"], "text": TEXTS, "title": TITLES}
    documents = add_tokens(Dataset.from_dict(documents), tokenizer)
    queries = add_tokens(Dataset.from_dict({"id": ["p", "q", "r"], "text": QUERIES}), tokenizer)
    pairs = Dataset.from_dict({"query_row": [1, 0, 2, 2], "document_row": [1, 0, 0, 2]})
    return TrainingTables(pairs, queries, documents, 3, 6, tokenizer, SPECIAL_TOKENS)


def test_each_pair_asks_for_spans_and_for_the_title_if_there_is_one(tables):
    task = SealExamples(n_spans=4, length=2).prepare(tables)
    plain = SpanExamples(n_spans=4, length=2).prepare(tables)
    numbers = task.numbers(np.random.default_rng(0)).tolist()
    assert numbers == list(range(4 + 3)) and len(task.lengths) == 7
    queries, titles = tables.queries["tokens"][:], tables.documents["title_tokens"][:]
    for number in range(4):
        found, unmarked = (t.draw(number, np.random.default_rng(number)) for t in (task, plain))
        assert found.source == [*unmarked.source[:-1], 901, 902, EOS_ID]
        assert found[1:] == unmarked[1:]
    titled = [task.draw(number, np.random.default_rng(0))[:3] for number in range(4, 7)]
    assert titled == [
        ([*queries[query][:2], 901, 903, EOS_ID], [[*titles[row][:3], 904, 904, EOS_ID]], row)
        for query, row in ((0, 0), (2, 0), (2, 2))
    ], "a title is cut to leave its end"


def test_spans_of_an_indexing_example_resemble_its_source_and_not_the_special_token(tables):
    (word,) = tables.tokenizer("zeta", add_special_tokens=False)["input_ids"]
    tables = replace(tables, special_tokens=SPECIAL_TOKENS | {"body": [word]})
    source = [*tables.queries["tokens"][0], EOS_ID]
    task, plain = (
        kind(n_spans=50, length=1).prepare(tables).make_example(source, 0, np.random.default_rng(0))
        for kind in (SealExamples, SpanExamples)
    )
    assert task.source == [*source[:-1], word, EOS_ID] and task.targets == plain.targets


def test_parts_of_documents_go_with_no_hard_negatives(tables):
    retrieval = SpanExamples(negatives=object())
    with pytest.raises(ValueError, match="negatives: must be null with indexing=seal"):
        UnsupervisedParts().prepare(tables, retrieval)


def unsupervised(tables, row, n=800):
    task = UnsupervisedParts(length=2, max_tokens=1).prepare(tables, SealExamples())
    rng = np.random.default_rng(0)
    return [task.draw(row, rng) for _ in range(n)]


def test_parts_of_a_document_answer_each_other_equally_often(tables):
    document = tables.documents[0]
    tokens, title = document["tokens"], document["title_tokens"]
    spans = [tokens[start : start + 2] for start in range(5)]
    title_key = [*title[:3], 904, 904, EOS_ID]
    counts = Counter()
    for source, (target,), row, *_ in unsupervised(tables, 0):
        *text, one, two, end = source
        assert (row, one, end) == (0, 901, EOS_ID)
        if two == 903:
            assert target == title_key and (text == tokens[:5] or text in spans)
            counts["document → title" if text == tokens[:5] else "span → title"] += 1
        else:
            begin, end = target
            assert end == EOS_ID and [begin] in [span[:1] for span in spans]
            assert text == title or (text in spans and text[0] != begin)
            counts["title → span" if text == title else "span → span"] += 1
    assert len(counts) == 4 and all(150 < count < 250 for count in counts.values())


def with_queries(tables, texts):
    """The collection with a further view, which "c" has none of."""
    read = partial(tables.tokenizer, add_special_tokens=False)
    rows = [[read(text)["input_ids"] for text in own] for own in texts]
    special_tokens = SPECIAL_TOKENS | {"query": [901, 905], "query_end": [906]}
    documents = tables.documents.add_column("query_tokens", rows)
    return replace(tables, documents=documents, special_tokens=special_tokens)


ASKED = [["who is alpha", "gamma three"], ["two"], []]


def test_a_pair_asks_for_a_text_of_every_view_that_its_document_has(tables):
    tables = with_queries(tables, ASKED)
    task = SealExamples(n_spans=1, length=2).prepare(tables)
    numbers = task.numbers(np.random.default_rng(0)).tolist()
    # Four pairs, three of them with a title, and three with pseudo-queries: those of "b", "a", "a".
    assert numbers == list(range(4 + 3 + 3)) and len(task.lengths) == 10
    keys = [[[*text, 906, EOS_ID] for text in own] for own in tables.documents["query_tokens"]]
    drawn = {0: [], 1: []}
    for seed in range(20):
        for number in (7, 8, 9):
            source, (target,), row, *_ = task.draw(number, np.random.default_rng(seed))
            assert source[-3:] == [901, 905, EOS_ID] and target in keys[row]
            drawn[row].append(target)
    assert [row for row in keys[0] if row not in drawn[0]] == [], "each of them is drawn"
    plain = SealExamples(n_spans=1, length=2).prepare(
        replace(tables, special_tokens=SPECIAL_TOKENS)
    )
    for number in range(7):
        both = (t.draw(number, np.random.default_rng(number)) for t in (task, plain))
        assert next(both) == next(both)


def test_what_a_view_lacks_is_named(tables):
    without_end = {name: ids for name, ids in SPECIAL_TOKENS.items() if name != "title_end"}
    further = SPECIAL_TOKENS | {"query": [901, 905], "query_end": [906]}
    for special_tokens, message in (
        (without_end, "tokenizer.special_tokens: title_end missing"),
        (further, "data.views.query=null: must be a file"),
    ):
        with pytest.raises(ValueError, match=message):
            SealExamples().prepare(replace(tables, special_tokens=special_tokens))


# Spans

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden" / "span_weights.json"


def test_weights_equal_the_original():
    golden = json.loads(GOLDEN.read_text())
    assert sorted(STOPWORDS) == golden["stopwords"]
    for case in golden["cases"]:
        weights = span_weights(case["query"], case["passage"])
        assert len(weights) == len(case["passage"].split())
        expected = {int(start): weight for start, weight in case["start_weights"].items()}
        result = {int(start): weights[start] for start in np.flatnonzero(weights)}
        assert result == pytest.approx(expected, abs=1e-6)


def test_a_passage_without_words_has_no_spans():
    assert span_weights("who", "  \n").shape == (0,)
    assert sample_starts(np.empty(0), 3, np.random.default_rng(0)).shape == (0,)
    assert span_weights("", "red house").tolist() == [0.5, 0.5]  # a query that cleaning emptied
