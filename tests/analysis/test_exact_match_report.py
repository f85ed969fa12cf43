import csv
import math

import pytest
import torch

from analysis.alignment_store import AlignmentStore, StoreDescription
from analysis.alignment_writer import AlignmentWriter
from analysis.directed_alignment import directed_alignment, own_direction
from analysis.exact_match import DIRECTIONS
from analysis.exact_match_report import measure_exact_match
from gr_mvdr.relevance import PairAlignment


def store_of(directory, pairs, paradigm="multi_vector"):
    names = [str(number) for number in range(len(pairs.score))]
    with AlignmentWriter(directory, StoreDescription("s", paradigm, "c")) as writer:
        writer.add(pairs, names, names)
    return AlignmentStore(directory)


@pytest.mark.parametrize("paradigm", ["multi_vector", "lexical", "generative"])
def test_directed_alignments_sum_to_one_over_the_other_side(make_pairs, paradigm):
    pairs = make_pairs(6, heads=4, paradigm=paradigm)
    rows = directed_alignment(pairs, paradigm, "document_to_query")
    columns = directed_alignment(pairs, paradigm, "query_to_document")
    assert rows.shape == (6, *pairs.similarity.shape[2:])
    torch.testing.assert_close(rows.sum(2), pairs.document_mask.float())
    torch.testing.assert_close(columns.sum(1), pairs.query_mask.float())


def test_generative_alignment_is_the_mean_head(make_pairs):
    pairs = make_pairs(2, heads=2, paradigm="generative")
    rows = directed_alignment(pairs, "generative", "document_to_query")
    torch.testing.assert_close(rows, (pairs.alignment[:, 0] + pairs.alignment[:, 1]) / 2)
    columns = directed_alignment(pairs, "generative", "query_to_document")
    j = 0
    torch.testing.assert_close(columns[1, :, j], rows[1, :, j] / rows[1, :, j].sum())


def test_a_lexical_system_aligns_equal_terms_only(tmp_path):
    # BM25: a query term weighs the same against every document token; A says where it counts
    ids = {"document_ids": torch.tensor([[5, 2, 3, 2]]), "query_ids": torch.tensor([[2, 4, 3]])}
    masks = {"document_mask": torch.ones(1, 4).bool(), "query_mask": torch.ones(1, 3).bool()}
    equal = (ids["document_ids"][:, :, None] == ids["query_ids"][:, None]).float()[:, None]
    weights = torch.tensor([1.5, 3.0, 2.0]).expand(1, 1, 4, 3)
    ones = torch.ones(1)
    pairs = PairAlignment(weights, equal, ones, ones, ones, **ids, **masks)
    columns = directed_alignment(pairs, "lexical", "query_to_document")[0]
    exp = math.exp(1.5)
    assert columns[:, 0].tolist() == pytest.approx([v / (2 * exp + 2) for v in (1, exp, 1, exp)])
    assert columns[:, 1].tolist() == pytest.approx([0.25] * 4)  # a term without a match
    metrics = measure_exact_match(
        store_of(tmp_path / "alignments", pairs, "lexical"), torch.ones(6)
    ).metrics()
    for direction in DIRECTIONS:
        assert metrics[f"analysis/exact_match/{direction}/hard_matched"] == 1
    assert metrics["analysis/exact_match/query_to_document/hard"] == pytest.approx(2 / 3)


def test_unknown_paradigm_is_named():
    with pytest.raises(ValueError, match="paradigm='sparse': must be one of"):
        own_direction("sparse")


@pytest.fixture
def by_hand():
    """One pair: document a b </s>, query a a c; rows of the attention are given."""
    attention = torch.tensor([[[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [1.0, 0.0, 0.0]]]])
    ones = torch.ones(1)
    mask = torch.ones(1, 3, dtype=torch.bool)
    ids = {"document_ids": torch.tensor([[2, 3, 1]]), "query_ids": torch.tensor([[2, 2, 4]])}
    masks = {"document_mask": mask, "query_mask": mask}
    return PairAlignment(attention, attention, ones, ones, ones, **ids, **masks)


