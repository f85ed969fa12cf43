"""The whole run: configurations, what a run leaves behind, bad input, resuming."""

import gc
import signal
import weakref

import datasets
import pytest
import pytorch_lightning as pl
from hydra.utils import instantiate
from omegaconf import OmegaConf
from pandas.testing import assert_frame_equal

import train as train_module
from analysis.questions.learning_curves import read_curve
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.tokenizers import build_word_tokenizer
from models.multi_vector import MultiVector
from models.retriever import Retriever
from tests.runs import NO_ANALYSIS, SMALL, TINY, beir, command, compose_config, small
from train import train

# Those of the papers' that differ from a model's defaults in what they run (tests/test_papers.py).
EXPERIMENTS = ["aligner_adaptation", "aligner_pruning", "mva_pooling", "query_generation"]
EXPERIMENTS += ["seal_full", "xtr_k"]
SMALLER = {"max_test_queries": 6, "max_rerank_queries": 2}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_runs_for_two_steps(tmp_path, experiment):
    config = compose_config(
        "train",
        f"experiment={experiment}",
        "logger=none",
        f"output={tmp_path}",
        f"name={experiment}",
        "trainer.max_steps=2",
        "data.n_documents=50",
        "data.max_test_queries=20",
        "data.max_rerank_queries=2",
        "analysis=none",
        *TINY,
    )
    assert "retrieve/mrr@10" in train(config).metrics
    if config.study:
        assert (tmp_path / experiment / "study.csv").stat().st_size


def test_the_pipeline_of_finished_stages_runs(tmp_path):
    for model in ("bm25", "dpr", "mva", "cross_encoder"):
        overrides = ["experiment=mva_multipass_stages", f"model={model}", *SMALL[1:]]
        overrides += [*NO_ANALYSIS, *TINY]
        config = compose_config("train", *overrides, f"output={tmp_path}", f"name={model}-seed1")
        train(OmegaConf.merge(config, {"trainer": {"max_steps": 2}, "data": SMALLER}))
    config = compose_config(
        "train", "experiment=mva_multipass", *SMALL[1:], f"output={tmp_path}", "name=run"
    )
    metrics = train(OmegaConf.merge(config, {"data": SMALLER})).metrics
    assert metrics["cost/joint_flops"] > 0 and "retrieve/mrr@10" in metrics


def test_a_finished_run_teaches_another(tmp_path):
    made = [*NO_ANALYSIS, *TINY, "data.train_questions=2"]
    teacher = ["model=cross_encoder", "model.depth=8", *made]
    train(small(tmp_path, *teacher, name="teacher"))
    asked = [f"weights={tmp_path}/teacher", "data.test_split=train", "data.max_test_queries=null"]
    scores = train(small(tmp_path, *teacher, *asked, name="scores"))
    ranking = scores.path / "retrieve.trec"
    taught = ["negatives=run", f"data.examples.negatives.teacher={scores.path}"]
    taught += ["model.loss._target_=gr_mvdr.losses.KLDistillation"]
    student = train(small(tmp_path, "model=t5_colbert", *made, *taught, name="student"))
    assert str(ranking) in student.provenance["training_sources"]
    assert "retrieve/mrr@10" in student.metrics


class Interrupt(pl.Callback):
    """What Ctrl-C does, in the middle of an epoch."""

    def __init__(self, epoch: int):
        self.epoch = epoch

    def on_train_batch_end(self, trainer, *_):
        if trainer.current_epoch == self.epoch and trainer.fit_loop.batch_idx == 0:
            raise KeyboardInterrupt


