"""doc2query is asked what can be asked: its A is over the document's tokens, its logits are not."""

import pytest
import torch

from analysis.analysis import Subject
from analysis.exact_match import ExactMatch
from analysis.framework import Framework, FrameworkRanking, QueryPaths
from analysis.kernel import Kernel
from analysis.low_rank import LowRank
from analysis.shape import Shape
from analysis.viewer.directed_alignment import directed_alignment
from gr_mvdr.batch import PairBatch, cut, pad
from models.beyond.query_generator import QueryGenerator
from tests.analysis.asking import asked


@pytest.fixture
def generator():
    torch.manual_seed(0)
    shape = dict(vocab_size=30, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
    backbone = dict(name=None, dropout_rate=0.0, attention="eager", shape=shape)
    optimizer = {"learning_rate": 1e-3, "weight_decay": 0.01, "schedule": "constant"}
    lengths = dict(document_length=12, query_length=8, n_queries=1, top_k=1)
    return QueryGenerator(backbone, "nowhere", optimizer=optimizer, **lengths).eval()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    sides = [
        pad([cut(torch.randint(2, 30, (n,), generator=generator).tolist(), 9, 1) for n in lengths])
        for lengths in ((3, 6, 2, 5), (8, 4, 7, 2))
    ]
    return PairBatch(*sides[0], *sides[1], torch.arange(4))


@torch.no_grad()
def test_its_alignments_are_measured_and_its_paths_are_not(generator, batch, store_of, measure):
    store = store_of(generator.explain(batch), "generative")
    measured = {kind: measure(kind, store).metrics for kind in (ExactMatch, LowRank, Shape)}
    for name, value in measured[ExactMatch].items():
        assert not name.endswith(("/hard", "/soft")) or 0 <= value <= 1, name
    assert 0 <= measured[LowRank]["analysis/low_rank/relative_error"] <= 1
    assert not any("bound" in name or "gamma" in name for name in measured[LowRank])
    assert not Framework.applies(Subject(store=store))
    for kind in (QueryPaths, FrameworkRanking, Kernel):
        assert asked(kind, generator, None, 5).metrics == {}


@torch.no_grad()
def test_both_directions_are_normalised(generator, batch):
    pairs = generator.explain(batch).layers[-1]
    for direction, axis, mask in (
        ("document_to_query", 2, pairs.document_mask),
        ("query_to_document", 1, pairs.query_mask),
    ):
        sums = directed_alignment(pairs, "generative", direction).sum(axis)
        assert torch.allclose(sums, mask.to(sums), atol=1e-5)
    own = directed_alignment(pairs, "generative", "query_to_document")
    assert torch.allclose(own, pairs.alignment.mean(1).float(), atol=1e-6)
