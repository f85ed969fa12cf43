"""What every system can do: the verbs on which search, reranking and analysis are built."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.options import check_options, inspect_signature
from gr_mvdr.progress import track
from gr_mvdr.ranks import sum_over_ranks, world_size
from gr_mvdr.relevance import Explanation, PairAlignment, divide
from gr_mvdr.template import TextTemplate
from models.training import OptimizerOptions, make_optimizer, shard

Paradigm = Literal["multi_vector", "generative", "lexical", "cross_encoder", "pipeline"]

# A column table: table["id"], table["tokens"], len(table), table[i:j] -> dict of lists,
# table.select(rows) -> a table.
# A `datasets.Dataset` is one; the models need no more of it.
Table = Any
# Ids of the documents that a search can retrieve; None = all indexed documents.
Among = Sequence[str] | None
# Query id → ids of the documents that are ranked for it.
Candidates = Mapping[str, Sequence[str]]
_BATCH = 64  # pairs scored at once in reranking


class Share(NamedTuple):
    """What one part of a query or of an identifier adds to a document's score.

    Attributes:
        tokens: the part as token ids, or as a word of the text: a query token, the token of a
            docid, a generated n-gram.
        value: its part of the score.
        view: the view of the document whose search found the part, if documents have several.
        text: the tokens as they are written, from a `Retriever`.
    """

    tokens: tuple[int, ...] | str
    value: float
    view: str = ""
    text: str = ""


class System(pl.LightningModule):
    """A retrieval system: a LightningModule with the verbs of the house.

    A trainable system has a `loss`; `score` and `align` read given pairs; `index` and `retrieve`
    search; `rerank` orders given candidates.
    """

    paradigm: ClassVar[Paradigm]
    trainable: ClassVar[bool] = True
    # Whether its relevance is Eq. 1, so that it has an alignment.
    alignable: ClassVar[bool] = True
    # Whose tokens its decoder generates; None = it has no decoder.
    generates: ClassVar[Literal["document", "query"] | None] = None
    # To what a share of a search's score belongs, and what `score` measures.
    share_of: ClassVar[str] = "query token"
    score_is: ClassVar[str] = "Σ S·A / Z, Eq. 1"
    # What a search's scores need of the whole collection; "" = shards can be searched separately.
    scores_need: str = "all documents"
    # Whether `score` reads a document's text, also if the document is not indexed.
    scores_texts: bool = True
    # Whether its training loss compares a query's document with negatives.
    needs_negatives: bool = False
    # Whether every rank calls `index` and writes its own shards of it; otherwise rank 0 calls it.
    indexes_in_shards: bool = False
    # What `retrieve` reads of the indexed documents, in systems that search vectors or terms.
    searcher: Any = None
    # Number of token ids, if larger than the tokeniser's vocabulary.
    vocabulary_size: int = 0
    # Whether a search has options that `plan_search` chooses.
    plans_search: bool = False
    # Special tokens around the texts that it reads: its backbone's.
    template = TextTemplate()
    # Parameters without weight decay.
    without_decay: Sequence[Tensor] = ()

    def __init__(self, optimizer: OptimizerOptions | None = None):
        """
        Args:
            optimizer: the options of `make_optimizer`; None = nothing is trained.

        Raises:
            ValueError: an unknown option, or one out of its range.
        """
        super().__init__()
        if optimizer is not None:
            signature = inspect_signature(make_optimizer)
            check_options("model.optimizer", signature, optimizer, given=["system"])

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Makes what training needs of the collection: identifiers, output tables.

        Args:
            documents: a column table with `id`, `title_tokens`, `text` and `tokens`.
            known: rows of the documents that exist during training; `index` adds the others.
            directory: where identifiers are kept.
        """

    def covers(self, document: int) -> bool:
        """Whether a search can retrieve the document of that row; it may lack an atomic docid."""
        return True

    # Training -------------------------------------------------------------------------------------

    def loss(self, batch: PairBatch) -> Tensor:
        """() the system's own training loss on this rank's part of a batch.

        Its mean over ranks, gradients included, is the loss of the whole batch
        (`gr_mvdr.ranks`).
        """
        raise NotImplementedError

    def training_step(self, batch: PairBatch) -> Tensor:
        """() the loss."""
        loss = self.loss(batch)
        mean = sum_over_ranks(loss) / world_size()
        self.log("train/loss", mean, batch_size=len(batch))
        return loss

    def validation_step(self, batch: PairBatch) -> None:
        """Logs the mean loss over ranks, weighted by the size of all ranks' batches."""
        size = int(sum_over_ranks(torch.tensor(len(batch), device=self.device)))
        mean = sum_over_ranks(self.loss(batch)) / world_size()
        self.log("validation/loss", mean, batch_size=size, sync_dist=True)

    def configure_optimizers(self) -> Any:
        """AdamW under the schedule of `model.optimizer`."""
        return make_optimizer(self, **self.hparams.optimizer)

    def configure_model(self) -> None:
        """Shards the parameters where the trainer's strategy asks for it."""
        if self.device_mesh is not None:
            shard(self, self.device_mesh["data_parallel"])

    # Given pairs ----------------------------------------------------------------------------------

    def cut_query(self, tokens: Sequence[int]) -> list[int]:
        """The tokens of a query that the system reads, special tokens included."""
        return self.template.read_query(tokens, _longest(self, "query", tokens))

    def cut_document(self, tokens: Sequence[int]) -> list[int]:
        """The tokens of a document that the system reads, special tokens included."""
        return self.template.read_document(tokens, _longest(self, "document", tokens))

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) fp32, what the system ranks the pair (query b, document b) by."""
        raise NotImplementedError

    def align(self, batch: PairBatch) -> PairAlignment:
        """The tensors of the pairs' equation (Eq. 1).

        Raises:
            NotImplementedError: the system's relevance is no sum over token pairs.
        """
        kind = self.paradigm.replace("_", "-")
        raise NotImplementedError(f"a {kind} has no alignment: its relevance is not Eq. 1")

    def explain(self, batch: PairBatch) -> Explanation:
        """All alignments that the system has for the pairs, and the other terms of their scores."""
        return Explanation([self.align(batch)])

    def shares(self, batch: PairBatch) -> list[list[Share]]:
        """The parts of each pair's `score`: by default what each query token adds (Eq. 1)."""
        return query_shares(self.align(batch))

    # Search ---------------------------------------------------------------------------------------

    def index(self, documents: Table, directory: str | Path | None = None) -> None:
        """Builds what `retrieve` searches.

        Args:
            documents: a column table with `id`, `text` and `tokens`.
            directory: where the index is kept; None = a temporary folder.
        """
        raise NotImplementedError

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """Opens the index that `index` wrote for the same documents.

        Raises:
            FileNotFoundError: the folder holds no index.
            ValueError: another model or collection made it, or it is damaged.
        """
        raise NotImplementedError

    def update_index(self, documents: Table) -> None:
        """Replaces the indexed documents; some of the new ones may be indexed already."""
        self.index(documents)

    @torch.inference_mode()
    def retrieve(
        self,
        queries: Table,
        k: int = 100,
        among: Among = None,
        with_shares: bool = False,
        **search: Any,
    ) -> Ranking:
        """The k best documents of each query, end to end.

        Args:
            queries: a column table with `id`, `text` and `tokens`.
            k: documents a query.
            among: ids of the documents that can be retrieved; None = all indexed documents.
            with_shares: whether the ranking's `shares` hold the parts of each score, which sum to
                it: query id → document id → shares.
            search: options of this search in place of the system's own: of `SearchOptions`, or
                `beam_size` and `plan_weight`.

        Raises:
            ValueError: an id of `among` is not an indexed document's.
        """
        self.eval()
        return self._retrieve(queries, k, among, with_shares, **search)

    def _retrieve(self, queries: Table, k: int, among: Among, with_shares: bool) -> Ranking:
        """The system's own search, in evaluation mode; see `retrieve`."""
        raise NotImplementedError

    @torch.inference_mode()
    def rerank(
        self, queries: Table, documents: Table, candidates: Candidates, **form: Any
    ) -> Ranking:
        """Orders given candidates, here by `score`, pairs of similar length in a batch.

        Args:
            queries, documents: column tables with `id`, `text` and `tokens`.
            candidates: query id → document ids.
            form: the form's options, from the model's config (`rerank.<form>`).
        """
        self.eval()
        scores = self.read_pairs(queries, documents, candidates, lambda b: self.score(b).tolist())
        return Ranking(scores)

    def read_pairs(
        self,
        queries: Table,
        documents: Table,
        candidates: Candidates,
        read: Callable[[PairBatch], list],
    ) -> dict[str, dict[str, Any]]:
        """Query id → document id → what `read` makes of the pair, such as its score.

        Args:
            queries, documents, candidates: see `rerank`.
            read: a value for each pair of a batch; the pairs of a batch are of similar length.
        """
        names, needed = documents["id"][:], set().union(*candidates.values())
        rows = [row for row, name in enumerate(names) if name in needed]
        tokens = documents[rows]["tokens"] if rows else []
        texts = {names[row]: self.cut_document(t) for row, t in zip(rows, tokens, strict=True)}
        asked = zip(queries["id"][:], map(self.cut_query, queries["tokens"][:]), strict=True)
        pairs = [(query, own, name) for query, own in asked for name in candidates[query]]
        pairs.sort(key=lambda pair: len(pair[1]) + len(texts[pair[2]]))
        results: dict[str, dict[str, Any]] = {query: {} for query in queries["id"][:]}
        for start in track(range(0, len(pairs), _BATCH), "reranking"):
            chosen = pairs[start : start + _BATCH]
            sides = [own for _, own, _ in chosen], [texts[name] for *_, name in chosen]
            values = read(pad_pairs(self, *sides))
            for (query, _, name), value in zip(chosen, values, strict=True):
                results[query][name] = value
        return results

    # Costs ----------------------------------------------------------------------------------------

    def joint_flops(self, query_tokens: int, document_tokens: int) -> float:
        """Operations that need both texts of one pair: the joint compute of mva Table 5.

        Args:
            query_tokens, document_tokens: of the whole texts, end tokens included; the system
                reads as many of them as its limits allow.

        Returns:
            As counted in `gr_mvdr.token_index.costs`; nan = unknown.
        """
        return nan

    def search_fidelity(self, queries: Table, ranking: Ranking, depth: int) -> dict[str, float]:
        """Flat metrics of an approximate search: its costs, and its recall of the exact search.

        Args:
            queries, ranking: the queries and what `retrieve` returned for them.
            depth: documents a query.
        """
        return {}

    def statistics(self) -> dict[str, float]:
        """Further flat metrics of an indexed system, "analysis/…" or "cost/…"."""
        return {}


