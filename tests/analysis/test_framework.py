import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from analysis.analysis import Subject
from analysis.framework import (
    Framework,
    PathShares,
    QueryPaths,
    head_contributions,
    path_kind,
    path_sum_error,
)
from gr_mvdr.relevance import DecoderPaths, Explanation
from models.t5_seal import T5SEAL
from tests.analysis.asking import asked

pytestmark = pytest.mark.usefixtures("float64")

PARTS = ("self_attention", "cross_attention", "feed_forward")
NAMES = ("embedding", *(f"{part}_{layer}" for layer in (1, 2) for part in PARTS))


def explanation(make_pairs, n_pairs=6, seed=0, longest=9):
    """Two layers of two heads; the paths sum to the logits, cross-attention's is Σ S A."""
    layers = [
        make_pairs(n_pairs, 2, seed=seed, paradigm="generative", longest=longest) for _ in range(2)
    ]
    generator = torch.Generator().manual_seed(seed + 7)
    for pairs in layers:
        real = pairs.similarity != 0
        pairs.similarity = torch.randn(real.shape, generator=generator) * real
    mask = layers[0].document_mask
    contributions = torch.randn(n_pairs, len(NAMES), mask.shape[1], generator=generator)
    contributions *= mask[:, None]
    for number, pairs in enumerate(layers):
        contributions[:, 2 + 3 * number] = head_contributions(pairs).sum(1)
    logits = contributions.sum(1)
    norms = torch.ones(n_pairs, 2), torch.ones(n_pairs), torch.ones(2, 2)
    return Explanation(layers, DecoderPaths(NAMES, contributions, logits, logits - 3, *norms))


def widened(batch, columns=3, junk=50.0):
    """The same pairs with more padding and numbers in it that must not count."""
    paths = batch.decoder
    grown = torch.nn.functional.pad
    layers = []
    for pairs in batch.layers:
        sides = {
            f"{side}_{part}": grown(getattr(pairs, f"{side}_{part}"), (0, columns))
            for side in ("document", "query")
            for part in ("ids", "mask")
        }
        matrices = {
            name: grown(getattr(pairs, name), (0, columns, 0, columns))
            for name in ("similarity", "alignment")
        }
        layers.append(type(pairs)(**{**vars(pairs), **sides, **matrices}))
    tokens = {
        name: grown(getattr(paths, name), (0, columns), value=junk)
        for name in ("contributions", "logits", "log_probs")
    }
    return Explanation(layers, DecoderPaths(**{**vars(paths), **tokens}))


def store(path_names=NAMES, layers=2, heads=2):
    return SimpleNamespace(path_names=path_names, layers=layers, heads=heads)


def texts(special=()):
    flags = torch.zeros(30, dtype=torch.bool)
    flags[list(special)] = True
    return SimpleNamespace(kinds=SimpleNamespace(special=flags))


def measured(*batches, special=()):
    framework, first = Framework(Subject(store=store(), texts=texts(special))), 0
    for batch in batches:
        framework.update(batch, first)
        first += len(batch)
    return framework.finish()


def test_shares_worked_out_by_hand():
    """Totals 3, 5, 7 of parts (1, 2), (2, 3), (3, 4): each part has half of the covariance."""
    shares = PathShares(3)
    shares.update(torch.tensor([[1.0, 2, 0], [2, 3, 0]]), torch.tensor([3.0, 5]))
    shares.update(torch.tensor([[3.0, 4, 0]]), torch.tensor([7.0]))
    assert shares.covariance.tolist() == pytest.approx([0.5, 0.5, 0])
    assert shares.absolute.tolist() == pytest.approx(
        [(1 / 3 + 2 / 5 + 3 / 7) / 3, (2 / 3 + 3 / 5 + 4 / 7) / 3, 0]
    )
    assert shares.mean.tolist() == pytest.approx([2, 3, 0])


def test_a_part_that_works_against_the_others_has_a_negative_share():
    shares = PathShares(2)
    parts = torch.tensor([[2.0, -1], [4, -2], [6, -3]])
    shares.update(parts, parts.sum(1))
    assert shares.covariance.tolist() == pytest.approx([2, -1])
    assert shares.absolute.tolist() == pytest.approx([2 / 3, 1 / 3])


def test_a_constant_part_explains_nothing_however_large():
    shares, varying = PathShares(2), torch.randn(50, generator=torch.Generator().manual_seed(0))
    parts = torch.stack([torch.full((50,), 1000.0), varying], 1)
    shares.update(parts, parts.double().sum(1))
    assert shares.covariance.tolist() == pytest.approx([0, 1], abs=1e-6)
    assert shares.absolute[0] > 0.99


