"""doc2query is asked what can be asked: its A is over the document's tokens, its logits are not."""

import torch

from analysis.questions.analysis import Subject
from analysis.questions.exact_match import ExactMatch
from analysis.questions.framework import Framework, FrameworkRanking, QueryPaths
from analysis.questions.kernel import Kernel
from analysis.questions.low_rank import LowRank
from analysis.questions.shape import Shape
from models.beyond.query_generator import QueryGenerator
from tests.analysis.asking import asked
from tests.models.conftest import BACKBONE, OPTIMIZER


@torch.no_grad()
def test_its_alignments_are_measured_and_its_paths_are_not(tiny_data, store_of, measure):
    lengths = dict(document_length=12, query_length=8, n_queries=1, top_k=1)
    generator = QueryGenerator(BACKBONE, "nowhere", optimizer=OPTIMIZER, **lengths).eval()
    _, (batch,) = tiny_data.evaluation.test_pairs("test", 4, batch_size=4)
    store = store_of(generator.explain(batch), "generative")
    measured = {
        kind: measure(kind, store, idf=torch.ones(60)).metrics
        for kind in (ExactMatch, LowRank, Shape)
    }
    assert all(measured.values())
    assert not any("bound" in name or "gamma" in name for name in measured[LowRank])
    assert not Framework.applies(Subject(store=store))
    for kind in (QueryPaths, FrameworkRanking, Kernel):
        assert asked(kind, generator, None, 5).metrics == {}
