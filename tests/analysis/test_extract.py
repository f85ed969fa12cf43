import pytest
import pytorch_lightning as pl
import torch

from analysis.store import alignment_writer
from analysis.store.alignment_store import AlignmentStore, StoreDescription
from analysis.store.alignment_writer import extract_alignments
from gr_mvdr.batch import PairBatch
from gr_mvdr.relevance import Explanation

DESCRIPTION = StoreDescription("t5_colbert", "multi_vector", "almanac", made_from="w")
PAIRS = [(f"q{n}", f"d{n}") for n in range(9)]


class Recorded(pl.LightningModule):
    """A model whose alignments are known beforehand."""

    def __init__(self, answers, broken_at=None):
        super().__init__()
        self.answers, self.broken_at, self.modes = answers, broken_at, []

    def explain(self, batch):
        if len(self.modes) == self.broken_at:
            raise KeyboardInterrupt
        self.modes.append((self.training, torch.is_inference_mode_enabled()))
        (answer,) = (a for a in self.answers if len(a.score) == len(batch))
        return Explanation([answer])


@pytest.fixture
def answers(make_pairs):
    return [make_pairs(n, seed=n) for n in (3, 2, 4)]


@pytest.fixture
def batches(answers):
    return [
        PairBatch(a.query_ids, a.query_mask, a.document_ids, a.document_mask, torch.arange(n))
        for a, n in zip(answers, (3, 2, 4), strict=True)
    ]


def extract(model, batches, folder, pairs=PAIRS, description=DESCRIPTION):
    return extract_alignments(model, batches, folder / "alignments", pairs, description)


def test_writes_every_batch_in_evaluation_mode(tmp_path, answers, batches):
    model = Recorded(answers)
    store = extract(model, batches, tmp_path)
    assert model.modes == [(False, True)] * 3 and model.training
    assert store.pairs == PAIRS and store.description == DESCRIPTION
    assert torch.equal(store[3].score[0], answers[1].score[0])


def test_goes_on_where_it_was_interrupted(tmp_path, answers, batches, monkeypatch):
    monkeypatch.setattr(alignment_writer, "SHARD_VALUES", 1)
    with pytest.raises(KeyboardInterrupt):
        extract(Recorded(answers, broken_at=2), batches, tmp_path)
    model = Recorded(answers)
    store = extract(model, batches, tmp_path)
    assert len(model.modes) == 1 and len(store) == 9
    for number, (batch, row) in enumerate((b, r) for b in answers for r in range(len(b.score))):
        assert torch.equal(store[number].relevance[0], batch.relevance[row])


@pytest.mark.parametrize("change", ["pairs", "batches"])
def test_an_interrupted_extraction_of_other_pairs_begins_anew(
    tmp_path, answers, batches, monkeypatch, change
):
    monkeypatch.setattr(alignment_writer, "SHARD_VALUES", 1)
    with pytest.raises(KeyboardInterrupt):
        extract(Recorded(answers, broken_at=1), batches, tmp_path)
    pairs = [("other", "d"), *PAIRS[1:]] if change == "pairs" else PAIRS
    order = batches if change == "pairs" else batches[::-1]
    model = Recorded(answers)
    assert extract(model, order, tmp_path, pairs).pairs == pairs
    assert len(model.modes) == 3


def test_a_finished_store_of_the_same_is_kept_another_is_replaced(tmp_path, answers, batches):
    extract(Recorded(answers), batches, tmp_path)
    again, other = Recorded(answers), Recorded(answers)
    extract(again, batches, tmp_path)
    assert again.modes == []
    changed = StoreDescription("t5_colbert", "multi_vector", "almanac", made_from="v")
    extract(other, batches, tmp_path, description=changed)
    assert len(other.modes) == 3
    assert AlignmentStore(tmp_path / "alignments").description == changed


@pytest.mark.parametrize("named", [8, 10])
def test_the_number_of_names_must_fit(tmp_path, answers, batches, named):
    with pytest.raises(ValueError, match=rf"{named} pairs named, 9 in the batches"):
        extract(Recorded(answers), batches, tmp_path, [("q", "d")] * named)
    assert not list(tmp_path.iterdir())
