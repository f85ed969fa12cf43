import pytest
import pytorch_lightning as pl
import torch

from analysis.extract import extract_alignments
from gr_mvdr.batch import PairBatch


class Recorded(pl.LightningModule):
    """A model whose alignments are known beforehand."""

    paradigm = "multi_vector"

    def __init__(self, answers):
        super().__init__()
        self.answers, self.modes = iter(answers), []

    def align(self, batch):
        self.modes.append((self.training, torch.is_inference_mode_enabled()))
        return next(self.answers)


def batch_of(pairs):
    return PairBatch(
        pairs.query_ids,
        pairs.query_mask,
        pairs.document_ids,
        pairs.document_mask,
        torch.arange(len(pairs.score)),
    )


@pytest.fixture
def answers(make_pairs):
    return [make_pairs(3, seed=1), make_pairs(2, seed=2)]


def test_writes_every_batch_in_evaluation_mode(tmp_path, answers):
    model = Recorded(answers)
    pairs = [(f"q{n}", f"d{n}") for n in range(5)]
    store = extract_alignments(
        model,
        (batch_of(answer) for answer in answers),
        tmp_path / "alignments",
        pairs,
        system="t5_colbert",
        collection="almanac",
    )
    assert model.modes == [(False, True)] * 2 and model.training
    assert store.pairs == pairs and store.description.system == "t5_colbert"
    assert torch.equal(store[3].score[0], answers[1].score[0])


@pytest.mark.parametrize("named", [4, 6])
def test_the_number_of_names_must_fit(tmp_path, answers, named):
    with pytest.raises(ValueError, match=r"2 alignments for 1 query|6 pairs named, 5 in"):
        extract_alignments(
            Recorded(answers),
            map(batch_of, answers),
            tmp_path / "alignments",
            [("q", "d")] * named,
            system="t5_colbert",
            collection="almanac",
        )
    assert not list(tmp_path.iterdir())
