from types import SimpleNamespace

import pytest
import torch

from analysis.analysis import GoldTokens, Subject, Texts
from analysis.gold_alignment import (
    DEPTHS,
    MEASURES,
    GoldAlignment,
    at_thresholds,
    at_top,
    measure,
    strength,
)
from gr_mvdr.relevance import Explanation, PairAlignment

VOCABULARY, END = 30, 1


def flags(*places, size=6):
    found = torch.zeros(size, dtype=torch.bool)
    found[list(places)] = True
    return found


def measured_once(aligned, answer, evidence):
    values = measure(aligned.float()[None], answer, evidence)[0]
    return dict(zip(MEASURES, values.tolist(), strict=True))


# Pure functions


def test_a_tokens_strength_is_its_largest_alignment_with_a_token_that_counts():
    alignment = torch.tensor([[0.1, 0.7, 0.9], [0.2, 0.0, 0.8]])
    assert strength(alignment, flags(0, 1, size=3)).tolist() == pytest.approx([0.7, 0.2])


def test_precision_recall_and_error_rate_by_hand():
    """A = {0, 1, 2}, S = {1, 5}, evidence {2}: A∩S = {1}, A∩P = {1, 2}."""
    found = measured_once(flags(0, 1, 2), flags(1, 5), flags(2))
    expected = [1 / 3, 1 / 2, 2 / 3, 2 / 3, 1 - (1 + 2) / (3 + 2), 3]
    assert list(found.values()) == pytest.approx(expected)


def test_the_gold_itself_has_no_error_nor_has_anything_between_sure_and_possible():
    answer, evidence = flags(1, 5), flags(2, 3)
    for aligned in (answer, answer | flags(3), answer | evidence):
        found = measured_once(aligned, answer, evidence)
        assert found["aer"] == pytest.approx(0, abs=1e-6)
        assert found["recall"] == found["possible_precision"] == 1
    beyond = measured_once(answer | flags(0), answer, evidence)
    missing = measured_once(flags(1), answer, evidence)
    assert beyond["aer"] > 0.1 and missing["aer"] > 0.1


def test_nothing_aligned_has_no_precision_and_the_full_error():
    found = measured_once(torch.zeros(6), flags(1), flags())
    assert found["precision"] != found["precision"] and found["recall"] == 0 and found["aer"] == 1


