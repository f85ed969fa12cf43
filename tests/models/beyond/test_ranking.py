"""A ranking loss within a generative system: what it scores, what it trains, what it leaves."""

import math
from dataclasses import replace

import pytest
import torch

from data_modules.examples import collate
from gr_mvdr.batch import pad
from models.beyond.ranking_losses import count_shared_prefixes
from tests.models.test_two_ranks import examples


def ranking(name="PrefixRanking", **options):
    return {"_target_": f"models.beyond.ranking_losses.{name}", **options}


@pytest.fixture(params=["seal", "semantic", "titles-nci", "titles-np"])
def make(request, tools):
    def made(loss):
        if request.param == "seal":
            system = tools.sharpen(tools.make_seal(ranking=loss))
            system.prepare(tools.named_documents(), range(8), "")
            return system
        return tools.make_docid(request.param, ranking=loss)

    return made


@pytest.mark.parametrize("hard", [True, False])
def test_a_loss_is_its_weight_times_what_it_makes_of_the_systems_own_scores(make, hard):
    system = make(ranking("ListwiseRanking", weight=0.5, negatives=2))
    batch = collate(examples(hard))
    found = system.targets(batch)
    tokens = found.document_ids.masked_fill(~found.document_mask, -1)
    every = []
    for query in range(len(batch)):
        others = batch.negatives[query].tolist() if hard else [(query + n) % 5 for n in (1, 2)]
        shared = count_shared_prefixes(system, tokens[others].expand(len(batch), -1, -1), found)[
            query
        ]
        apart = batch.is_negative[others, query] & (shared < found.document_mask[others].sum(1))
        rows = [query, *(row for row, is_one in zip(others, apart, strict=True) if is_one)]
        mask = batch.query_mask[[query] * len(rows)]
        queries = system.encode(batch.query_ids[[query] * len(rows)], mask)
        sides = (x[rows] for x in (found.document_ids, found.document_mask, found.document_index))
        scores = system.token_log_probs(queries, mask, *sides).sum(1)
        every += [-scores.log_softmax(0)[0].item()] if len(rows) > 1 else []
    whole, system.ranking_loss = system.loss(batch).item(), None
    assert len(every) > 2
    assert whole - system.loss(batch).item() == pytest.approx(0.5 * sum(every) / len(every))


def test_the_frozen_copy_is_of_the_beginning_and_learns_nothing(make):
    system, batch = make(ranking("PreferenceRanking", negatives=2)), collate(examples(True))
    system.setup("fit")
    frozen = system.ranking_loss.frozen
    assert not any(p.requires_grad for p in frozen.parameters()) and not frozen.training
    own, copied = (dict(one.named_parameters()) for one in (system, frozen))
    assert own.keys() == copied.keys() and not {*map(id, own.values())} & {
        *map(id, copied.values())
    }
    assert system.state_dict().keys() == make(None).state_dict().keys()
    alone = make(None).loss(batch).item()
    assert system.loss(batch).item() - alone == pytest.approx(math.log(2), abs=1e-6)
    before = {name: value.clone() for name, value in copied.items()}
    system.ranking_loss(system, system.targets(batch)).backward()
    torch.optim.SGD(system.parameters(), 1e-3).step()
    assert all(torch.equal(value, before[name]) for name, value in copied.items())
    assert all(p.grad is None for p in frozen.parameters())
    assert system.ranking_loss(system, system.targets(batch)).item() < math.log(2) - 1e-4
    system.teardown("fit")
    assert system.ranking_loss.frozen is None  # searches need no second model in memory


def test_another_relevant_documents_identifier_shields_its_beginning(tools):
    """Of the titles 9 8, 9 8 7, 9 and 8 9 8: how far each leads to what is relevant, too."""
    system = tools.make_docid("titles")
    ids, mask = pad([system.identifiers.sequences[row] for row in range(4)])
    tokens = ids.masked_fill(~mask, -1).expand(5, -1, -1)
    batch = replace(collate(examples(False)), document_index=torch.tensor([5, 0, 1, 5, 5]))
    batch.relevant = torch.tensor([[0, 0], [0, 0], [3, 4], [2, 0], [4, 3]])
    found = count_shared_prefixes(system, tokens, batch)
    wanted = [[0, 0, 0, 0], [3, 2, 1, 0], [2, 4, 2, 4], [2, 4, 1, 0], [1, 1, 2, 4]]
    assert found.tolist() == wanted


def test_ngrams_of_every_relevant_document_are_no_negatives_of_a_query(tools):
    """Keys 5 6, 6 7 </s> and 8 5 against the texts 5 6 7 (row 0), 8 5 (1), 6 7 (2) and 9 (3)."""
    system = tools.make_seal()
    system._texts, stop = [[5, 6, 7], [8, 5], [6, 7], [9]], system.template.stop
    tokens = torch.tensor([[5, 6, -1], [6, 7, stop], [8, 5, -1]]).expand(5, -1, -1)
    batch = replace(collate(examples(False)), document_index=torch.tensor([0, 1, 3, 3, 3]))
    batch.relevant = torch.tensor([[0, 0], [3, 0], [1, 2], [2, 0], [0, 0]])  # 1 + the row
    found = count_shared_prefixes(system, tokens, batch)
    assert found.tolist() == [[2, 3, 0], [1, 3, 2], [2, 3, 2], [1, 0, 2], [0, 0, 0]]
    batch.relevant = None
    assert count_shared_prefixes(system, tokens, batch)[:2].tolist() == [[2, 3, 0], [1, 0, 2]]
