import math
from itertools import product
from statistics import mean
from unittest.mock import Mock

import pandas as pd
import pytest
import torch

from analysis.questions.alignment_store import StoreDescription
from analysis.questions.analysis import Subject, Texts
from analysis.questions.exact_match import (
    DIRECTIONS,
    ExactMatch,
    exact_match,
    find_matches,
    summarise_matches,
)
from analysis.questions.tokens import BIN_NAMES, TokenKinds, idf_bin
from analysis.viewer.directed_alignment import directed_alignment
from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import pad
from gr_mvdr.relevance import DecoderPaths, Explanation
from tests.analysis.asking import aligned


def padded(pairs, extra=3):
    """All pairs in one batch, with `extra` columns and rows of nonsense beyond the longest."""
    document_ids, document_mask = pad([pair["document_ids"] for pair in pairs], pad_id=10)
    query_ids, query_mask = pad([pair["query_ids"] for pair in pairs], pad_id=10)
    widen = torch.nn.functional.pad
    document_ids, query_ids = (widen(x, (0, extra), value=10) for x in (document_ids, query_ids))
    document_mask, query_mask = (widen(x, (0, extra)) for x in (document_mask, query_mask))
    similarity = torch.full((len(pairs), document_ids.shape[1], query_ids.shape[1]), 99.0)
    for row, pair in zip(similarity, pairs, strict=True):
        values = torch.tensor(pair["similarity"])
        row[: values.shape[0], : values.shape[1]] = values
    return similarity, document_ids, query_ids, document_mask, query_mask


def matches(pairs, direction):
    similarity, document_ids, query_ids, document_mask, query_mask = padded(pairs)
    alignment = Softmax(direction)(similarity, document_mask, query_mask)
    tensors = document_ids, query_ids, document_mask, query_mask
    return *exact_match(alignment, *tensors, direction), *tensors


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_equals_the_reference_in_a_padded_batch(golden, direction):
    hard, soft, _, _, document_mask, query_mask = matches(golden["pairs"], direction)
    mask = query_mask if direction == "query_to_document" else document_mask
    assert hard.dtype == torch.bool and soft.dtype == torch.float32
    assert not hard[~mask].any() and not soft[~mask].any()
    for number, pair in enumerate(golden["pairs"]):
        expected = pair["exact_match"][direction]
        assert hard[number, mask[number]].tolist() == expected["hard"]
        torch.testing.assert_close(
            soft[number, mask[number]], torch.tensor(expected["soft"]), atol=1e-6, rtol=0
        )


def test_token_types_and_bins_equal_the_reference(golden):
    """The token-type means of the reference, and from these the means of IDF bins."""
    similarity, document_ids, query_ids, *masks = padded(golden["pairs"])
    pairs = aligned(similarity[:, None], document_ids, query_ids, masks=masks)
    no, description = torch.zeros(12, dtype=torch.bool), StoreDescription("s", "multi_vector", "c")
    idf = torch.arange(12.0)
    frame = pd.concat(find_matches(pairs, description, no, torch.arange(len(similarity))))
    analysis = ExactMatch(Mock())
    rows = summarise_matches(analysis, frame, description, Texts(idf, TokenKinds(no, no, no), list))
    for measure, definition, d in product(("hard", "soft"), ("all", "matched"), DIRECTIONS):
        expected = golden["per_token"][f"{d}/{measure}/{definition}"]
        chosen = frame[frame["direction"] == d]
        chosen = chosen[(chosen["soft"] > 1e-6) | (definition == "all")]
        found = {str(k): v for k, v in chosen.groupby("token")[measure].mean().items()}
        assert found == pytest.approx(expected, abs=1e-6)
        bins = {name: [] for name in BIN_NAMES}
        for token, value in expected.items():
            bins[BIN_NAMES[int(idf_bin(idf)[int(token)])]].append(value)
        for name, values in bins.items():
            suffix = ("" if definition == "all" else "_matched") + "/idf_" + name.replace("-", "_")
            key = f"analysis/exact_match/{d}/{measure}{suffix}"
            assert rows.metrics.get(key) == (pytest.approx(mean(values)) if values else None)


def test_padding_never_matches_even_where_it_is_the_strongest():
    alignment = torch.tensor([[0.25, 0.5], [0.75, 0.5]])
    ids, mask = torch.tensor([5, 5]), torch.tensor([True, False])
    hard, soft = exact_match(alignment, ids, ids, mask, mask, "query_to_document")
    assert hard.tolist() == [True, False] and soft.tolist() == [0.25, 0.0]
    hard, _ = exact_match(0 * alignment, ids, ids, mask, mask, "query_to_document")
    assert not hard.any()  # a token aligned to nothing matches nothing


