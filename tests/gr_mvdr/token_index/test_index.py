"""The searches of a token index against Eq. 1 and xtr Eq. 4 over all documents."""

from typing import get_args

import pytest
import torch

from gr_mvdr.alignment import InBatchTopK, MaxSim, Softmax, TopK
from gr_mvdr.evaluation.ranking import SearchCosts
from gr_mvdr.relevance import Normaliser, Scoring
from gr_mvdr.token_index import scorers
from gr_mvdr.token_index.search import Documents, Query
from tests.gr_mvdr.test_scoring import STRATEGIES
from tests.gr_mvdr.token_index.test_store import (
    as_text,
    encoder,
    names,
    part_of,
    random_tokens,
)
from tests.pairwise import pairwise
from tests.searches import build_index, make_search

# A search knows no batch of documents.
ALIGNMENTS = [a for a in STRATEGIES if not isinstance(a, InBatchTopK)]
COLBERT = Scoring(MaxSim())
MANY = [1 + n % 5 for n in range(60)]  # 180 tokens
QUERY_LENGTHS = [4, 2, 1]


def build(directory, tokens, batch=3, **options):
    return build_index(directory, names(tokens), encoder(tokens, batch=batch), **options)


def scored(index, query, scoring, *how, **options):
    """The documents that a search scores for a query, and their scores as estimates."""
    return index.scored([Query("q", query)], scoring, make_search(*how, **options), 1)[0]


def gather(index, query, scoring, neighbours, **options):
    return scored(index, query, scoring, "gather", neighbours=neighbours, **options)


def impute(index, query, neighbours, **options):
    return scored(index, query, COLBERT, "impute", neighbours=neighbours, **options)


def pair_by_pair(documents, queries, scoring):
    """(D, Q) from Eq. 1 with A written down, one pair after the other."""
    texts = [[as_text(side, n) for n in range(len(side.counts))] for side in (documents, queries)]
    return torch.stack([torch.stack([scoring(d, q) for q in texts[1]]) for d in texts[0]])


def some_queries(**parts):
    return random_tokens(QUERY_LENGTHS, seed=9, **parts)


def by_document(result):
    return dict(zip(result.documents.tolist(), result.estimates.tolist(), strict=True))


def exact_scores(tokens, query, scoring=COLBERT):
    """{document number: relevance} of one packed query."""
    return dict(enumerate(pair_by_pair(tokens, query, scoring)[:, 0].tolist()))


# Exact search -----------------------------------------------------------------------------------


PARTS = [{}, {"salience": True}, {"keys": 5}, {"keys": 5, "salience": True}]


@pytest.mark.parametrize(
    ("alignment", "parts", "normaliser", "block"),
    pairwise(ALIGNMENTS, PARTS, get_args(Normaliser), [1, 90, 100_000]),
    ids=str,
)
def test_exact_search_equals_eq_1_of_every_pair_whatever_the_blocks(
    tmp_path, monkeypatch, alignment, parts, normaliser, block
):
    monkeypatch.setattr(scorers, "_BLOCK_SIMILARITIES", block)
    tokens, queries = random_tokens(**parts), some_queries(**parts)
    scoring, index = Scoring(alignment, normaliser), build(tmp_path / "index", tokens)
    expected = pair_by_pair(tokens, queries, scoring)
    asked = [Query(str(n), as_text(queries, n)) for n in range(3)]
    scores = torch.stack([own.estimates for own in index.score_all(asked, scoring)], 1)
    assert scores.dtype == torch.float32 and torch.allclose(scores, expected, atol=1e-5)
    scores = index.score(as_text(queries, 0), ["d7", "d0", "d3", "d2"], scoring)
    assert torch.allclose(scores, expected[[7, 0, 3, 2], 0], atol=1e-5)


# Gather -------------------------------------------------------------------------------------------


# All tokens compared, all tokens of all clusters compared, and all clusters reached.
EVERY = [dict(neighbours=180, probes=None), dict(neighbours=180, probes=180)]
EVERY += [dict(neighbours=None, probes=180)]


@pytest.mark.parametrize("every", EVERY, ids=str)
@pytest.mark.parametrize("alignment", [MaxSim(), TopK(2), Softmax()], ids=str)
def test_gathering_every_token_is_exact_search(tmp_path, every, alignment):
    tokens, queries = random_tokens(MANY), some_queries()
    index, scoring = build(tmp_path / "index", tokens), Scoring(alignment)
    outcome = gather(index, as_text(queries, 0), scoring, **every)
    expected = exact_scores(tokens, part_of(queries, [0]), scoring)
    assert by_document(outcome) == pytest.approx(expected, abs=1e-5)
    assert (index.costs.candidates, index.costs.scored_tokens) == (60, 180)


@pytest.mark.parametrize("every", EVERY, ids=str)
def test_refining_keeps_the_best_by_what_was_retrieved(tmp_path, every):
    tokens = random_tokens(MANY, salience=True)
    queries = some_queries(salience=True)
    index = build(tmp_path / "index", tokens)
    scoring, query = Scoring(MaxSim(), "alignment"), as_text(queries, 0)
    everything = by_document(gather(index, query, scoring, **every))
    index.costs = SearchCosts()
    few = gather(index, query, scoring, **every, refine=10)
    best = sorted(everything, key=everything.get, reverse=True)
    # With every token retrieved the order is known; centroids alone estimate it.
    assert len(few.documents) == 10 and index.costs.candidates == 60
    assert len(set(few.documents.tolist()) & set(best[:10])) >= (10 if every["neighbours"] else 4)
    assert by_document(few) == pytest.approx(
        {n: everything[n] for n in few.documents.tolist()}, abs=1e-5
    )
    assert index.costs.scored_tokens == sum(MANY[n] for n in few.documents.tolist())
    all_of_them = gather(index, query, scoring, **every, refine=60)
    assert by_document(all_of_them) == pytest.approx(everything, abs=1e-5)