def test_thresholds_take_in_what_reaches_them():
    strengths = torch.tensor([0.1, 0.5, 0.4, 0.9])
    chosen = at_thresholds(strengths, torch.tensor([True, True, True, False]), (0.1, 0.4, 0.6))
    assert chosen.tolist() == [[1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]


def test_the_strongest_and_a_shared_place_for_equal_ones():
    strengths = torch.tensor([0.9, 0.3, 0.3, 0.3, 0.1, 5.0])
    chosen = at_top(strengths, flags(0, 1, 2, 3, 4), (1, 2, 3, 5, 9))
    third = 1 / 3
    expected = [[1, 0, 0, 0, 0, 0], [1, third, third, third, 0, 0],
                [1, 2 * third, 2 * third, 2 * third, 0, 0],
                [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0]]  # fmt: skip
    torch.testing.assert_close(chosen, torch.tensor(expected))


def test_constant_strengths_are_a_random_choice():
    """Expected precision |S|/m at every k, recall k/m."""
    chosen = at_top(torch.zeros(5), flags(0, 1, 2, 3, 4, size=5), (1, 2, 4))
    values = measure(chosen, flags(0, 3, size=5), flags(1, size=5))
    torch.testing.assert_close(values[:, 0], torch.full((3,), 2 / 5))
    torch.testing.assert_close(values[:, 2], torch.full((3,), 3 / 5))
    for recall in (1, 3):
        torch.testing.assert_close(values[:, recall], torch.tensor([1, 2, 4]) / 5)
    assert at_top(torch.zeros(5), flags(0, 1, 2, 3, 4, size=5), (9,)).eq(1).all()


def test_leading_axes_and_padding_change_nothing():
    generator = torch.Generator().manual_seed(0)
    strengths = torch.rand(2, 3, 6, generator=generator)
    mask, answer, evidence = flags(0, 1, 2, 3, 4), flags(0, 4), flags(1)
    whole = torch.cat(
        [at_thresholds(strengths, mask, (0.2, 0.5)), at_top(strengths, mask, (1, 4))], -2
    )
    values = measure(whole, answer, evidence)
    assert values.shape == (2, 3, 4, 6)
    one = strengths[1, 2, :5]
    alone = torch.cat([at_thresholds(one, mask[:5], (0.2, 0.5)), at_top(one, mask[:5], (1, 4))], -2)
    torch.testing.assert_close(values[1, 2], measure(alone, answer[:5], evidence[:5]))


# The measurement


def texts(gold):
    special = torch.zeros(VOCABULARY, dtype=torch.bool)
    special[:3] = True
    return Texts(torch.ones(VOCABULARY), SimpleNamespace(special=special), None, gold)


def store(pairs, paradigm="multi_vector"):
    description = SimpleNamespace(paradigm=paradigm, title="a system on fruit")
    return SimpleNamespace(description=description, pairs=pairs)


def names(n):
    return [(f"q{number}", f"d{number}") for number in range(n)]


def golden(pairs, seed=1):
    """Every third pair has no gold; the others some random answer and evidence."""
    generator = torch.Generator().manual_seed(seed)
    gold = {}
    for number, length in enumerate(pairs.document_mask.sum(1).tolist()):
        answer = torch.rand(length, generator=generator) < 0.4
        answer[0] = True
        evidence = torch.rand(length, generator=generator) < 0.3
        if number % 3 != 2:
            gold[f"q{number}", f"d{number}"] = GoldTokens(answer, evidence)
    return gold


def measured(pairs, gold, paradigm="multi_vector", size=None):
    """The measurement of one batch, or of batches of a size."""
    layers = pairs if isinstance(pairs, list) else [pairs]
    count = len(layers[0].score)
    measurement = GoldAlignment(Subject(store=store(names(count), paradigm), texts=texts(gold)))
    for first in range(0, count, size or count):
        part = slice(first, first + (size or count))
        cut = [PairAlignment(**{n: v[part] for n, v in vars(p).items()}) for p in layers]
        measurement.update(Explanation(cut), first)
    return measurement.finish()


def rows_of(result, **wanted):
    table = result.tables["gold_alignment"]
    return [row for row in table if all(row[name] == value for name, value in wanted.items())]


def aligned_pair():
    """Document 5 6 7 </s>, query 8 9 </s>; the end token of each attracts the most."""
    alignment = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    return PairAlignment(
        similarity=alignment[None, None] * 3,
        alignment=alignment[None, None],
        normaliser=torch.ones(1),
        relevance=torch.ones(1),
        score=torch.ones(1),
        document_ids=torch.tensor([[5, 6, 7, END]]),
        document_mask=torch.ones(1, 4, dtype=torch.bool),
        query_ids=torch.tensor([[8, 9, END]]),
        query_mask=torch.ones(1, 3, dtype=torch.bool),
    )


def test_a_pair_by_hand():
    """Only the second token is chosen by a word of the query; the first one is no answer."""
    gold = {("q0", "d0"): GoldTokens(flags(1, size=4), flags(2, size=4))}
    result = measured(aligned_pair(), gold)
    (own,) = rows_of(result, alignment="own", selection="threshold", value=0.9)
    assert own["precision"] == own["recall"] == own["aligned"] == 1
    assert own["aer"] == pytest.approx(0)
    (random,) = rows_of(result, alignment="random", value=1)
    assert random["precision"] == pytest.approx(1 / 3), "the end token is no candidate"
    assert random["possible_precision"] == pytest.approx(2 / 3)
    key = "analysis/gold/query_to_document/"
    assert result.metrics[key + "precision@1"] == 1
    assert result.metrics[key + "random_precision"] == pytest.approx(1 / 3)
    assert result.metrics[key + "recall@5"] == 1
    assert result.metrics[key + "random_possible_precision"] == pytest.approx(2 / 3)
    assert result.metrics["analysis/gold/document_to_query/possible_precision@1"] == 1
    # Of three tokens that count, the answer and the evidence are gold.
    assert result.metrics[key + "align_all_aer"] == pytest.approx(1 - (1 + 2) / (3 + 1))
    assert key + "aer" not in result.metrics, "no other half to choose the threshold by"


def cross_attention(*strengths):
    """Pairs of as many word tokens and an end token each; a word's attention to the only word."""
    lengths = [len(values) for values in strengths]
    alignment = torch.zeros(len(strengths), 1, max(lengths) + 1, 2)
    ids = torch.zeros(len(strengths), max(lengths) + 1, dtype=torch.int64)
    for row, values in enumerate(strengths):
        words = torch.tensor([*values, 0.95])
        alignment[row, 0, : len(words)] = torch.stack([words, 1 - words], -1)
        ids[row, : len(words)] = torch.tensor([5] * len(values) + [END])
    ones = torch.ones(len(strengths))
    query = torch.tensor([[8, END]] * len(strengths))
    texts = dict(document_ids=ids, document_mask=ids > 0, query_ids=query, query_mask=query > 0)
    return PairAlignment(alignment, alignment, ones, ones, ones, **texts)


def test_the_threshold_is_chosen_on_the_other_half():
    """Only a pair's first word is gold: 0.5 is best for the even pairs, 0.2 for the odd ones."""
    pairs = cross_attention([0.6, 0.3], [0.3, 0.1, 0.1], [0.6, 0.3])
    gold = {pair: GoldTokens(flags(0, size=n), flags(size=n)) for pair, n in zip(
        names(3), (3, 4, 3), strict=True
    )}  # fmt: skip
    metrics = measured(pairs, gold, "generative", size=1).metrics
    key = "analysis/gold/document_to_query/"
    # By 0.2 an even pair aligns a word too many, by 0.5 the odd one aligns nothing.
    assert metrics[key + "aer"] == pytest.approx((1 / 3 + 1 + 1 / 3) / 3)
    alike = measured(cross_attention([0.6, 0.3], [0.6, 0.3, 0.1], [0.6, 0.3]), gold, "generative")
    assert alike.metrics[key + "aer"] == pytest.approx(0, abs=1e-6)


def test_chance_is_the_error_of_aligning_every_token_that_counts():
    """A mean over pairs, not over tokens; whatever the alignment."""
    gold = {pair: GoldTokens(flags(0, size=n), flags(size=n)) for pair, n in zip(
        names(2), (3, 4), strict=True
    )}  # fmt: skip
    expected = ((1 - 2 / 3) + (1 - 2 / 4)) / 2
    for strengths in ([0.6, 0.3], [0.3, 0.1, 0.1]), ([0.0, 0.0], [0.9, 0.0, 0.9]):
        result = measured(cross_attention(*strengths), gold, "generative")
        for direction in ("query_to_document", "document_to_query"):
            found = result.metrics[f"analysis/gold/{direction}/align_all_aer"]
            assert found == pytest.approx(expected)
        (row,) = rows_of(result, alignment="all")
        assert row["aer"] == pytest.approx(expected)
        assert (row["recall"], row["aligned"], row["pairs"]) == (1, 2.5, 2)


def test_an_alignment_that_is_the_gold_is_perfect_in_its_own_direction(make_pairs):
    """Cross-attention of the answer's tokens is sharp, of the others flat."""
    pairs = make_pairs(6, paradigm="generative", longest=9)
    pairs.document_ids.clamp_(min=3)
    gold = golden(pairs)
    columns = pairs.query_mask.sum(1)
    for row, number in enumerate(columns.tolist()):
        found = gold.get((f"q{row}", f"d{row}"))
        answer = torch.zeros(pairs.document_ids.shape[1], dtype=torch.bool)
        if found is not None:
            answer[: len(found.answer)] = (
                found.answer & (pairs.document_ids[row] > 2)[: len(found.answer)]
            )
        real = pairs.query_mask[row]
        pairs.query_ids[row][real] = 9
        pairs.alignment[row, 0] = torch.where(
            answer[:, None], (torch.arange(len(real)) == 0), 1 / number
        )
        pairs.alignment[row] *= pairs.document_mask[row][:, None] & real
    result = measured(pairs, gold, "generative")
    assert result.metrics["analysis/gold/document_to_query/precision@1"] == pytest.approx(1)
    (sure,) = rows_of(result, direction="document_to_query", selection="threshold", value=0.9)
    assert [sure["precision"], sure["recall"]] == pytest.approx([1, 1])
    assert sure["aer"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("paradigm", ["multi_vector", "generative", "lexical"])
def test_batches_and_padding_change_nothing(make_pairs, paradigm):
    heads = 2 if paradigm == "generative" else 1
    pairs = make_pairs(9, heads=heads, paradigm=paradigm)
    gold = golden(pairs)
    layers = [pairs] * (2 if paradigm == "generative" else 1)
    whole, parts = measured(layers, gold, paradigm), measured(layers, gold, paradigm, size=2)
    for one, other in zip(*(r.tables["gold_alignment"] for r in (whole, parts)), strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            wanted = other[name]
            if isinstance(wanted, float):
                wanted = pytest.approx(wanted, rel=1e-5, abs=1e-6, nan_ok=True)
            assert value == wanted, name
    assert whole.metrics == pytest.approx(parts.metrics, rel=1e-5, abs=1e-6)
    assert len(whole.metrics) == 14


def test_only_pairs_with_gold_of_the_documents_own_tokens_count(make_pairs):
    pairs = make_pairs(6)
    gold = golden(pairs)
    assert rows_of(measured(pairs, gold))[0]["pairs"] == 4
    docid = {pair: GoldTokens(g.answer[:-1], g.evidence[:-1]) for pair, g in gold.items()}
    for missing in ({}, docid):
        result = measured(pairs, missing)
        assert not (result.metrics or result.tables or result.figures)


def test_every_head_and_layer_of_a_generative_system_has_its_rows(make_pairs):
    first, last = (make_pairs(6, heads=2, paradigm="generative", seed=0) for _ in range(2))
    generator = torch.Generator().manual_seed(3)
    weights = last.alignment * torch.rand(last.alignment.shape, generator=generator)
    last.alignment = weights / weights.sum(-1, keepdim=True).clamp_min(1e-9)
    result = measured([first, last], golden(first), "generative")
    found = {(row["layer"], row["head"]) for row in rows_of(result, alignment="own")}
    assert found == {(layer, head) for layer in (1, 2) for head in ("mean", 1, 2)}
    alone = measured([last], golden(first), "generative")
    assert result.metrics == pytest.approx(alone.metrics), "metrics are those of the last layer"
    # A head on its own is a system with one head.
    single = PairAlignment(**vars(last) | {"alignment": last.alignment[:, 1:2]})
    single.similarity = single.similarity[:, :1]
    expected = rows_of(measured([single], golden(first), "generative"), head="mean")
    own = rows_of(result, layer=2, head=2)
    for one, other in zip(own, [r for r in expected if r["alignment"] == "own"], strict=True):
        assert {n: v for n, v in one.items() if n not in ("head", "layer")} == pytest.approx(
            {n: v for n, v in other.items() if n not in ("head", "layer")}, nan_ok=True
        )


def test_the_figure_has_a_curve_a_layer_and_the_random_line(make_pairs):
    pairs = make_pairs(6, heads=2, paradigm="generative")
    ((figure, entry),) = measured([pairs, pairs], golden(pairs), "generative").figures
    labels = [[line.get_label() for line in axes.lines] for axes in figure.axes]
    assert labels == [["layer 1", "layer 2", "random order"]] * 4
    assert entry.name == "gold_alignment"
    points = figure.axes[0].lines[0].get_xdata()
    assert len(points) == len(DEPTHS)