def test_totals_that_do_not_vary_have_no_covariance_shares():
    shares = PathShares(2)
    for _ in range(7):  # sums of 0.3 are not exact: their variance is not quite zero
        shares.update(torch.tensor([[0.1, 0.2]] * 3), torch.full((3,), 0.3))
    assert shares.covariance.isnan().all() and not shares.absolute.isnan().any()
    empty = PathShares(2)
    assert all(value.isnan().all() for value in (empty.covariance, empty.absolute, empty.mean))


def test_the_sum_error_is_relative_to_large_logits_only():
    contributions = torch.tensor([[[1.0, 200], [0.5, 0]], [[0, 0], [0, 0]]])
    logits = torch.tensor([[1.25, 100.0], [0, 0]])
    assert path_sum_error(contributions, logits).tolist() == [1.0, 0.0]
    assert path_sum_error(contributions[:, :, :1], logits[:, :1]).tolist() == [0.2, 0.0]


def test_path_kinds():
    assert [path_kind(name) for name in ("embedding", "feed_forward_12")] == [
        "embedding",
        "feed_forward",
    ]


def test_shares_of_paths_and_heads_add_up(make_pairs):
    found = measured(explanation(make_pairs))
    for tokens in ("all", "not_special"):
        rows = {row["path"]: row for row in found.tables["framework"] if row["tokens"] == tokens}
        for share in ("covariance_share", "absolute_share", "pair_covariance_share"):
            assert sum(rows[name][share] for name in NAMES) == pytest.approx(1)
            layers = (rows[f"cross_attention_{layer}"][share] for layer in (1, 2))
            assert rows["cross_attention_all"][share] == pytest.approx(sum(layers))
        assert sum(rows[name]["pair_mean_share"] for name in NAMES) == pytest.approx(1)
    rows = {row["path"]: row for row in found.tables["framework"] if row["tokens"] == "all"}
    heads = found.tables["framework_heads"]
    assert [(row["layer"], row["head"]) for row in heads] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert sum(row["absolute_share"] for row in heads) == pytest.approx(1)
    for key in ("covariance_share", "mean"):
        last = sum(row[key] for row in heads if row["layer"] == 2)
        assert last == pytest.approx(rows["cross_attention_2"][key], rel=1e-4)


def test_metrics_are_those_of_the_table(make_pairs):
    found = measured(explanation(make_pairs))
    rows = {row["path"]: row for row in found.tables["framework"] if row["tokens"] == "all"}
    assert found.metrics == {
        "analysis/framework/sum_error": pytest.approx(0, abs=1e-5),
        "analysis/framework/last_layer_share": rows["cross_attention_2"]["covariance_share"],
        "analysis/framework/last_layer_absolute_share": rows["cross_attention_2"]["absolute_share"],
        "analysis/framework/cross_attention_share": rows["cross_attention_all"]["covariance_share"],
        "analysis/framework/cross_attention_absolute_share": rows["cross_attention_all"][
            "absolute_share"
        ],
    }


def test_a_logit_that_is_all_last_layer_has_share_one(make_pairs):
    batch = explanation(make_pairs)
    paths = batch.decoder
    paths.contributions[:, [n for n in range(len(NAMES)) if n != 5]] = 0
    paths.logits = paths.contributions.sum(1)
    metrics = measured(batch).metrics
    for name in ("last_layer_share", "cross_attention_share", "last_layer_absolute_share"):
        assert metrics[f"analysis/framework/{name}"] == pytest.approx(1)


def test_a_missing_path_shows_in_the_sum_error(make_pairs):
    batch = explanation(make_pairs)
    batch.decoder.logits = batch.decoder.logits + batch.layers[0].document_mask * 0.5
    assert measured(batch).metrics["analysis/framework/sum_error"] > 0.05


def test_batches_and_padding_change_nothing(make_pairs):
    one, other = explanation(make_pairs), explanation(make_pairs, seed=3, longest=5)
    plain = measured(one, other)
    padded = measured(widened(one), widened(other))
    for name, rows in plain.tables.items():
        for row, same in zip(rows, padded.tables[name], strict=True):
            assert row == pytest.approx(same)
    assert padded.metrics == pytest.approx(plain.metrics)
    swapped = measured(other, one)
    assert swapped.metrics == pytest.approx(plain.metrics)


def test_special_tokens_count_in_all_rows_only(make_pairs):
    batch = explanation(make_pairs)
    special = {2, 3, 4, 5}
    found = measured(batch, special=special)
    assert found.tables["framework"][0] == measured(batch).tables["framework"][0]
    ids, real = batch.layers[0].document_ids, batch.layers[0].document_mask
    kept = real & ~torch.isin(ids, torch.tensor(sorted(special)))
    assert 0 < kept.sum() < real.sum()
    mean = float(batch.decoder.contributions[:, 0][kept].mean())
    (row,) = [
        row
        for row in found.tables["framework"]
        if (row["tokens"], row["path"]) == ("not_special", "embedding")
    ]
    assert row["mean"] == pytest.approx(mean, rel=1e-5)


