"""What a multi-vector system is free to choose: the alignment, and nothing else."""

import pytest
import torch

from gr_mvdr.alignment import MaxSim, Softmax
from gr_mvdr.batch import PairBatch, cut, pad
from gr_mvdr.tokenizers import EOS_ID
from models.multi_vector import MultiVectorSystem


class AnySystem(MultiVectorSystem):
    """A system that only names its alignment, like the README's example."""


def system(tools, alignment):
    colbert = tools.make_colbert()
    options = {k: v for k, v in colbert.hparams.items() if k not in ("loss", "sentinel_id")}
    made = AnySystem(**options)
    made.load_state_dict(colbert.state_dict())
    made.alignment = alignment
    return made.eval(), colbert.eval()


def test_the_loss_of_any_alignment_is_colberts_for_max_sim(tools):
    general, colbert = system(tools, MaxSim("query_to_document"))
    batch = tools.make_batch()
    assert torch.allclose(general.loss(batch), colbert.loss(batch), atol=1e-5)
    other, _ = system(tools, Softmax("query_to_document"))
    assert not torch.allclose(other.loss(batch), colbert.loss(batch), atol=1e-3)


@pytest.mark.parametrize("alignment", [MaxSim("document_to_query"), Softmax("query_to_document")])
@torch.inference_mode()
def test_exact_search_ranks_by_the_systems_own_alignment(tools, tmp_path, alignment):
    general, _ = system(tools, alignment)
    documents = tools.Texts(tools.draw_tokens((4, 7, 2, 5), 3), "d")
    queries = tools.Texts(tools.draw_tokens((3, 5), 4), "q")
    general.index(documents, tmp_path / "index")
    ranking = general.retrieve(queries, 4)
    for query_id, query in zip(queries["id"], queries["tokens"], strict=True):
        pairs = PairBatch(
            *pad([cut(query, 8, EOS_ID)] * 4),
            *pad([cut(tokens, 12, EOS_ID) for tokens in documents["tokens"]]),
            torch.arange(4),
        )
        scores = dict(zip(documents["id"], general.score(pairs).tolist(), strict=True))
        assert ranking.scores(query_id) == pytest.approx(scores, abs=1e-5)