def test_a_report_by_hand(tmp_path, by_hand):
    idf = torch.tensor([0.0, 0.0, 1.0, 3.0, 9.0])
    store = store_of(tmp_path / "alignments", by_hand, "generative")
    report = measure_exact_match(store, idf, special_ids=[0, 1])
    metrics = report.metrics()
    prefix = "analysis/exact_match/document_to_query"
    # a: hard, soft 0.5 + 0.3; b: nothing; </s> is not counted
    assert metrics[f"{prefix}/hard"] == pytest.approx(0.5)
    assert metrics[f"{prefix}/soft"] == pytest.approx(0.4)
    assert metrics[f"{prefix}/soft_matched"] == pytest.approx(0.8)
    assert metrics[f"{prefix}/soft/idf_0_2"] == pytest.approx(0.8)
    assert metrics[f"{prefix}/soft/idf_2_4"] == 0
    assert f"{prefix}/soft/idf_4_6" not in metrics
    assert f"{prefix}/soft_matched/idf_2_4" not in metrics
    # columns sum to 1.6, 0.4, 1.0; the first a prefers </s>, the second a prefers a
    prefix = "analysis/exact_match/query_to_document"
    assert metrics[f"{prefix}/hard"] == pytest.approx(1 / 3)
    assert metrics[f"{prefix}/soft"] == pytest.approx((0.5 / 1.6 + 0.3 / 0.4) / 3)
    assert metrics[f"{prefix}/soft/idf_0_2"] == pytest.approx((0.5 / 1.6 + 0.3 / 0.4) / 2)
    assert metrics[f"{prefix}/soft/idf_8_15"] == 0


def test_the_csv_has_every_bin(tmp_path, by_hand):
    store = store_of(tmp_path / "alignments", by_hand, "generative")
    report = measure_exact_match(store, torch.tensor([0.0, 0.0, 1.0, 3.0, 9.0]), special_ids=[1])
    report.write_csv(tmp_path / "exact_match.csv")
    rows = list(csv.DictReader((tmp_path / "exact_match.csv").open()))
    assert len(rows) == 2 * 2 * 6
    first = rows[0]
    assert (first["idf_bin"], first["token_types"], first["occurrences"]) == ("all", "2", "3")
    empty = next(row for row in rows if row["idf_bin"] == "4-6")
    assert empty["hard"] == "" and empty["occurrences"] == "0"
    assert [path.name for path in tmp_path.glob("exact_match*")] == ["exact_match.csv"]


@pytest.mark.parametrize("paradigm", ["multi_vector", "generative"])
def test_batch_size_and_padding_change_nothing(tmp_path, make_pairs, paradigm):
    pairs = make_pairs(9, heads=2 if paradigm == "generative" else 1, paradigm=paradigm)
    store = store_of(tmp_path / "alignments", pairs, paradigm)
    idf = torch.linspace(0, 10, 30)
    one, all_at_once = (measure_exact_match(store, idf, [3], size).metrics() for size in (1, 9))
    assert one == pytest.approx(all_at_once, abs=1e-6)


def test_identical_texts_aligned_by_identity_match_everywhere(tmp_path):
    ids = torch.arange(2, 8)[None]
    mask = torch.ones_like(ids, dtype=torch.bool)
    ones = torch.ones(1)
    identity = torch.eye(6)[None, None]
    pairs = PairAlignment(identity, identity, ones, ones, ones, ids, mask, ids, mask)
    store = store_of(tmp_path / "alignments", pairs, "generative")
    metrics = measure_exact_match(store, torch.linspace(0, 10, 8)).metrics()
    for direction in DIRECTIONS:
        for key, value in metrics.items():
            if key.startswith(f"analysis/exact_match/{direction}"):
                assert value == 1, key
