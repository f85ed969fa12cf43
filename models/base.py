"""What every system can do: the verbs on which search, reranking and analysis are built."""

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins import Precision
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from transformers import PreTrainedModel

from gr_mvdr.batch import PairBatch
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.ranks import rank, sum_over_ranks, world_size
from gr_mvdr.relevance import Explanation, Factors, PairAlignment, divide
from gr_mvdr.template import TextTemplate
from models.training import GRADIENT, Watch, check_weights

Paradigm = Literal["multi_vector", "generative", "lexical", "cross_encoder", "pipeline"]

# A column table: table["id"], table["tokens"], len(table), table[i:j] -> dict of lists,
# table.select(rows) -> a table.
# A `datasets.Dataset` is one; the models need no more of it.
Table = Any

SCHEDULES = ("constant", "one_cycle")


class Share(NamedTuple):
    """What one part of a query or of an identifier adds to a document's score.

    Attributes:
        tokens: the part, as token ids, or as a word of the text: a query token, the token of a
            docid, an n-gram that was generated.
        value: its part of the score.
        view: of a document with several views, the one whose search found the part.
    """

    tokens: tuple[int, ...] | str
    value: float
    view: str = ""


# Query id → document id → the parts of the document's score.
Shares = dict[str, dict[str, list[Share]]]


