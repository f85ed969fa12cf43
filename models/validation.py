"""Validation: searches the validation split while a system trains, and keeps the best step."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.seed import isolate_rng

from gr_mvdr.evaluation.metrics import name_metric
from gr_mvdr.evaluation.ranking import Ranking, evaluate_queries
from gr_mvdr.progress import timed
from gr_mvdr.ranks import gather_rows, rank, slice_for_rank, wait, world_size

METRICS = ("mrr@10", "ndcg@10", "recall@100")
_DEPTH = 100  # documents of a ranking


class Validation(pl.Callback):
    """Searches with a `System` during its training, and keeps the weights of the best step.

    It logs `validation/METRIC`, or `validation/pool_METRIC` where it searches a pool: fewer
    documents compete there than in a search of all.

    Args:
        data: the data module; without a validation split nothing is searched, and the last step is
            kept.
        folder: the folder of the run's checkpoints, which also holds the best step's weights.
    """

    def __init__(self, data: Any, folder: Path):
        self.data, self.options, self.folder = data, data.validation, folder
        self.metric = name_metric(self.options.metric)
        self.chosen: Any = None  # a `ValidationSet`; None = nothing is searched
        self.steps: int | None = None  # between two validations; None = at ends of epochs alone
        self.history: list[tuple[int, float]] = []  # each validation's step and metric
        self.seconds = 0.0
        self.resumable: list[int] = []  # the best steps of the last two checkpoints
        self.index: dict[str, Any] = {}  # what indexing sets in a system of which it stays the same

    @property
    def best(self) -> int:
        """The step with the highest metric; ties go to the earlier."""
        return max(self.history, key=lambda one: (one[1], -one[0]))[0]

    @property
    def kept(self) -> Path | None:
        """The file of the best step's weights; None = the last step is kept."""
        if not self.history or self.options.keep == "last" or self.best == self.history[-1][0]:
            return None
        return self._file(self.best)

    def _file(self, step: int) -> Path:
        return self.folder / f"step-{step}.ckpt"

    # When -----------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: pl.Trainer, model: Any) -> None:
        if self.data.validation_split is None or model.generates == "query":
            return
        chosen = self.data.evaluation.choose_validation(**_reading(model)) if rank() == 0 else None
        self.chosen = trainer.strategy.broadcast(chosen)
        self.loader = self.data.validation_loader(self.chosen.queries)
        if rank() == 0:
            print(f"validation: {self.chosen.describe(self.data)}")

    def on_train_start(self, trainer: pl.Trainer, model: Any) -> None:
        if self.chosen is None:
            return
        self.steps = self.options.every if isinstance(self.options.every, int) else None
        if self.steps is None and self.chosen.epochs < 1:
            steps = trainer.num_training_batches / trainer.accumulate_grad_batches
            self.steps = max(1, round(self.chosen.epochs * steps))
        self._lose_patience(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, model: Any, *_: Any) -> None:
        step = trainer.global_step  # 0 until the batches of the first step are accumulated
        if self.chosen and self.steps and step and step % self.steps == 0:
            self.validate(trainer, model)

    def on_train_epoch_end(self, trainer: pl.Trainer, model: Any) -> None:
        if self.chosen is None:
            return
        is_due = not self.steps and (trainer.current_epoch + 1) % round(self.chosen.epochs) == 0
        # Not `fit_loop.done`: asking it counts the epoch as ended.
        is_last = trainer.should_stop or trainer.global_step >= trainer.estimated_stepping_batches
        if is_due or is_last:
            self.validate(trainer, model)

    def _lose_patience(self, trainer: pl.Trainer) -> None:
        """Stops the training if the last validations found nothing better."""
        steps = [step for step, _ in self.history]
        if self.options.patience and steps:
            trainer.should_stop |= len(steps) - 1 - steps.index(self.best) >= self.options.patience

    # What -----------------------------------------------------------------------------------------

    @timed("validation")
    def validate(self, trainer: pl.Trainer, model: Any) -> None:
        """Measures the system at this step, once; saves its weights if it is the best so far."""
        step = trainer.global_step
        if self.history and self.history[-1][0] == step:
            return
        start = time.perf_counter()
        training = model.training
        model.eval()
        with isolate_rng():  # the training draws what it would without validation
            values = self.measure(model)
            values["validation/loss"] = self._loss(trainer, model)
        model.train(training)
        self.history.append((step, values[self._key(self.metric)]))
        for logger in trainer.loggers:
            logger.log_metrics(values, step - 1)  # counted from 0, as Lightning does
        model.log(self.metric, self.history[-1][1], prog_bar=True, logger=False)
        if self.options.keep == "best" and self.best == step:
            trainer.save_checkpoint(self._file(step), weights_only=True)
        self._lose_patience(trainer)
        self.seconds += time.perf_counter() - start

    def measure(self, model: Any) -> dict[str, float]:
        """Searches and returns the means over queries; the system is left as it was.

        Each rank searches its share of the queries.
        """
        queries = self.chosen.queries
        # With sharded parameters, all ranks encode together.
        share = slice(None) if model.device_mesh else slice_for_rank(len(queries))
        own = queries.select(range(len(queries))[share])
        with self._indexed(model), torch.inference_mode():
            ranking = self._search(model, own) if len(own) else Ranking({})
        names = [*dict.fromkeys((*METRICS, self.metric))]
        qrels = self.data.evaluation.judgements(self.data.validation_split, own)
        level = self.data.relevance_level or 1
        rows = evaluate_queries(ranking, qrels, names, level).values() if qrels else ()
        found = torch.tensor([[row[name] for name in names] for row in rows], dtype=torch.float64)
        means = gather_rows(found.view(-1, len(names))).mean(0).tolist()
        return dict(zip(map(self._key, names), means, strict=True))

    def _key(self, metric: str) -> str:
        return f"validation/{'pool_' * (self.chosen.documents is not None)}{metric}"

    def _search(self, model: Any, queries: Any) -> Ranking:
        if (candidates := self.chosen.candidates) is not None:
            return model.rerank(queries, self.data.documents, candidates)
        return model.retrieve(queries, _DEPTH + self.data.drop_identical)

    @contextmanager
    def _indexed(self, model: Any) -> Iterator[None]:
        """Lets a system search the chosen documents within the block."""
        before, folder = dict(vars(model)), self.folder / "validation"
        is_shared = model.indexes_in_shards and world_size() > 1
        try:
            model.on_validation_start()
            if self.index:
                vars(model).update(self.index)
            elif self.chosen.candidates is None:
                model.index(self.chosen.table(self.data), folder if is_shared else None)
            if model.generates:  # its names do not depend on the weights
                self.index = {k: v for k, v in vars(model).items() if before.get(k) is not v}
            yield
        finally:
            vars(model).clear()
            vars(model).update(before)
            wait()
            if is_shared and rank() == 0:
                shutil.rmtree(folder)

    def _loss(self, trainer: pl.Trainer, model: Any) -> float:
        sums = torch.zeros(2)
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            for batch in self.loader:
                sums += model.validation_loss(batch.to(model.device)).cpu()
        return float(sums[0] / sums[1])

    # Checkpoints ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Removes the weights that no checkpoint names any more; this one is not written yet."""
        self.resumable = [*self.resumable[-1:], *([self.best] if self.history else [])]
        self._remove_all_but(self.resumable)
        return {"history": self.history, "seconds": self.seconds}

    def _remove_all_but(self, steps: list[int]) -> None:
        if rank() == 0:
            for file in {*self.folder.glob("step-*.ckpt")} - {*map(self._file, steps)}:
                file.unlink()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = [(step, value) for step, value in state_dict["history"]]
        self.seconds = state_dict["seconds"]
        self.resumable = [self.best] if self.history else []

    def finish(self) -> None:
        """Removes the weights that are not kept, and says which step is kept and why."""
        self._remove_all_but([self.best] if self.kept else [])
        if self.history and rank() == 0:
            print(self.verdict)

    @property
    def verdict(self) -> str:
        """Which step is kept, and why."""
        last, count = self.history[-1][0], len(self.history)
        step, why = self.best, f"the best of {count} validations"
        if self.options.keep == "last" and step != last:
            step, why = last, f"the best is {step:,}"
        elif step == last and count > 1:
            why += " and the last: a longer training may find more"
        value = dict(self.history)[step]
        return f"kept step {step:,} of {last:,}: {self._key(self.metric)} {value:.3f}, {why}"


def _reading(model: Any) -> dict[str, Any]:
    """Returns what a system's search and training read: arguments of `choose_validation`."""
    if model.generates:
        return {"reads": "queries", "decoded": model.hparams.beam_size * model.search_length}
    if model.paradigm == "cross_encoder":
        return {"reads": "pairs", "negatives": model.hparams.negatives_per_query}
    return {"reads": "documents"}
