import pytest

from gr_mvdr.token_index.neighbours import xtr_scoring_flops
from gr_mvdr.token_index.search import multi_vector_joint_flops, mva_joint_flops
from models.cross_encoder import transformer_flops

BERT_BASE = dict(layers=12, d_model=768, d_ff=3072, d_attention=768)


def mega(flops):
    """MFLOPs of 1,000 pairs as MVA counts: a multiply-add is one."""
    return 1000 * flops / 2 / 1e6


def test_xtrs_table_1():
    """n = 16, k' = 100, m̄ = 55, r̄ = 2.5, d = 128: 4,000 times fewer.

    The cells of the table are lost in xtr.txt: n, m̄ and d are those of App. B; k' and r̄, which the
    text does not give, are remembered from the published table. k' drops out of the ratio.
    """
    n, neighbours = 16, 100
    colbert = n * neighbours * multi_vector_joint_flops(n, 55, 128)
    xtr = xtr_scoring_flops(n, n * neighbours, 2.5)
    assert colbert == 361_881_600
    assert xtr == 89_600
    assert colbert / xtr == pytest.approx(4000, rel=0.01)


@pytest.mark.parametrize(
    ("system", "sizes", "paper", "share"),
    [
        (multi_vector_joint_flops, (32, 70, 128), 286, 0.01),  # ColBERT
        (multi_vector_joint_flops, (1, 1, 768), 0.8, 0.05),  # dual encoder
        (mva_joint_flops, (7, 70, 128), 130, 0.03),
        (mva_joint_flops, (7, 24, 64), 25, 0.12),
        (mva_joint_flops, (7, 16, 32), 8, 0.06),
    ],
)
def test_mvas_table_5(system, sizes, paper, share):
    assert mega(system(*sizes)) == pytest.approx(paper, rel=share)


def test_mvas_cross_encoder_reads_128_tokens():
    operations = transformer_flops(128, **BERT_BASE)
    assert mega(operations) == pytest.approx(11_000_000, rel=0.02)
    assert mega(operations) * 10 / 1000 == pytest.approx(110_000, rel=0.02), "Table 6, K = 10"
