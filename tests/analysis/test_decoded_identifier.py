from types import SimpleNamespace

import datasets
import pytest
import torch

from analysis.decoded_identifier import DecodedIdentifiers, occurrences, overlap
from analysis.gold import find_gold_tokens
from data_modules.sources import AlmanacDataModule
from gr_mvdr.decoding.beam_search import Hypotheses
from gr_mvdr.template import TextTemplate
from gr_mvdr.tokenizers import EOS_ID
from tests.analysis.asking import asked

WORDS = dict(backbone=None, path=None, unit="word", vocab_size=500, lowercase=True)
ARGUMENTS = dict(n_documents=60, train_questions=3, collection_seed=2, test_split="test")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    before = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("cache")
    yield AlmanacDataModule(**ARGUMENTS, tokenizer_options=WORDS, document_length=200)
    datasets.config.HF_DATASETS_CACHE = before


def flags(*places, size=7):
    found = torch.zeros(size, dtype=torch.bool)
    found[list(places)] = True
    return found


DOCUMENT = torch.tensor([5, 6, 5, 6, 7, 5, 1])


@pytest.mark.parametrize(
    ("identifier", "places"),
    [
        ([5, 6], (0, 1, 2, 3)),
        ([6, 5], (1, 2)),
        ([5], (0, 2, 5)),
        ([5, 6, 5, 6], (0, 1, 2, 3)),
        ([6, 6], ()),
        ([], ()),
        ([5] * 8, ()),
        (DOCUMENT.tolist(), range(7)),
    ],
)
def test_every_occurrence_of_an_identifier_is_covered(identifier, places):
    assert occurrences(DOCUMENT, identifier).tolist() == flags(*places).tolist()


def test_occurrences_may_overlap():
    assert occurrences(torch.tensor([5, 6, 5, 6, 5]), [5, 6, 5]).all()


def test_shares_by_hand():
    """Covered 0 1 2 3; the answer 3 4 5, evidence 0 and 6."""
    found = overlap(flags(0, 1, 2, 3), flags(3, 4, 5), flags(0, 6))
    assert found == pytest.approx((1 / 4, 2 / 4, 1 / 3))
    assert overlap(flags(), flags(3), flags()) is None


class Decoder:
    """A generative system that ends its search with given sequences of each query."""

    paradigm, template = "generative", TextTemplate()

    def __init__(self, sequences):
        self.sequences = sequences  # tuple of query tokens → sequences, the best first
        self.names = object()

    def eval(self):
        return self

    def search(self, queries, texts):
        found = [(n, s) for n, q in enumerate(queries) for s in self.sequences[tuple(q)]]
        size = max(len(sequence) for _, sequence in found)
        tokens = [[*sequence, *[-1] * (size - len(sequence))] for _, sequence in found]
        final = Hypotheses(
            torch.tensor([number for number, _ in found]),
            torch.tensor(tokens),
            -torch.arange(len(found)).float(),
        )
        return SimpleNamespace(final=final)


def golden(data, limit=100):
    """(query tokens, document tokens, answer, evidence) of every test pair."""
    names, _ = data.test_pairs("test", limit)
    queries = {row["id"]: tuple(row["tokens"]) for row in data.test_queries("test")}
    texts = {row["id"]: torch.tensor([*row["tokens"], EOS_ID]) for row in data.documents}
    gold = find_gold_tokens(data, "test", names)
    return [(queries[q], texts[d], *sides) for (q, d), sides in gold.items()]


def short(metrics):
    return {key.removeprefix("analysis/gold/decoded/"): value for key, value in metrics.items()}


def test_a_system_that_generates_the_answer_is_perfect(data):
    pairs = golden(data)
    sequences = {query: [[*text[answer].tolist(), EOS_ID]] for query, text, answer, _ in pairs}
    assert len(sequences) == len(pairs) > 20
    found = asked(DecodedIdentifiers, Decoder(sequences), data, 100)
    metrics = short(found.metrics)
    assert metrics["found"] == metrics["best_found"] == metrics["recall"] == 1
    # A name may stand in the text once more, where it answers nothing.
    assert 0.6 < metrics["precision"] <= metrics["possible_precision"]
    expected = []
    for _, text, answer, evidence in pairs:
        expected.append(overlap(occurrences(text, text[answer].tolist()), answer, evidence))
    assert metrics["precision"] == pytest.approx(sum(e.precision for e in expected) / len(expected))
    chance = [answer.sum().item() / (len(answer) - 1) for _, _, answer, _ in pairs]
    assert metrics["random_precision"] == pytest.approx(sum(chance) / len(chance))


def test_the_best_identifier_and_all_that_occur(data):
    """The best of the first half is no text of the document; a worse one is its beginning."""
    pairs, sequences = golden(data), {}
    for number, (query, text, *_) in enumerate(pairs):
        beginning, elsewhere = text[:3].tolist(), [text[0].item()] * 9
        half = number < len(pairs) / 2
        sequences[query] = [elsewhere, beginning] if half else [beginning, elsewhere]
    found = asked(DecodedIdentifiers, Decoder(sequences), data, 100)
    metrics = short(found.metrics)
    assert metrics["found"] == 1
    assert metrics["best_found"] == pytest.approx(len(pairs) // 2 / len(pairs))
    rows = found.tables["decoded_identifiers"]
    assert [row["identifiers"] for row in rows] == ["best", "all"]
    assert [row["found"] for row in rows] == [metrics["best_found"], 1]
    assert all(row["pairs"] == len(pairs) for row in rows)


def test_only_so_many_queries_are_searched(data):
    pairs = golden(data)
    sequences = {query: [text[:3].tolist()] for query, text, *_ in pairs}
    found = asked(DecodedIdentifiers, Decoder(sequences), data, 7)
    assert found.tables["decoded_identifiers"][0]["pairs"] == 7


def test_docids_that_are_no_text_say_nothing(data):
    sequences = {query: [[100_001, 100_002, EOS_ID]] for query, *_ in golden(data)}
    found = asked(DecodedIdentifiers, Decoder(sequences), data, 100)
    assert not (found.metrics or found.tables)


def test_other_systems_and_collections_say_nothing(data, monkeypatch):
    sequences = {query: [text[:3].tolist()] for query, text, *_ in golden(data)}
    model = Decoder(sequences)
    assert asked(DecodedIdentifiers, model, data, 5).metrics
    assert not asked(DecodedIdentifiers, model, data, 0).metrics
    with monkeypatch.context() as patch:
        patch.setattr(model, "names", None)
        assert not asked(DecodedIdentifiers, model, data, 5).metrics
    monkeypatch.setattr(data, "text_fields", ["title"])
    assert not asked(DecodedIdentifiers, model, data, 5).metrics
