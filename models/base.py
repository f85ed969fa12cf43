"""The base class of all systems: the methods that search, reranking and analysis build on."""

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
from gr_mvdr.fine_tuning import begin_training
from gr_mvdr.measures import Measured
from gr_mvdr.options import check_options, inspect_signature
from gr_mvdr.passages import Passages
from gr_mvdr.progress import track
from gr_mvdr.ranks import sum_over_ranks, world_size
from gr_mvdr.relevance import Explanation, PairAlignment, divide
from gr_mvdr.template import TextTemplate
from models.training import make_optimizer, shard

Paradigm = Literal["multi_vector", "generative", "lexical", "cross_encoder", "pipeline"]

# A column table: table["id"], table["tokens"], len(table), table[i:j] -> dict of lists,
# table.select(rows) -> a table.
# A `datasets.Dataset` is one; the models use nothing else of it.
Table = Any
# Ids of the documents that a search can retrieve; None = all indexed documents.
Among = Sequence[str] | None
# Query id → ids of the documents that are ranked for it.
Candidates = Mapping[str, Sequence[str]]
_BATCH = 64  # pairs scored at once in reranking


class Share(NamedTuple):
    """The contribution of one part, such as a query token or an n-gram, to a document's score.

    Attributes:
        tokens: the part (a query token, a docid token, a generated n-gram, …) as token ids, or as
            text.
        value: the part's contribution to the score.
        view: the view of the document whose search generated the part, if documents have several.
        text: the tokens as text, set by a `Retriever`.
    """

    tokens: tuple[int, ...] | str
    value: float
    view: str = ""
    text: str = ""


