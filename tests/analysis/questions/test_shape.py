import math

import pytest
import torch

from analysis.questions.exact_match import DIRECTIONS
from analysis.questions.shape import (
    Shape,
    links_returned,
    measure_shape,
)
from analysis.viewer.directed_alignment import directed_alignment

D2Q, Q2D = "document_to_query", "query_to_document"


def masks_of(matrix):
    rows, columns = matrix.shape
    return torch.ones(rows, dtype=torch.bool), torch.ones(columns, dtype=torch.bool)


def test_one_partner_and_an_even_spread_are_the_ends_of_the_scale():
    rows = torch.tensor([[1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5 - 2e-6, 2e-6, 5e-7]])
    found = measure_shape(rows, *masks_of(rows), D2Q)
    assert found["entropy"].tolist() == pytest.approx([0, math.log(4), math.log(2)], abs=1e-4)
    assert found["relative_entropy"].tolist() == pytest.approx([0, 1, 0.5], abs=1e-4)
    assert found["support"].tolist() == [1, 4, 3]  # weights above 1e-6
    assert torch.stack([found[f"top_{k}"] for k in (1, 2, 5)], 1)[:2].tolist() == [
        [1, 1, 1],
        [0.25, 0.5, 1],
    ]
    columns = measure_shape(rows.mT, *masks_of(rows.mT), Q2D)
    assert all(torch.equal(columns[name], found[name]) for name in found)


def test_links_returned_by_hand():
    # query tokens choose documents 0, 0, 1; documents choose queries 1, 2
    columns = torch.tensor([[0.9, 0.8, 0.3], [0.1, 0.2, 0.7]])
    rows = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.3, 0.6]])
    masks = masks_of(columns)
    assert links_returned(columns, rows, *masks).tolist() == [False, True, True]
    masks[1][1] = False  # padding: document 0 now chooses query 2
    assert links_returned(columns, rows, *masks).tolist() == [False, False, True]
    unlinked = columns.clone()
    unlinked[:, 1] = 0  # document 0 chooses query token 1, which is aligned to nothing
    assert not links_returned(unlinked, rows, *masks_of(rows))[1]
    silent = rows.clone()
    silent[0] = 0  # the choice of query token 0, but itself aligned to nothing
    assert not links_returned(columns, silent, *masks_of(rows))[0]


@pytest.mark.parametrize("paradigm", ["multi_vector", "lexical", "generative"])
def test_the_report_equals_a_loop_over_tokens(make_explanation, store_of, measure, paradigm):
    store = store_of(make_explanation(6, paradigm=paradigm), paradigm)
    found = measure(Shape, store)
    for direction in DIRECTIONS:
        values = []
        for number in range(6):
            weights = directed_alignment(store[number], paradigm, direction)[0].double()
            for line in (weights if direction == D2Q else weights.T).tolist():
                nats = -sum(p * math.log(p) for p in line if p > 0)
                values.append((nats, max(line), sum(p > 1e-6 for p in line)))
        means = torch.tensor(values).mean(0).tolist()
        names = [f"analysis/shape/{direction}/{name}" for name in ("entropy", "top_1", "support")]
        assert [found.metrics[name] for name in names] == pytest.approx(means, rel=1e-4)
    assert 0 <= found.metrics["analysis/shape/directions_agree"] <= 1


def test_tokens_aligned_to_nothing_have_no_shape(make_explanation, store_of, measure):
    explanation = make_explanation(paradigm="multi_vector")
    explanation.layers[0].alignment[0] = 0  # salience removed a whole pair
    found = measure(Shape, store_of(explanation, "multi_vector"))
    (row,) = (row for row in found.tables["shape"] if row["alignment"] == "own")
    tokens = explanation.layers[0].query_mask.sum(1)
    assert row["direction"] == Q2D and row["tokens"] == int(tokens.sum())
    assert (row["entropy"], row["top_1"], row["support"]) == (0, 1, 1)
    assert row["aligned"] == pytest.approx(1 - float(tokens[0] / tokens.sum()))
    assert found.metrics["analysis/shape/own/top_1"] == 1
