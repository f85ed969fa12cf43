"""Identifiers in a system's life: made before training, kept beside it, extended afterwards."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gr_mvdr.backbones import add_tokens
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.files.writing import new_folder
from gr_mvdr.heads.plain import Vocabulary
from gr_mvdr.identifiers.scheme import Identifiers, Scheme, collection_hash
from gr_mvdr.tokenizers import EOS_ID
from models.base import Table
from models.generative import GenerativeSystem


class IdentifiedSystem(GenerativeSystem):
    """A generative system in which every document has one identifier."""

    scheme: Scheme
    identifiers: Identifiers | None = None

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Gives every known document its identifier, and the backbone rows for new tokens.

        Args:
            documents: the whole corpus, `PairBatch.document_index` counts in it.
            known: rows of the documents that are there before training; `index` adds the others.
            directory: where identifiers are kept; those of an interrupted run are read back.

        Raises:
            ValueError: the scheme refuses the documents, or `directory` belongs to others.
        """
        ids, first_token = documents["id"][:], self.backbone.config.vocab_size
        if kept := Path(directory).is_dir():
            self.load_identifiers(Path(directory), collection_hash(ids), first_token)
        else:
            chosen = documents.select(known)
            self.scheme.fit(chosen, first_token, self.mean_vectors)
            sequences: list[list[int]] = [[] for _ in ids]
            for row, sequence in zip(known, self.scheme.assign(chosen), strict=True):
                sequences[row] = sequence
            self.identifiers = Identifiers(ids, sequences)
        self._grow(self.scheme.n_tokens)
        self._build_head(documents, first_token)
        if not kept:  # last: a head that is impossible leaves nothing behind
            self.save_identifiers(Path(directory))

    def save_identifiers(self, directory: Path) -> None:
        """Identifiers, scheme and statistics as the new folder `directory`."""
        with new_folder(directory) as unfinished:
            self.identifiers.save(unfinished / "identifiers")
            self.scheme.save(unfinished / "scheme")
            statistics = json.dumps(self.identifiers.statistics(), indent=2)
            (unfinished / "statistics.json").write_text(statistics + "\n")

    def load_identifiers(self, directory: Path, collection: str, first_token: int) -> None:
        """Takes up what `save_identifiers` wrote.

        Args:
            collection: the `collection_hash` of the documents; first_token: the first new token.

        Raises:
            ValueError: they are of other documents, or of another vocabulary.
        """
        self.identifiers = Identifiers.load(directory / "identifiers", collection)
        self.scheme.load(directory / "scheme", self.mean_vectors)
        if self.scheme.first_token != first_token:
            raise ValueError(
                f"{directory}: its identifiers' new tokens begin at {self.scheme.first_token}, the "
                f"vocabulary of this model has {first_token} tokens"
            )

    def _grow(self, n_tokens: int) -> None:
        """Embedding and output rows for the scheme's new tokens."""
        old = self.backbone.config.vocab_size
        if n_tokens:
            add_tokens(self.backbone, n_tokens)
        if self.hparams.trained_rows == "new":
            for table in self._tables():
                table.register_hook(lambda gradient: _without_rows(gradient, old))

    def _tables(self) -> list[Tensor]:
        """The embedding table, and the output table where it is another one."""
        tables = [self.backbone.shared.weight, self.backbone.lm_head.weight]
        return tables[:1] if tables[0] is tables[1] else tables

    def _build_head(self, documents: Table, first_token: int) -> None:
        new = range(first_token, first_token + self.scheme.n_tokens)
        used = {token for sequence in self.identifiers.sequences for token in sequence}
        tokens = torch.tensor(sorted(used | set(new) | {EOS_ID}))
        vocabulary = Vocabulary(tokens, first_token, self.scheme.width)
        self.set_head(vocabulary, self.identifiers.sequences, documents)

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """With `trained_rows: new` the tables do not decay: no step moves their other rows."""
        if self.hparams.trained_rows == "all":
            return super().parameter_groups(weight_decay)
        tables = self._tables()
        others = [p for p in self.parameters() if all(p is not table for table in tables)]
        return [
            {"params": others, "weight_decay": weight_decay},
            {"params": tables, "weight_decay": 0.0},
        ]

    def statistics(self) -> dict[str, float]:
        """Depth and collisions of the identifiers beside the head's memory."""
        found = self.identifiers.statistics()
        metrics = {f"analysis/identifiers/{name}": float(value) for name, value in found.items()}
        return super().statistics() | metrics

    def covers(self, document: int) -> bool:
        """Whether the document has an identifier."""
        return bool(self.identifiers.of(document))

    def targets(self, batch: PairBatch) -> PairBatch:
        """The identifiers of the batch's documents on its document side.

        Raises:
            ValueError: a document has no identifier (yet): `index` assigns new ones.
        """
        sequences = [self.identifiers.of(row) for row in batch.document_index.tolist()]
        if not all(sequences):
            row = batch.document_index[[not s for s in sequences].index(True)]
            name = self.identifiers.document_ids[row]
            raise ValueError(f"document {name!r} has no identifier: it came after training")
        ids, mask = (x.to(self.device) for x in pad(sequences))
        return replace(batch, document_ids=ids, document_mask=mask)

    def assign_new(self, documents: Table) -> None:
        """Identifiers for the documents of a corpus that have none yet; the others keep theirs."""
        if documents["id"][:] == self.identifiers.document_ids and all(self.identifiers.sequences):
            return
        self.identifiers = Identifiers(documents["id"][:], self.scheme.assign(documents))
        self.head.extend({token for found in self.identifiers.sequences for token in found})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["identifiers"] = self.identifiers.hash

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        found = checkpoint["identifiers"]
        if found != self.identifiers.hash:
            raise ValueError(
                f"the checkpoint was trained with identifiers {found}, "
                f"these are {self.identifiers.hash}"
            )


def _without_rows(gradient: Tensor, rows: int) -> Tensor:
    """A table's gradient that leaves its first rows as they are."""
    gradient = gradient.clone()
    gradient[:rows] = 0
    return gradient