class System(pl.LightningModule):
    """A retrieval system: a LightningModule with one interface for all systems.

    `loss` trains a trainable system; `score` and `align` read given pairs; `index` prepares a
    search and `retrieve` runs it; `rerank` orders given candidates.
    """

    paradigm: ClassVar[Paradigm]
    trainable: ClassVar[bool] = True
    # Whether the system has an alignment in the sense of Eq. 1.
    alignable: ClassVar[bool] = True
    # The side whose tokens the system's decoder generates; None = the system has no decoder.
    generates: ClassVar[Literal["document", "query"] | None] = None
    # Names of the parts that the shares of a score belong to, and of the quantity `score`.
    share_of: ClassVar[str] = "query token"
    score_is: ClassVar[str] = "Σ S·A / Z, Eq. 1"
    # Whether `score` reads a document's text, so that the document need not be indexed.
    scores_texts: bool = True
    # Whether its training loss compares a query's document with negatives.
    needs_negatives: bool = False
    # Whether every rank calls `index` and writes its own shards; otherwise only rank 0 calls it.
    indexes_in_shards: bool = False
    # The index that `retrieve` reads, in systems that search vectors or terms.
    searcher: Any = None
    # The number of token ids, if larger than the tokeniser's vocabulary.
    vocabulary_size: int = 0
    # Whether `tune_search` chooses options of the search, and the judged split that it asks for.
    tunes_search: bool = False
    tuning_split: str | None = None
    # The special tokens around the texts that it reads, those of its backbone.
    template = TextTemplate()
    # Makes rankings of documents from those of the tables' rows, which may be passages.
    passages = Passages()

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Prepares training on a collection: identifiers, output tables, token statistics.

        Args:
            documents: a column table with `id`, `title_tokens`, `text` and `tokens`.
            known: rows of the documents that exist during training; `index` adds the others.
            directory: the folder that keeps the identifiers.
        """

    def covers(self, document: int) -> bool:
        """Returns whether a search can retrieve the document of this row (it may have no docid)."""
        return True

    def spell(self, tokens: Sequence[int]) -> str:
        """Spells docid tokens as `identifiers/docids.tsv` does; "" for all others."""
        return ""

    # Training -------------------------------------------------------------------------------------

    def loss(self, batch: PairBatch) -> Tensor:
        """Computes the training loss () on this rank's part of a batch.

        The mean over ranks, also of its gradients, is the loss of the whole batch
        (`gr_mvdr.ranks`).
        """
        raise NotImplementedError

    def training_step(self, batch: PairBatch) -> Tensor:
        """Returns the loss () and logs its mean over ranks."""
        loss = self.loss(batch)
        mean = sum_over_ranks(loss) / world_size()
        self.log("train/loss", mean, prog_bar=True, batch_size=len(batch))
        return loss

    def validation_loss(self, batch: PairBatch) -> Tensor:
        """Returns the loss of all ranks' pairs times their number, and their number (2,)."""
        size = sum_over_ranks(torch.tensor(len(batch), device=self.device))
        mean = sum_over_ranks(self.loss(batch)) / world_size()
        return torch.stack([mean * size, size])

    def configure_optimizers(self) -> Any:
        """Returns AdamW with the schedule of `model.optimizer`."""
        return make_optimizer(self, **self.hparams.optimizer)

    def configure_model(self) -> None:
        """Begins the backbone's training; shards parameters if the trainer's strategy requires."""
        backbone = find_backbone(self)[1]
        begin_training(backbone, **backbone.fine_tuning)
        if self.device_mesh is not None:
            shard(self, self.device_mesh["data_parallel"])

    # Given pairs ----------------------------------------------------------------------------------

    def cut_query(self, tokens: Sequence[int]) -> list[int]:
        """Truncates a query to the tokens that the system reads, special tokens included."""
        return self.template.read_query(tokens, _longest(self, "query", tokens))

    def cut_document(self, tokens: Sequence[int]) -> list[int]:
        """Truncates a document to the tokens that the system reads, special tokens included."""
        return self.template.read_document(tokens, _longest(self, "document", tokens))

    def score(self, batch: PairBatch) -> Tensor:
        """Computes (B,) fp32, the score of each pair (query b, document b) that ranks documents."""
        raise NotImplementedError

    def align(self, batch: PairBatch) -> PairAlignment:
        """Returns the tensors of Eq. 1 for each pair.

        Raises:
            NotImplementedError: the system's relevance is not a sum over token pairs.
        """
        kind = self.paradigm.replace("_", "-")
        raise NotImplementedError(f"a {kind} has no alignment: its relevance is not Eq. 1")

    def explain(self, batch: PairBatch) -> Explanation:
        """Returns all alignments of the pairs, and the other terms of their scores."""
        return Explanation([self.align(batch)])

    def shares(self, batch: PairBatch) -> list[list[Share]]:
        """Splits each pair's `score`; by default into what each query token adds (Eq. 1)."""
        return query_shares(self.align(batch))

    # Search ---------------------------------------------------------------------------------------

    def index(self, documents: Table, directory: str | Path | None = None) -> None:
        """Builds the index that `retrieve` searches.

        Args:
            documents: a column table with `id`, `text` and `tokens`.
            directory: the folder that keeps the index; None = the index is temporary.
        """
        raise NotImplementedError

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """Opens the index that `index` wrote for the same documents.

        Raises:
            FileNotFoundError: the folder holds no index.
            ValueError: the index belongs to another model or collection, or is damaged.
        """
        raise NotImplementedError

    def update_index(self, documents: Table) -> None:
        """Replaces the indexed documents by these, of which some may be indexed already."""
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
        """Retrieves the k best documents of each query from the whole index.

        Args:
            queries: a column table with `id`, `text` and `tokens`.
            k: the number of documents for each query.
            among: ids of the documents that can be retrieved; None = all indexed documents.
            with_shares: whether to fill the ranking's `shares`, the parts that sum to each score:
                query id → document id → shares.
            search: options that replace the system's own: `search`, a `SearchOptions`, or
                `beam_size` and `plan_weight`.

        Raises:
            ValueError: `among` holds an id that is not indexed.
        """
        self.eval()
        ids = queries["id"][:]

        def ask(names: list[str], depth: int, rows: Among) -> Ranking:
            chosen = {*names}
            some = [row for row, name in enumerate(ids) if name in chosen]
            asked = queries if len(some) == len(ids) else queries.select(some)
            return self._retrieve(asked, depth, rows, with_shares, **search)

        # A beam search is the same at every depth.
        return ranks_of(self).search(ids, k, ask, among, at_once=self.generates == "document")

    def _retrieve(self, queries: Table, k: int, among: Among, with_shares: bool) -> Ranking:
        """The system's own search of the tables' rows, in evaluation mode; see `retrieve`."""
        raise NotImplementedError

    @torch.inference_mode()
    def rerank(
        self, queries: Table, documents: Table, candidates: Candidates, **form: Any
    ) -> Ranking:
        """Orders given candidates.

        Args:
            queries, documents: column tables with `id`, `text` and `tokens`.
            candidates: query id → document ids.
            form: options of the system's own, those of `rerank.<form>` in the configuration.
        """
        self.eval()
        ranks = ranks_of(self)
        rows = {query: ranks.of(names) for query, names in candidates.items()}
        return ranks.rank(self._rerank(queries, documents, rows, **form))

    def _rerank(self, queries: Table, documents: Table, candidates: Candidates) -> Ranking:
        """Orders rows of the documents' table; here by `score`, batching pairs of similar length.

        A subclass may take further options, see `rerank`.
        """
        scores = read_pairs(self, queries, documents, candidates, lambda b: self.score(b).tolist())
        return Ranking(scores)

    def close(self) -> None:
        """Closes what an index holds open, such as a database; until then its folder is locked."""
        for part in self.modules():
            if isinstance(part, System) and part is not self:
                part.close()

    # Costs ----------------------------------------------------------------------------------------

    def joint_flops(self, query_tokens: int, document_tokens: int) -> float:
        """Counts the operations that need both texts of a pair, the joint compute of mva Table 5.

        Args:
            query_tokens, document_tokens: the lengths of the whole texts, end tokens included; the
                system reads as many of these tokens as its limits allow.

        Returns:
            FLOPs as counted in `gr_mvdr.token_index.search`; nan = unknown.
        """
        return nan

    def search_fidelity(self, queries: Table, ranking: Ranking, depth: int) -> list[Measured]:
        """Returns what a search costs, and its recall of the exact search.

        Args:
            queries, ranking: the queries, and the result of `retrieve` for them.
            depth: the number of documents for each query.
        """
        return []

    def statistics(self) -> list[Measured]:
        """Returns further numbers about an indexed system."""
        return []