# Impute -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("imputation", ["last", "zero", "mean", 0.25])
@pytest.mark.parametrize(("probes", "keep"), [(None, 1.0), (None, 0.6), (2, 1.0), (180, 1.0)])
def test_imputing_equals_equation_4_over_every_token(tmp_path, probes, keep, imputation):
    """Ragged and pruned documents, small clusters; a pruned token was not retrieved."""
    tokens, queries = random_tokens(MANY, salience=True), some_queries(salience=True)
    index = build(tmp_path / "index", tokens)
    how = dict(probes=probes, imputation=imputation, keep_document=keep)
    retrieval = index.opened(make_search("impute", **how).proposer)
    query, owner = as_text(queries, 0), torch.arange(60).repeat_interleave(torch.tensor(MANY))
    rows = retrieval.search(query.vectors, 60, probes)[1]
    similarity = tokens.vectors.double() @ query.vectors.double().T  # (180, 4)
    is_retrieved = torch.zeros(180, 4, dtype=torch.bool)
    for column, outcome in enumerate(rows):
        is_retrieved[outcome[outcome >= 0], column] = True
    lists = [similarity[is_retrieved[:, column], column] for column in range(4)]
    m = {"last": [x.min() for x in lists], "mean": [x.mean() for x in lists], "zero": [0] * 4}
    filled = is_retrieved * similarity + ~is_retrieved * torch.tensor(m.get(imputation, [0.25] * 4))
    u, expected = query.salience.double(), {}
    for document in set(owner[is_retrieved.any(1)].tolist()):
        expected[document] = float((u * filled[owner == document].amax(0)).sum() / u.sum())
    outcome = by_document(impute(index, query, 60, **how))
    assert outcome == pytest.approx(expected, abs=1e-5)
    if probes == 180:  # as if all tokens were compared
        assert outcome == by_document(impute(index, query, 60, **how | {"probes": None}))


# Documents come and go --------------------------------------------------------------------------


HOW = {
    "exact": ("exact", {}),
    "tokens": ("impute", {"neighbours": 20}),
    "tokens of clusters": ("impute", {"neighbours": 20, "probes": 4}),
    "clusters": ("gather", {"neighbours": None, "probes": 2}),
}


def all_searches(index, query):
    """Name of a search → its scores, by the documents' ids."""
    scores = {}
    for name, (mode, options) in HOW.items():
        found = by_document(scored(index, query, COLBERT, mode, **options))
        scores[name] = {index.names[number]: score for number, score in found.items()}
    return scores


def test_a_changed_index_answers_as_one_made_of_its_documents(tmp_path):
    tokens, more = random_tokens(MANY), random_tokens([3, 2, 9], seed=4)
    query = as_text(some_queries(), 0)
    index = build(tmp_path / "changed", tokens)
    all_searches(index, query)  # with clusters
    left = [n for n in range(60) if n not in (0, 7, 59)]
    ids, encode = [f"d{n}" for n in left], encoder(more, ["x", "d7", "y"])
    for some in (ids, [*ids, "x", "d7", "y"], [*ids, "d7", "y"]):
        index.update(Documents({"id": some, "text": some}, encode, [], {}))
    joined = [torch.cat(pair) for pair in zip(tokens[:3], more[:3], strict=True)]
    fresh_tokens = part_of(
        tokens._replace(vectors=joined[0], counts=joined[1], ids=joined[2]), [*left, 61, 62]
    )
    ids += ["d7", "y"]
    fresh = build_index(tmp_path / "fresh", ids, encoder(fresh_tokens, ids))
    found, expected = all_searches(index, query), all_searches(fresh, query)
    for name in HOW:
        assert found[name] == pytest.approx(expected[name], abs=1e-5), name
    assert index.numbers(["d7", "d8"]).tolist() == [57, 6]


# Opening, and what it costs -----------------------------------------------------------------------


def test_costs_by_hand(tmp_path):
    """Lengths 2 and 3, d = 8, queries of 2 and 1 tokens (xtr App. B)."""
    index = build(tmp_path / "index", random_tokens([2, 3]))
    queries = random_tokens([2, 1], seed=9)
    index.search([Query(str(n), as_text(queries, n)) for n in range(2)], COLBERT, 1)

    def full(n, m):
        return n * (2 * m * 8 + m + 1)

    assert (index.costs.queries, index.costs.candidates, index.costs.scored_tokens) == (2, 4, 10)
    assert index.costs.flops == full(2, 2) + full(2, 3) + full(1, 2) + full(1, 3)
    assert index.costs.seconds > 0
    assert {r.metric.name: r.value for r in index.costs.metrics()}["candidates"] == 2
    index.costs = SearchCosts()
    assert index.costs.metrics() == []
    query = as_text(queries, 0)

    def counted(search, *arguments, **options):
        index.costs = SearchCosts()
        outcome = search(index, query, *arguments, **options)
        costs = index.costs
        return outcome.documents, (costs.candidates, costs.scored_tokens, costs.flops)

    # 10 retrieved tokens of 2 candidates: n · C · (r̄ + 1) = 2 · 2 · 6.
    assert counted(impute, 5)[1] == (2, 0, 24)
    assert counted(gather, COLBERT, 5)[1] == (2, 5, full(2, 2) + full(2, 3))
    documents, costs = counted(gather, COLBERT, 5, refine=1)
    length = [2, 3][documents.item()]
    assert costs == (2, length, 24 + full(2, length))
    index.score(query, ["d1"], COLBERT)
    assert index.costs.queries == 2 and index.costs.flops == 24 + full(2, length) + full(2, 3)