class System(pl.LightningModule):
    """A retrieval system: a LightningModule with the verbs of the house.

    `training_step` gives its own loss; `score` and `align` look at given pairs; `index` and
    `retrieve` search; `rerank` orders given candidates.
    """

    paradigm: ClassVar[Paradigm]
    trainable: ClassVar[bool] = True
    # Whether its relevance is Eq. 1, so that `align` has something to show.
    alignable: ClassVar[bool] = True
    # What a search's score is split into (`retrieve_with_shares`), and what `score` is of a pair.
    share_of: ClassVar[str] = "query token"
    score_is: ClassVar[str] = "Σ S·A / Z, Eq. 1"
    # What of all documents a search's scores need; with "" parts of a corpus can be searched apart.
    scores_need: str = "all documents"
    # Whether `score` reads a document's text, also of one that is not indexed.
    scores_texts: bool = True
    # Whether its training loss compares a query's document with others, its negatives.
    needs_negatives: bool = False
    # Token ids may go beyond the tokeniser's, up to here.
    vocabulary_size: int = 0
    # What is around the texts that it reads: its backbone's.
    template = TextTemplate()

    def __init__(self, optimizer: dict[str, Any] | None = None):
        """
        Args:
            optimizer: `learning_rate`, `weight_decay` and `schedule` of AdamW. "constant" is the
                paper's schedule; "one_cycle" rises to the learning rate for 30 % of the steps and
                falls to zero, which a model without pretraining needs.

        Raises:
            ValueError: an unknown schedule.
        """
        super().__init__()
        self.train_seconds, self._started = 0.0, time.perf_counter()
        self.saved_step = 0  # of the last checkpoint
        self.watch = Watch()
        if optimizer and optimizer["schedule"] not in SCHEDULES:
            raise ValueError(
                f"model.optimizer.schedule={optimizer['schedule']}: "
                f"must be {' or '.join(SCHEDULES)}"
            )

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """What must be known of the corpus before training: identifiers, output tables.

        Args:
            documents: a column table with `id`, `title_tokens`, `text` and `tokens`.
            known: rows of the documents that are there in training; the others arrive with `index`.
            directory: where identifiers are kept.
        """

    def warnings(self) -> list[str]:
        """What a person should know before they wait for the training, a line each."""
        return []

    def covers(self, document: int) -> bool:
        """Whether the document of that number can be found: an atomic docid may be missing."""
        return True

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) fp32, what the system ranks the pair (query b, document b) by."""
        raise NotImplementedError

    def align(self, batch: PairBatch) -> PairAlignment:
        """The tensors of the pairs' equation (Eq. 1)."""
        raise NotImplementedError

    def explain(self, batch: PairBatch) -> Explanation:
        """All alignments that the system has for the pairs, and what else makes their scores."""
        return Explanation([self.align(batch)])

    def factors(self, batch: PairBatch) -> Factors | None:
        """The vectors behind S and A; None where they are not made of vectors."""
        return None

    def index(self, documents: Table, directory: str | Path | None = None) -> Any:
        """Builds what `retrieve` searches.

        Args:
            documents: a column table with `id`, `text` and `tokens`.
            directory: where the index is kept; None = a temporary folder.
        """
        raise NotImplementedError

    def open_index(self, documents: Table, directory: str | Path) -> Any:
        """Opens what `index` wrote for these very documents, without making it again.

        Raises:
            FileNotFoundError: there is none.
            ValueError: another model or collection made it, or it is damaged.
        """
        raise NotImplementedError

    def update_index(self, documents: Table) -> None:
        """Makes the index one of these documents, of which it may hold some already."""
        self.index(documents)

    def help_index(self, documents: Table) -> None:
        """What all ranks but the first do while that one calls `index`."""

    def retrieve(self, queries: Table, k: int = 100) -> Ranking:
        """The k best documents of each query, end to end.

        Args:
            queries: a column table with `id`, `text` and `tokens`.
            k: documents a query.
        """
        raise NotImplementedError

    def retrieve_with_shares(
        self, queries: Table, k: int = 100, among: Sequence[str] | None = None
    ) -> tuple[Ranking, Shares]:
        """`retrieve`, and what makes the score of each document that it finds.

        Args:
            queries, k: see `retrieve`.
            among: ids of the documents that can be found; None = all that are indexed.

        Returns:
            The ranking, and of each of its documents the shares, which sum to its score.
        """
        raise NotImplementedError

    def shares(self, batch: PairBatch) -> list[list[Share]]:
        """Of each given pair the parts of its `score`: here what each query token adds (Eq. 1)."""
        return query_shares(self.align(batch))

    def rerank(
        self, queries: Table, documents: Table, candidates: dict[str, Sequence[str]], **form: Any
    ) -> Ranking:
        """Orders given candidates by this system's relevance.

        Args:
            queries, documents: column tables with `id`, `text` and `tokens`.
            candidates: query id → document ids.
            form: the form's options, from the model's config (`rerank.<form>`).
        """
        raise NotImplementedError

    def joint_flops(self, query_tokens: int, document_tokens: int) -> float | None:
        """Operations that need both texts of one pair: the joint compute of mva.txt Table 5.

        Args:
            query_tokens, document_tokens: of the whole texts, end tokens included; the system
                reads as many of them as its limits allow.

        Returns:
            As counted in `gr_mvdr.token_index.costs`; None where nobody has counted them.
        """
        return None

    @property
    def plans_search(self) -> bool:
        """Whether `plan_search` has something to choose."""
        return False

    def plan_search(self, queries: Table, depth: int) -> None:
        """Chooses, after `index`, what the configuration leaves open of the search.

        Args:
            queries: a sample, some dozens; depth: documents a query.
        """

    def search_fidelity(self, queries: Table, ranking: Ranking, depth: int) -> dict[str, float]:
        """Flat metrics of an approximate search: what it costs, what it loses against the exact.

        Args:
            queries: that were retrieved; ranking: what `retrieve` found; depth: documents a query
                that it was asked for.
        """
        return {}

    def statistics(self) -> dict[str, float]:
        """Further flat metrics of an indexed system, "analysis/…" or "cost/…"."""
        return {}

    def configure_model(self) -> None:
        """Cuts the parameters into shards where the trainer's strategy asks for it."""
        if self.device_mesh is not None:
            from models.training import shard

            shard(self, self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> Any:
        """AdamW under the schedule of `model.optimizer`."""
        settings = self.hparams.optimizer
        rate = settings["learning_rate"]
        groups = self.parameter_groups(settings["weight_decay"])
        optimizer = torch.optim.AdamW(groups, rate, fused=True)  # one pass over the parameters
        # Gradients are clipped before the step: a scaler of fp16 must not leave its factor in them.
        optimizer._step_supports_amp_scaling = False
        if settings["schedule"] == "constant":
            return optimizer
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, rate, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """The optimizer's groups: all parameters under one weight decay."""
        return [{"params": list(self.parameters()), "weight_decay": weight_decay}]

    def training_step(self, batch: PairBatch) -> Tensor:
        """() the loss. Nothing in a step waits for an accelerator (`Watch`)."""
        loss = self.loss(batch)
        mean = sum_over_ranks(loss) / world_size()
        self.log("train/loss", mean, prog_bar=True, batch_size=len(batch))
        self.watch.add(self, "loss", mean)
        return loss

    def validation_step(self, batch: PairBatch) -> None:
        """Logs the mean over ranks, which weighs as much as all ranks' batches."""
        size = int(sum_over_ranks(torch.tensor(len(batch), device=self.device)))
        mean = sum_over_ranks(self.loss(batch)) / world_size()
        self.log("validation/loss", mean, prog_bar=True, batch_size=size, sync_dist=True)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Lightning's clipping, which does not tell the norm that it finds: logged, clipped or not.

        Before it the gradients of all ranks are one, and an fp16 scaler's factor is taken out.
        """
        # As a tensor of the CPU: Lightning would copy a number to the accelerator, and wait.
        self.log("train/learning_rate", torch.tensor(optimizer.param_groups[0]["lr"]))
        plugin = self.trainer.precision_plugin
        if type(plugin).clip_grad_by_norm is not Precision.clip_grad_by_norm:
            # A strategy whose parameters are flat shards: it knows no norm of all of them.
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return
        parameters = list(plugin.main_params(optimizer))
        found = get_total_norm([p.grad for p in parameters if p.grad is not None])
        norm = found.full_tensor() if hasattr(found, "full_tensor") else found  # of shards
        self.log("train/gradient_norm", norm)
        self.watch.add(self, GRADIENT, norm, getattr(plugin, "scaler", None))
        if gradient_clip_val and gradient_clip_algorithm != "value":
            clip_grads_with_norm_(parameters, gradient_clip_val, found)
        else:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def loss(self, batch: PairBatch) -> Tensor:
        """() the system's own training loss on this rank's part of a batch.

        Its mean over ranks, gradients included, is the loss of the whole batch
        (`gr_mvdr.ranks`).
        """
        raise NotImplementedError

    def on_train_batch_start(self, batch: PairBatch, batch_index: int) -> None:
        # Dropout depends on these alone: a resumed run draws what an unbroken one does, and the
        # parts of one step (accumulated, or of several ranks) draw each their own.
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        torch.manual_seed(hash((seed, self.global_step, batch_index, rank())))

    def on_train_start(self) -> None:
        self._started = time.perf_counter() - self.train_seconds

    def on_train_epoch_end(self) -> None:
        self.watch.end_epoch(self)

    def on_train_end(self) -> None:
        self.watch.look(self)
        self.train_seconds = time.perf_counter() - self._started

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.watch.look(self)
        check_weights(self, checkpoint["state_dict"])
        self.saved_step = self.global_step
        # A resumed run reports what all of its parts took.
        checkpoint["train_seconds"] = time.perf_counter() - self._started

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.train_seconds = checkpoint.get("train_seconds", 0.0)
        self.saved_step = checkpoint.get("global_step", 0)


def query_shares(pairs: PairAlignment) -> list[list[Share]]:
    """What each real query token adds to the relevance of B pairs, Σ_hi S A / Z (Eq. 1)."""
    added = divide((pairs.similarity * pairs.alignment).sum((1, 2)), pairs.normaliser[:, None])
    rows = zip(pairs.query_ids, added, pairs.query_mask, strict=True)
    return [
        [Share((t,), v) for t, v in zip(ids[mask].tolist(), row[mask].tolist(), strict=True)]
        for ids, row, mask in rows
    ]


def find_backbone(system: System) -> tuple[str, PreTrainedModel]:
    """A trainable system's model of transformers, and its name there: "encoder.backbone"."""
    parts = system.named_modules()
    return next((name, part) for name, part in parts if isinstance(part, PreTrainedModel))


def hash_documents(documents: Table) -> str:
    """32 hexadecimal digits of the documents' ids and tokens, whatever their order."""
    total = 0
    for name, tokens in zip(documents["id"][:], documents["tokens"][:], strict=True):
        text = hashlib.sha256(f"{name} {list(tokens)}".encode()).digest()
        total += int.from_bytes(text[:16], "big")
    return f"{total % 2**128:032x}"