def query_shares(pairs: PairAlignment) -> list[list[Share]]:
    """What each real query token adds to the relevance of B pairs, Σ_hi S A / Z (Eq. 1)."""
    added = divide((pairs.similarity * pairs.alignment).sum((1, 2)), pairs.normaliser[:, None])
    return token_shares(pairs.query_ids, added, pairs.query_mask)


def token_shares(ids: Tensor, values: Tensor, mask: Tensor) -> list[list[Share]]:
    """The values (B, L) of real tokens as shares, text by text."""
    rows = zip(ids, values, mask, strict=True)
    return [
        [Share((t,), v) for t, v in zip(own[m].tolist(), row[m].tolist(), strict=True)]
        for own, row, m in rows
    ]


def _longest(system: System, side: str, tokens: Sequence[int]) -> int:
    return system.hparams.get(f"{side}_length") or len(tokens) + system.template.least


def pad_pairs(
    system: System,
    queries: Sequence[list[int]],
    documents: Sequence[list[int]],
    numbers: Sequence[int] | None = None,
) -> PairBatch:
    """Pairs of texts, as the system cuts them, on its device; numbers: the documents' or −1."""
    index = torch.tensor([-1] * len(queries) if numbers is None else numbers)
    return PairBatch(*pad(queries), *pad(documents), index).to(system.device)


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
