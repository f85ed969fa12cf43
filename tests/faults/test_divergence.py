"""A training that diverges stops at once, by name; nan is never ranked, indexed or written."""

from types import SimpleNamespace

import pytest
import torch
from pandas.testing import assert_frame_equal

from analysis.questions.learning_curves import read_curve
from gr_mvdr.decoding.beam_search import beam_search
from gr_mvdr.decoding.trie import Trie
from gr_mvdr.evaluation.ranking import Ranking, best_documents
from models.training import StopRules
from tests.faults.forked import configuration
from tests.runs import beir
from train import train

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize("model", ["genre", "t5_colbert"])
def test_a_learning_rate_that_is_too_high_is_named(model, tmp_path):
    keys = ["model.optimizer.learning_rate=1e30", "trainer.precision=32-true", "name=run"]
    said = r"model.optimizer.learning_rate=1e\+30: .* is not finite at step \d"
    with pytest.raises(ValueError, match=said):
        train(configuration(tmp_path, f"model={model}", *keys))
    assert not (tmp_path / "run/metrics.json").exists() and not (tmp_path / "run/.lock").exists()


def test_weights_that_are_not_finite_do_not_replace_a_checkpoint(tmp_path, monkeypatch):
    """The last step alone breaks them, after its loss and its norm were looked at."""
    from models.docid import Docid

    def broken(self):
        if self.current_epoch == 1:
            next(self.parameters()).data[0, 0] = torch.nan

    monkeypatch.setattr(Docid, "on_train_epoch_end", broken, raising=False)
    with pytest.raises(ValueError, match=r"learning_rate=.*weight is not finite at step "):
        train(configuration(tmp_path, "model=dsi_naive", "name=run"))
    kept = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    assert kept["epoch"] == 0 and all(
        value.isfinite().all() for value in kept["state_dict"].values()
    )


def test_a_gradient_without_clipping_is_looked_at_and_the_checkpoint_before_it_resumes(
    tmp_path, monkeypatch
):
    """The fourth epoch's first step: its loss is finite, its gradients are not."""
    from models.docid import Docid

    def broken(self, *_):
        if self.current_epoch == 3:
            self.backbone.shared.weight.grad[0] = torch.inf

    keys = ["model=dsi_naive", "trainer.max_epochs=5", "name=run"]
    unclipped = "trainer.gradient_clip_val=null"
    monkeypatch.setattr(Docid, "on_after_backward", broken, raising=False)
    with pytest.raises(ValueError) as raised:
        train(configuration(tmp_path, *keys, unclipped))
    steps = read_curve(tmp_path / "run")["step"].tolist()
    assert str(raised.value) == (
        "model.optimizer.learning_rate=0.001: the gradient's norm is not finite at step "
        f"{len(steps) + 1}: take a smaller one, or another trainer.precision (it is 64-true); "
        f"the checkpoint of step {len(steps)} is from before"
    )
    assert steps == list(range(1, len(steps) + 1))
    monkeypatch.undo()
    resumed = train(configuration(tmp_path, *keys, unclipped, "resume=true"))
    keys[-1] = "name=whole"
    whole = train(configuration(tmp_path, *keys, unclipped))
    scores = [key for key in whole.metrics if not key.startswith("cost")]
    assert all(resumed.metrics[key] == pytest.approx(whole.metrics[key]) for key in scores)
    assert_frame_equal(read_curve(resumed.path), read_curve(whole.path), rtol=1e-6)


def test_an_overflow_that_the_scaler_of_fp16_skips_is_normal():
    def look(norm, loss=1.0, scale=1024.0):
        trainer = SimpleNamespace(
            callback_metrics={"train/loss": torch.tensor(loss)},
            precision="16-mixed",
            precision_plugin=SimpleNamespace(scaler=SimpleNamespace(get_scale=lambda: scale)),
        )
        model = SimpleNamespace(hparams=SimpleNamespace(optimizer={"learning_rate": 0.1}))
        rules = StopRules()
        rules.norm = torch.tensor(norm)
        rules.check_step(trainer, model, 7)

    look(torch.inf)
    with pytest.raises(ValueError, match=r"norm is not finite at step 7: .*\(it is 16-mixed\)"):
        look(torch.inf, scale=0.5)  # it will never go on
    with pytest.raises(ValueError, match="learning_rate=0.1: the loss is not finite at step 7"):
        look(1.0, loss=torch.nan)


def test_a_collection_whose_queries_have_no_negative_trains_nothing_and_says_so(tmp_path):
    """Every document is relevant to every query: each loss is log 1."""
    path = beir(tmp_path / "fruit")
    rows = ["query-id\tcorpus-id\tscore"]
    rows += [f"a-{q}\t{d}\t1" for q in ("apple", "pear") for d in ("fig", "plum")]
    (path / "qrels/train.tsv").write_text("\n".join(rows) + "\n")
    keys = ["data=beir", f"data.path={path}", "model=t5_colbert", "name=run"]
    with pytest.raises(ValueError, match="^system=MultiVector: every gradient of epoch 1 is"):
        train(configuration(tmp_path, *keys))
    assert not (tmp_path / "run/checkpoints").exists()


def test_nan_is_refused_where_something_is_chosen():
    scores = torch.tensor([1.0, torch.nan, 0.5])
    with pytest.raises(ValueError, match="document 'b': the score is nan"):
        best_documents(["a", "b", "c"], scores.numpy(), 2)
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"document 'a': the score is {value}"):
            Ranking({"q": {"a": value}})
    trie = Trie.build([[2], [3]])
    with pytest.raises(ValueError, match="log-probabilities are nan"):
        beam_search(lambda last, _: torch.full((len(last), 5), torch.nan), trie, 1, 2, 2, None)