def ranks_of(system: System) -> Passages:
    """Returns what makes a system's rankings; a pipeline's stages rank documents already."""
    return Passages() if system.paradigm == "pipeline" else system.passages


def read_pairs(
    system: System,
    queries: Table,
    documents: Table,
    candidates: Candidates,
    read: Callable[[PairBatch], list],
) -> dict[str, dict[str, Any]]:
    """Applies `read` to all pairs; returns query id → document id → value, such as a score.

    Args:
        queries, documents, candidates: see `System.rerank`.
        read: maps a batch of pairs of similar length to one value for each pair.
    """
    names, needed = documents["id"][:], set().union(*candidates.values())
    rows = [row for row, name in enumerate(names) if name in needed]
    tokens = documents[rows]["tokens"] if rows else []
    texts = {names[row]: system.cut_document(t) for row, t in zip(rows, tokens, strict=True)}
    query_texts = zip(queries["id"][:], map(system.cut_query, queries["tokens"][:]), strict=True)
    pairs = [(query, text, name) for query, text in query_texts for name in candidates[query]]
    pairs.sort(key=lambda pair: len(pair[1]) + len(texts[pair[2]]))
    results: dict[str, dict[str, Any]] = {query: {} for query in queries["id"][:]}
    for start in track(range(0, len(pairs), _BATCH), "reranking"):
        chosen = pairs[start : start + _BATCH]
        sides = [text for _, text, _ in chosen], [texts[name] for *_, name in chosen]
        values = read(pad_pairs(system, *sides))
        for (query, _, name), value in zip(chosen, values, strict=True):
            results[query][name] = value
    return results


def check_form(system: System, key: str, form: Mapping[str, Any]) -> None:
    """Raises ValueError, which names the key, unless `system.rerank` takes these options."""
    given = ("queries", "documents", "candidates")
    check_options(key, inspect_signature(system._rerank), form, given)


def query_shares(pairs: PairAlignment) -> list[list[Share]]:
    """Splits the relevance of B pairs into the sums Σ_hi S A / Z of real query tokens (Eq. 1)."""
    added = divide((pairs.similarity * pairs.alignment).sum((1, 2)), pairs.normaliser[:, None])
    return token_shares(pairs.query_ids, added, pairs.query_mask)


def token_shares(ids: Tensor, values: Tensor, mask: Tensor) -> list[list[Share]]:
    """Returns the values (B, L) of real tokens as shares, a list for each text."""
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
    """Pads pairs of truncated texts into a batch on the system's device.

    Args:
        numbers: the documents' rows, −1 = not indexed; None = all −1.
    """
    index = torch.tensor([-1] * len(queries) if numbers is None else numbers)
    return PairBatch(*pad(queries), *pad(documents), index).to(system.device)


def find_backbone(system: System) -> tuple[str, PreTrainedModel]:
    """Returns a trainable system's backbone and its module name, such as "encoder.backbone"."""
    parts = system.named_modules()
    return next((name, part) for name, part in parts if isinstance(part, PreTrainedModel))


def hash_documents(documents: Table) -> str:
    """Hashes the documents' ids and tokens, in any order, to 32 hexadecimal digits."""
    total = 0
    for name, tokens in zip(documents["id"][:], documents["tokens"][:], strict=True):
        text = hashlib.sha256(f"{name} {list(tokens)}".encode()).digest()
        total += int.from_bytes(text[:16], "big")
    return f"{total % 2**128:032x}"
