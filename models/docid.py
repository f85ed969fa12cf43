"""DSI, DSI-PAWA, GENRE and GENRE-NP: one identifier per document, generated under a trie.

A scheme (`gr_mvdr.identifiers`) makes the identifiers: new tokens, digits, paths in a cluster tree,
titles. A head (`gr_mvdr.heads`) is the output table. The systems of gr_as_mvdr Table 6 differ only
in their YAML. Identifiers are made before training, saved in the run's folder, and extended when
documents arrive later.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from gr_mvdr.backbones import add_tokens, check_length
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.decoding.decoding_step import score_tokens
from gr_mvdr.decoding.names import TrieNames
from gr_mvdr.decoding.trie import Trie
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.files import new_folder, temporary_folder, write_json, write_text
from gr_mvdr.heads.plain import Vocabulary
from gr_mvdr.identifiers.scheme import Identifiers, Scheme
from gr_mvdr.measures import IDENTIFIED, IDENTIFIERS, Measured, keep_finite
from gr_mvdr.options import NonNegative, Rate, Size, build, part
from models.base import Candidates, Table
from models.generative import DocumentGenerator
from models.training import OptimizerOptions

SAVED = "identifiers.safetensors"
_LOGITS = 2**28  # logits of a step when documents are scored: 1 GiB in fp32


@dataclass(frozen=True)
class DocidSearch:
    """The options of `model.search`.

    Attributes:
        plan: a part that guides the search (PAG), used if its `scores` are set.
    """

    plan: dict | None = None


@part("model")
class Docid(DocumentGenerator):
    """Generates the document's identifier token by token (DSI, GENRE; gr_as_mvdr §5.1, §7.3)."""

    share_of = "docid token"
    score_is = "log-probability of the docid"
    scores_texts = False

    scheme: Scheme
    identifiers: Identifiers | None = None

    def __init__(
        self,
        backbone: dict[str, Any],
        identifiers: dict[str, Any],
        query_length: Size,
        document_length: Size,
        beam_size: Size,
        optimizer: OptimizerOptions,
        head: dict[str, Any] | None = None,
        length_penalty: NonNegative = 0.0,
        label_smoothing: Rate = 0.0,
        decoder_layers: Size | None = None,
        search: Annotated[dict[str, Any], DocidSearch] | None = None,
        ranking: dict[str, Any] | None = None,
    ):
        """
        Args:
            backbone: arguments of `load_backbone`; its tables grow by the new tokens.
            identifiers: the scheme, `_target_` and options.
            query_length: tokens kept of a query, special tokens included.
            document_length: tokens kept of a document that is encoded (NP decoding's table).
            beam_size: hypotheses per query.
            optimizer, head, ranking: see `GenerativeSystem`.
            length_penalty: documents are ranked by log p / length^penalty (0.8 in NCI).
            label_smoothing: label smoothing of the training loss.
            decoder_layers: the depth of a new decoder; None = the backbone's decoder.
            search: options of `DocidSearch`.

        Raises:
            FileNotFoundError: the plan's run does not exist.
            ValueError: the plan's run is unfinished.
        """
        plan = DocidSearch(**(search or {})).plan or {}
        self.plan = build("plan", plan) if plan.get("scores") else None
        super().__init__(backbone, optimizer, head, decoder_layers, ranking)
        self.save_hyperparameters()
        check_length(self.backbone, query_length=query_length, document_length=document_length)
        self.scheme: Scheme = build("identifiers", identifiers)
        self.scheme.template = self.template

    # Identifiers: made before training, saved, extended -------------------------------------------

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Gives every known document its identifier, and the backbone rows for new tokens.

        Args:
            documents, known: see `System.prepare`.
            directory: the folder of the identifiers; if it exists, they are read from it.

        Raises:
            ValueError: the scheme cannot name the documents, or `directory` belongs to others.
        """
        ids, folder = documents["id"][:], Path(directory)
        first_token, scheme = self.backbone.config.vocab_size, self.scheme
        names = self.passages.name_by(ids)
        if kept := folder.is_dir():
            self.load_identifiers(folder, ids)
        else:
            named = [row for row in known if names[row] == ids[row]]
            scheme.fit(documents.select(named), first_token)
            self.identifiers = Identifiers(ids, [scheme.known.get(name, []) for name in names])
        if scheme.n_tokens:
            add_tokens(self.backbone, scheme.n_tokens)
            self.vocabulary_size = self.backbone.config.vocab_size
        new = range(first_token, first_token + scheme.n_tokens)
        tokens = torch.tensor(sorted({*self.identifiers.tokens, *new, self.template.stop}))
        vocabulary = Vocabulary(tokens, first_token, scheme.width)
        self.set_head(vocabulary, self.identifiers.sequences, documents)
        if self.plan is not None:
            self.plan.prepare(documents)
        if not kept:  # last: an impossible head leaves no files
            self.save_identifiers(folder)
            # Documents with the same identifier have the same score: their order is arbitrary.
            if warning := self._own.describe_collisions():
                print(f"{warning}: {scheme.advice}")

    def _named(self, ids: Sequence[str]) -> list[int]:
        """Returns the rows with an identifier of their own; other passages have the document's."""
        return [row for row, name in enumerate(self.passages.name_by(ids)) if name == ids[row]]

    @property
    def _own(self) -> Identifiers:
        ids, sequences = self.identifiers.document_ids, self.identifiers.sequences
        rows = self._named(ids)
        return Identifiers([ids[row] for row in rows], [sequences[row] for row in rows])

    def save_identifiers(self, directory: Path) -> None:
        """Writes identifiers, scheme and statistics to the new folder `directory`."""
        with new_folder(directory) as unfinished:
            self.identifiers.save(unfinished / SAVED)
            self.scheme.save(unfinished / "scheme.safetensors")
            statistics = self._own.statistics()
            for row in self.scheme.statistics():
                statistics["/".join(filter(None, (row.place, row.metric.name)))] = row.value
            write_json(unfinished / "statistics.json", statistics)
            if self.scheme.n_tokens:
                spelled = map(self.scheme.spell, self.identifiers.sequences)
                pairs = zip(self.identifiers.document_ids, spelled, strict=True)
                table = "".join(f"{name}\t{codes}\n" for name, codes in pairs if codes)
                write_text(unfinished / "docids.tsv", table)

    def load_identifiers(self, directory: Path, document_ids: Sequence[str] | None = None) -> None:
        """Reads what `save_identifiers` wrote.

        Raises:
            ValueError: a file is damaged, or belongs to documents other than `document_ids`
                (None = any).
        """
        self.identifiers = Identifiers.load(directory / SAVED, document_ids)
        self.scheme.load(directory / "scheme.safetensors")

    def assign_new(self, documents: Table) -> None:
        """Assigns identifiers to new documents; those known in training keep theirs."""
        ids = documents["id"][:]
        if ids == self.identifiers.document_ids and all(self.identifiers.sequences):
            return
        self.scheme.device, names = self.device, self.passages.name_by(ids)
        own = self.scheme.assign(documents.select(self._named(ids)))
        sequences = dict(zip(own.document_ids, own.sequences, strict=True))
        self.identifiers = Identifiers(ids, [sequences[name] for name in names])
        self.head.extend(self.identifiers.tokens)

    @property
    def search_length(self) -> int:
        """The length of the longest identifier, in tokens."""
        return max(map(len, self.identifiers.sequences))

    def covers(self, document: int) -> bool:
        """Returns whether the document has an identifier."""
        return bool(self.identifiers.sequences[document])

    def spell(self, tokens: Sequence[int]) -> str:
        return self.scheme.spell(tokens)

    def statistics(self) -> list[Measured]:
        """Returns statistics of the identifiers, the head's memory and the plan's costs."""
        rows = [IDENTIFIERS[k].row(value) for k, value in self._own.statistics().items()]
        rows = keep_finite(rows + self.scheme.statistics(), IDENTIFIED)
        return super().statistics() + rows + (self.plan.statistics() if self.plan else [])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["identifiers"] = self.identifiers.hash

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        trained = checkpoint["identifiers"]
        if trained != self.identifiers.hash:
            raise ValueError(
                f"the checkpoint was trained with identifiers {trained}, "
                f"these are {self.identifiers.hash}"
            )

    # Training -------------------------------------------------------------------------------------

    def targets(self, batch: PairBatch) -> PairBatch:
        """Returns the batch with the documents' identifiers on its document side.

        Raises:
            ValueError: a document has no identifier; `index` assigns missing ones.
        """
        host = batch.on_host
        sequences = [self.identifiers.sequences[row] for row in host.document_index.tolist()]
        if not all(sequences):
            row = host.document_index[[not s for s in sequences].index(True)]
            name = self.identifiers.document_ids[row]
            raise ValueError(f"document {name!r} has no identifier: it came after training")
        ids, mask = pad(sequences)
        return replace(host, document_ids=ids, document_mask=mask).to(self.device)

    def target_source(self, document: int) -> list[int]:
        """Returns the document's identifier."""
        return self.identifiers.sequences[document]

    # Search ---------------------------------------------------------------------------------------

    def index(self, documents: Table, directory: str | Path | None = None) -> None:
        """Builds the trie of all identifiers; documents that arrived after training get theirs."""
        self.assign_new(documents)
        if directory is not None:
            shutil.rmtree(Path(directory) / "identifiers", ignore_errors=True)
            self.save_identifiers(Path(directory) / "identifiers")
        self._search_in(documents, directory)

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """Opens the identifiers that `index` wrote; see `System.open_index`."""
        saved = Identifiers.load(Path(directory) / "identifiers" / SAVED, documents["id"][:])
        pairs = zip(self.identifiers.sequences, saved.sequences, strict=True)
        if any(own and own != other for own, other in pairs):
            raise ValueError(f"{directory}: must be an index of this model, has other identifiers")
        self.identifiers = saved
        self.head.extend(saved.tokens)
        self._search_in(documents, directory)

    def _search_in(self, documents: Table, directory: str | Path | None) -> None:
        sequences, penalty = self.identifiers.sequences, self.hparams.length_penalty
        self.names = TrieNames(Trie.build(sequences), sequences, penalty)
        self.document_ids = self.identifiers.document_ids
        if self.plan is not None:
            self.plan.index(documents, Path(directory or temporary_folder("index")))

    # Scores of given documents --------------------------------------------------------------------

    @torch.no_grad()
    def target_shares(self, batch: PairBatch) -> tuple[PairBatch, Tensor]:
        """Computes log p(token | query, tokens before it) / length^penalty, as in the search."""
        batch = self.targets(batch)
        step = self.decoding_step(batch.query_ids, batch.query_mask)
        log_probs = score_tokens(step, batch.document_ids, batch.document_mask)
        lengths = batch.document_mask.sum(1, keepdim=True)
        return batch, log_probs / lengths**self.hparams.length_penalty

    def _rerank(self, queries: Table, documents: Table, candidates: Candidates) -> Ranking:
        """Ranks candidates by log p(identifier | query); omits those without an identifier."""
        return self.rerank_each(queries, documents, candidates, self._score_rows)

    def _score_rows(self, query: dict[str, Any], rows: Sequence[int]) -> Tensor:
        """Computes (n,) fp64 on the CPU, the search's scores of documents; −inf = no identifier.

        It is a search that prunes nothing: identifiers with a common prefix share its decoding, and
        documents with the same identifier tie exactly. Many identifiers are searched in parts, so
        that a step has at most `_LOGITS` logits.
        """
        sequences = [tuple(self.identifiers.sequences[row]) for row in rows]
        distinct, scores = sorted({*sequences} - {()}), {}
        size = max(1, _LOGITS // self.head.numbers_per_position)
        for start in range(0, len(distinct), size):
            some = distinct[start : start + size]
            names = TrieNames(Trie.build(some), some, self.hparams.length_penalty)
            result = self.search([query["tokens"]], names, beam_size=len(some), plan_weight=0)
            scores |= {some[place]: score for place, score in names.scores(result, 0).items()}
        return torch.tensor([scores.get(s, -torch.inf) for s in sequences], dtype=torch.float64)