def interrupted(monkeypatch, config, epoch: int):
    """A run that is interrupted in an epoch."""

    def with_interrupt(node, **arguments):
        built = instantiate(node, **arguments)
        if isinstance(built, pl.Trainer):
            built.callbacks.append(Interrupt(epoch))
        return built

    monkeypatch.setattr(train_module, "instantiate", with_interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    monkeypatch.undo()


# The last epoch, in which the run is interrupted. NP decoding's tables are made again before it,
# and in the same state only if the checkpoint holds them: two epochs later, for "async".
@pytest.mark.parametrize(
    ("model", "last", "keys"),
    [
        ("t5_colbert", 1, []),
        ("dsi_pawa", 1, ["ranking=preference"]),  # its frozen copy is of the beginning
        ("genre_np_async", 3, ["model.head.rebuild_every=2"]),
        ("genre_np_contrastive", 2, ["model.head.contrastive_epochs=1"]),
    ],
)
def test_an_interrupted_run_resumes_to_the_same_metrics(
    model, last, keys, tmp_path, monkeypatch, capsys
):
    keys = [
        "trainer.max_steps=-1",
        f"trainer.max_epochs={last + 1}",
        "backbone.dropout_rate=0.1",
        "data.train_questions=2",
        "data.max_test_queries=5",
        *NO_ANALYSIS,
        *TINY,
        f"model={model}",
        *keys,
    ]
    cache = datasets.config.HF_DATASETS_CACHE
    whole = train(small(tmp_path, *keys, name="whole")).metrics
    interrupted(monkeypatch, small(tmp_path, *keys, name="part"), last)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    part = tmp_path / "part"
    assert (part / "checkpoints/last.ckpt").is_file() and not (part / "metrics.json").exists()
    resumed = train(small(tmp_path, *keys, "resume=true", name="part")).metrics
    whole_curve, part_curve = read_curve(tmp_path / "whole"), read_curve(part)
    before = len(part_curve["step"]) * last // (last + 1)
    where = (
        f"resume: training goes on from the checkpoint of step {before}, the end of epoch {last}"
    )
    assert capsys.readouterr().out.count(where) == 1
    for key, value in whole.items():
        if not key.startswith("cost"):
            assert resumed[key] == pytest.approx(value, abs=1e-6), key
    assert_frame_equal(part_curve, whole_curve, rtol=1e-3)


def test_a_run_that_is_interrupted_in_its_search_goes_on_without_training(
    tmp_path, monkeypatch, capsys
):
    """And what training held is freed before the search: Adam and gradients are three models."""
    keys = ["model=t5_colbert", "data.test_split=[test,test_unseen]", *NO_ANALYSIS, *TINY]
    keys += ["data.validation_split=null"]  # which searches, too
    whole = train(small(tmp_path, *keys, name="whole")).metrics
    configure, retrieve, held = MultiVector.configure_optimizers, MultiVector.retrieve, []

    def watched(self):
        made = configure(self)
        held.append(weakref.ref(made["optimizer"]))
        return made

    def interrupted(self, queries, *arguments, **options):
        gc.collect()
        assert held[0]() is None and not any(p.grad is not None for p in self.parameters())
        held.append(weakref.ref(self))
        if (tmp_path / "part/retrieve.trec").exists():
            raise KeyboardInterrupt
        return retrieve(self, queries, *arguments, **options)

    monkeypatch.setattr(MultiVector, "configure_optimizers", watched)
    monkeypatch.setattr(MultiVector, "retrieve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(small(tmp_path, *keys, name="part"))
    monkeypatch.undo()
    gc.collect()
    assert len(held) == 3 and not any(one() for one in held), "a sweep would hold every model"
    capsys.readouterr()
    resumed = train(small(tmp_path, *keys, "resume=true", name="part")).metrics
    assert "resume: training is finished (checkpoint of step 2)" in capsys.readouterr().out
    for key, value in whole.items():
        if not key.startswith("cost"):
            assert resumed[key] == pytest.approx(value, abs=1e-6), key


@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        ("conf.command.import_module", signal.SIGINT),
        ("models.bm25.BM25.index", signal.SIGTERM),
        ("analysis.compare.compare", signal.SIGINT),
    ],
)
def test_a_signal_outside_training_ends_a_sweep_with_one_line(
    stage, kind, tmp_path, monkeypatch, cache
):
    keys = ["train.py", "model=bm25", "data=beir", f"data.path={beir(tmp_path / 'fruit')}"]
    keys += ["hydra.mode=MULTIRUN", "seed=1,2", "logger=none", f"output={tmp_path}/runs"]
    with monkeypatch.context() as patch:
        patch.setattr(stage, lambda *_, **__: signal.raise_signal(kind))
        line = "interrupted: run the same command with resume=true to continue"
        assert command(*keys, *NO_ANALYSIS) == line
    assert command(*keys, *NO_ANALYSIS, "resume=true") == 0


@pytest.mark.parametrize("key", ["trainer.callbacks=[]", "+trainer.fast_dev_run=true"])
def test_a_trained_run_opens_again_whatever_the_callbacks_keep(key, tmp_path, capsys):
    keys = ["model=t5_colbert", *NO_ANALYSIS, *TINY, key]
    run = train(small(tmp_path, *keys))
    ranking = Ranking.read(run.path / "retrieve.trec")
    opened = Retriever.load(run)
    query = next(iter(opened.data.evaluation.test_queries("test")))
    found = {hit.id: hit.score for hit in opened.search(query["text"])}
    assert found == {name: pytest.approx(ranking.scores(query["id"])[name]) for name in found}
    (run.path / "metrics.json").unlink()
    capsys.readouterr()
    train(small(tmp_path, *keys, "resume=true"))
    assert "resume: training is finished" in capsys.readouterr().out
    (run.path / "metrics.json").unlink()
    build_word_tokenizer(["other words"]).save_pretrained(run.path / "tokenizer")
    with pytest.raises(ValueError, match="run=.*: cannot resume, its tokeniser is not the one"):
        train(small(tmp_path, *keys, "resume=true"))


def test_a_training_that_ends_before_its_first_step_is_no_run(tmp_path):
    keys = ["model=t5_colbert", *NO_ANALYSIS, *TINY, "+trainer.max_time=00:00:00:00"]
    with pytest.raises(ValueError, match="trainer: training ended before its first step"):
        train(small(tmp_path, *keys))


def test_lightning_refuses_its_keys_before_a_folder_is_made(tmp_path):
    keys = ["model=bm25", f"output={tmp_path}", "logger=none", "+trainer.limit_train_batches=-3"]
    assert "invalid value -3 for limit_train_batches" in command("train.py", *keys)
    assert not any(tmp_path.iterdir())