def test_pairs_of_special_tokens_alone_do_not_count(make_pairs):
    """A docid's only token may be the end token."""
    alone = explanation(make_pairs)
    for pairs in alone.layers:
        pairs.document_ids[:2] = 29
        pairs.document_ids[2:][pairs.document_ids[2:] == 29] = 28
    rest = Explanation(
        [type(p)(**{name: value[2:] for name, value in vars(p).items()}) for p in alone.layers],
        DecoderPaths(
            NAMES,
            *(getattr(alone.decoder, n)[2:] for n in ("contributions", "logits", "log_probs")),
            *(torch.ones(1),) * 3,
        ),
    )
    half, same = (measured(pairs, special={29}).tables["framework"] for pairs in (alone, rest))
    for row, expected in zip(half[len(half) // 2 :], same[len(half) // 2 :], strict=True):
        assert row["tokens"] == "not_special" and row == pytest.approx(expected)
    found = measured(explanation(make_pairs), special=range(30))
    content = [row for row in found.tables["framework"] if row["tokens"] == "not_special"]
    assert all(math.isnan(row["covariance_share"]) for row in content)


def test_other_systems_have_no_paths():
    assert not Framework.applies(Subject(store=store(path_names=(), layers=1, heads=1)))


def test_the_figure_has_a_bar_for_every_path_and_share(make_pairs):
    ((figure, entry),) = measured(explanation(make_pairs)).figures
    assert entry.name == "framework" and len(figure.axes) == 3
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[0] == "embedding" and labels[-1] == "feed-forward 2"
    assert all(len(axes.patches) == len(NAMES) for axes in figure.axes)


SHAPE = dict(vocab_size=60, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
BACKBONE = dict(name=None, dropout_rate=0.0, attention="eager", shape=SHAPE)
OPTIMIZER = {"learning_rate": 1e-3, "weight_decay": 0.01, "schedule": "constant"}
EVIDENCE = dict(alpha=2.0, beta=0.8, smoothing=0.1, max_occurrences_1=1500)
SIZES = dict(query_length=8, document_length=10, optimizer=OPTIMIZER)


def seal():
    torch.manual_seed(0)
    return T5SEAL(BACKBONE, key_length=4, beam_size=3, evidence=EVIDENCE, **SIZES)


def rows(measured):
    return {row["path"]: row for row in measured.tables["framework_query"]}


@torch.inference_mode()
def test_shares_are_of_the_difference_between_two_queries(tiny_data):
    system = seal().eval()
    measured = rows(asked(QueryPaths, system, tiny_data, 8))
    _, (batch,) = tiny_data.test_pairs("test", 8, batch_size=8)
    swapped = [4, 5, 6, 7, 0, 1, 2, 3]
    other = replace(batch, query_ids=batch.query_ids[swapped], query_mask=batch.query_mask[swapped])
    one, two = (system.explain(pairs).decoder for pairs in (batch, other))
    parts = (one.contributions - two.contributions).transpose(1, 2)[batch.document_mask]
    total = (one.logits - two.logits)[batch.document_mask]
    for number, name in enumerate(one.names):
        both = torch.cov(torch.stack([parts[:, number], total]))
        share = float(both[0, 1] / both[1, 1])
        assert measured[name]["covariance_share"] == pytest.approx(share, abs=1e-4)
    for share in ("covariance_share", "absolute_share", "pair_mean_share"):
        assert sum(measured[name][share] for name in one.names) == pytest.approx(1, abs=1e-4)


def test_a_path_that_is_cut_off_has_no_share(tiny_data):
    system = seal()
    with torch.no_grad():
        for block in system.backbone.decoder.block:
            block.layer[2].DenseReluDense.wo.weight.zero_()
    measured = asked(QueryPaths, system, tiny_data, 10)
    found = rows(measured)
    assert found["feed_forward_all"]["absolute_share"] == 0
    assert measured.metrics == {
        "analysis/framework/query_last_layer_share": found["cross_attention_2"]["covariance_share"],
        "analysis/framework/query_cross_attention_share": found["cross_attention_all"][
            "covariance_share"
        ],
    }


def test_pairs_without_another_query_and_other_systems_say_nothing(tiny_data):
    other = SimpleNamespace(paradigm="multi_vector")
    for found in (
        asked(QueryPaths, seal(), tiny_data, 1),
        asked(QueryPaths, seal(), tiny_data, 0),
        asked(QueryPaths, other, tiny_data, 5),
    ):
        assert (found.metrics, found.tables, found.figures) == ({}, {}, [])


def test_the_figure_names_the_change(tiny_data):
    ((figure, entry),) = asked(QueryPaths, seal(), tiny_data, 6).figures
    assert entry.name == "framework_query"
    assert "change of logit" in figure.axes[0].get_title()
