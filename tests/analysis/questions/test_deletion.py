from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from analysis.questions.deletion import Deletion
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.relevance import PairAlignment
from tests.analysis.asking import asked, data_of

END = 1


class Weighted:
    """Σ of weights over pairs of equal tokens: a linear score, every token's part is known.

    It looks at the ids of what it is given; `sentinels` of them follow the query's own.
    """

    paradigm, alignable, device, training = "lexical", True, torch.device("cpu"), False

    def __init__(self, weights, sentinels=0, reads=lambda batch: batch):
        self.weights, self.sentinels, self.reads = weights, sentinels, reads

    def eval(self):
        return self

    def covers(self, row):
        return True

    def align(self, batch):
        batch = self.reads(batch)
        more = torch.full((len(batch), self.sentinels), 3)
        query_ids = torch.cat([batch.query_ids, more], 1)
        query_mask = torch.cat([batch.query_mask, more > 0], 1)
        real = batch.document_mask[:, :, None] & query_mask[:, None]
        equal = (batch.document_ids[:, :, None] == query_ids[:, None]) & real
        similarity = (self.weights[batch.document_ids][:, :, None] * real)[:, None]
        score = (similarity * equal[:, None]).sum((1, 2, 3))
        sides = (batch.document_ids, batch.document_mask, query_ids, query_mask)
        ones = torch.ones(len(batch))
        return PairAlignment(similarity, equal[:, None].float(), ones, score, score, *sides)

    def score(self, batch):
        return self.align(batch).score


def table(documents, queries):
    batches = [
        PairBatch(*pad(queries[n : n + 2]), *pad(documents[n : n + 2]), torch.arange(n, n + 2))
        for n in range(0, len(queries), 2)
    ]
    names = [(f"q{n}", f"d{n}") for n in range(len(queries))]
    return data_of(
        test_pairs=lambda split, limit, size, covers: (names, batches),
        tokenizer=SimpleNamespace(all_special_ids=[0, END, 2, 3]),
    )


WEIGHTS = torch.zeros(40)
WEIGHTS[[10, 11, 12, 13, END]] = torch.tensor([1.0, 2.0, 4.0, 8.0, 100.0])
# Scores 15 + 100, 6 + 100, 8 + 100, 2 + 100: the end tokens match too.
DOCUMENTS = [[10, 20, 11, 21, 12, 13, END], [20, 11, 12, END], [13, 20, 21, 22, END], [20, 11, END]]
QUERIES = [[10, 11, 12, 13, END], [11, 12, END], [13, 30, END], [30, 11, END]]


def rows_of(found, side, removed):
    rows = found.tables["deletion"]
    return {r["tokens"]: r for r in rows if r["side"] == side and r["removed"] == removed}


@pytest.mark.parametrize("sentinels", [0, 3])
def test_falls_by_hand(sentinels):
    found = asked(Deletion, Weighted(WEIGHTS, sentinels), table(DOCUMENTS, QUERIES), 9, (1, 2, 4))
    deviation = torch.tensor([115.0, 106, 108, 102]).std().item()
    documents, queries = (rows_of(found, side, "aligned") for side in ("document", "query"))
    # One token: 13; 12; 13; 11. The last document has two words, so none to keep without two.
    assert documents[1]["fall"] == pytest.approx((8 + 4 + 8 + 2) / 4)
    assert documents[2]["fall"] == pytest.approx((8 + 4 + 4 + 2 + 8 + 0) / 3)
    assert 4 not in documents, "one document alone has five words or more"
    spread = torch.tensor([8.0, 4, 8, 2]).std().item()
    assert documents[1]["deviations_error"] == pytest.approx(spread / 2 / deviation)
    assert queries[1]["fall"] == pytest.approx((8 + 4 + 8 + 2) / 4)
    assert 2 not in queries, "one query alone has three words or more"
    key = "analysis/deletion/query/"
    assert found.metrics[key + "aligned_1"] == pytest.approx(5.5 / deviation)


def test_random_tokens_cost_what_an_average_token_costs():
    """The mean over many draws is the mean contribution of a word; special tokens always stay."""
    data = table(DOCUMENTS * 5, QUERIES * 5)
    found = asked(Deletion, Weighted(WEIGHTS), data, 9, (1,), draws=200)
    expected = (15 / 6 + 6 / 3 + 8 / 4 + 2 / 2) / 4
    random = rows_of(found, "document", "random")[1]
    assert random["fall"] == pytest.approx(expected, rel=0.08)
    assert random["fall"] < rows_of(found, "document", "aligned")[1]["fall"]


@pytest.mark.parametrize("ids", [[10], [10, 11, 12, 13, 25, 26, 27, 28, END]])
def test_documents_that_are_not_read_token_by_token_are_left_alone(ids):
    """A system that reads an identifier (or pooled vectors) in the document's place."""

    def reads(batch):
        document = torch.tensor([ids] * len(batch))
        return replace(batch, document_ids=document, document_mask=document > 0)

    found = asked(Deletion, Weighted(WEIGHTS, reads=reads), table(DOCUMENTS, QUERIES), 9, (1, 2))
    assert {row["side"] for row in found.tables["deletion"]} == {"query"}
    assert set(found.metrics) == {f"analysis/deletion/query/{n}_1" for n in ("aligned", "random")}
