from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from analysis.framework import QueryPaths
from models.t5_seal import T5SEAL
from tests.analysis.asking import asked

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