def test_a_lexical_system_aligns_equal_terms_only(store_of, measure):
    # BM25: a query term weighs the same against every document token; A says where it counts
    document_ids, query_ids = torch.tensor([[5, 2, 3, 2]]), torch.tensor([[2, 4, 3]])
    equal = (document_ids[:, :, None] == query_ids[:, None]).float()[:, None]
    weights = torch.tensor([1.5, 3.0, 2.0]).expand(1, 1, 4, 3)
    pairs = aligned(equal, document_ids, query_ids, weights)
    columns = directed_alignment(pairs, "lexical", "query_to_document")[0]
    exp = math.exp(1.5)
    assert columns[:, 0].tolist() == pytest.approx([v / (2 * exp + 2) for v in (1, exp, 1, exp)])
    assert columns[:, 1].tolist() == pytest.approx([0.25] * 4)  # a term without a match
    metrics = measure(ExactMatch, store_of(Explanation([pairs]), "lexical")).metrics
    for direction in DIRECTIONS:
        assert metrics[f"analysis/exact_match/{direction}/hard_matched"] == 1
    assert metrics["analysis/exact_match/query_to_document/hard"] == pytest.approx(2 / 3)


def test_the_softmax_of_a_itself_by_hand(store_of, measure):
    # both query tokens choose the first of three document tokens, 7 8 7; the first of them is 7
    chosen = torch.tensor([[1.0, 1.0], [0, 0], [0, 0]])[None, None]
    pairs = aligned(chosen, torch.tensor([[7, 8, 7]]), torch.tensor([[7, 9]]), 3 * chosen)
    metrics = measure(ExactMatch, store_of(Explanation([pairs]), "multi_vector")).metrics
    e, name = math.e, "analysis/exact_match/{}/soft_of_a"
    found = {d: metrics[name.format(d)] for d in DIRECTIONS}
    assert found["query_to_document"] == pytest.approx((e + 1) / (e + 2) / 2)
    # a row of ones or of zeros is spread evenly: 1/2 at both tokens that are 7
    assert found["document_to_query"] == pytest.approx((1 / 2 + 0 + 1 / 2) / 3)
    soft = metrics["analysis/exact_match/query_to_document/soft"]
    assert soft == pytest.approx((e**3 + 1) / (e**3 + 2) / 2)


def explained(pairs):
    """A generative explanation of pairs; they have no decoder paths."""
    batch, tokens = pairs.document_mask.shape
    heads = pairs.alignment.shape[1]
    nothing, norms = torch.zeros(batch, tokens), torch.ones(batch, 1)
    empty = torch.zeros(batch, 1, tokens)
    paths = DecoderPaths(
        ("embedding",), empty, nothing, nothing, norms, norms[:, 0], torch.ones(1, heads)
    )
    return Explanation([pairs], paths)


def test_a_report_by_hand(store_of):
    """One pair: document a b </s>, query a a c; rows of the attention are given."""
    attention = torch.tensor([[[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [1.0, 0.0, 0.0]]]])
    pair = explained(aligned(attention, torch.tensor([[2, 3, 1]]), torch.tensor([[2, 2, 4]])))
    idf, kinds = torch.tensor([0.0, 0.0, 1.0, 3.0, 9.0]), torch.arange(5)
    texts = Texts(idf, TokenKinds(kinds < 2, kinds == 3, kinds == 4), lambda ids: ids)
    report = ExactMatch(Subject(store=store_of(pair, "generative"), texts=texts))
    report.update(pair, 0)
    found = report.finish()
    metrics, prefix = found.metrics, "analysis/exact_match/document_to_query"
    # a: hard, soft 0.5 + 0.3; b: nothing; </s> is not counted
    assert metrics[f"{prefix}/hard"] == pytest.approx(0.5)
    assert metrics[f"{prefix}/soft"] == pytest.approx(0.4)
    assert metrics[f"{prefix}/soft_matched"] == pytest.approx(0.8)
    # two of a's three partners are a, none of b's is b
    assert metrics[f"{prefix}/chance"] == pytest.approx((2 / 3 + 0) / 2)
    assert metrics[f"{prefix}/soft_content"] == pytest.approx(0.8)  # b is punctuation
    assert metrics[f"{prefix}/soft/idf_0_2"] == pytest.approx(0.8)
    assert metrics[f"{prefix}/soft/idf_2_4"] == 0
    assert f"{prefix}/soft/idf_4_6" not in metrics
    assert f"{prefix}/soft_matched/idf_2_4" not in metrics
    # one pair leaves no doubt; of two types the rarer matches less
    assert metrics[f"{prefix}/soft_low"] == metrics[f"{prefix}/soft_high"] == pytest.approx(0.4)
    assert metrics[f"{prefix}/soft_idf_correlation"] == pytest.approx(-1)
    # columns sum to 1.6, 0.4, 1.0; the first a prefers </s>, the second a prefers a
    prefix = "analysis/exact_match/query_to_document"
    assert metrics[f"{prefix}/hard"] == pytest.approx(1 / 3)
    assert metrics[f"{prefix}/hard_content"] == pytest.approx(1 / 2)  # c is a stopword
    assert metrics[f"{prefix}/soft"] == pytest.approx((0.5 / 1.6 + 0.3 / 0.4) / 3)
    assert metrics[f"{prefix}/soft/idf_0_2"] == pytest.approx((0.5 / 1.6 + 0.3 / 0.4) / 2)
    assert metrics[f"{prefix}/soft/idf_8_15"] == 0
    rows = [r for r in found.tables["exact_match"] if r["tokens"] == "content"]
    counts = {row["direction"]: (row["occurrences"], row["token_types"]) for row in rows}
    assert counts == {"document_to_query": (1, 1), "query_to_document": (2, 1)}
