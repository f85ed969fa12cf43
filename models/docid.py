"""DSI, DSI-PAWA, GENRE and GENRE-NP: one identifier a document, generated within a trie.

What the identifier is (a new token, digits, the path through a cluster tree, the title) is the
scheme's choice (`gr_mvdr.docids`, `gr_mvdr.titles`), what the output table is is the head's
(`gr_mvdr.heads`): the systems of gr_as_mvdr Table 6 differ by their YAML only.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.backbones import check_embedding_ties
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.beam_search import SearchResult
from gr_mvdr.configured import build
from gr_mvdr.heads import Vocabulary
from gr_mvdr.identifiers import Identifiers, Scheme, collection_hash
from gr_mvdr.progress import track
from gr_mvdr.ranking import Ranking
from gr_mvdr.tokenizers import EOS_ID
from gr_mvdr.trie import Trie
from models.base import Table
from models.generative import GenerativeSystem


class Docid(GenerativeSystem):
    """Generates the document's identifier token by token (DSI, GENRE; gr_as_mvdr §5.1, §7.3)."""

    def __init__(
        self,
        backbone: dict[str, Any],
        identifiers: dict[str, Any],
        query_length: int,
        document_length: int,
        beam_size: int,
        optimizer: dict[str, Any],
        head: dict[str, Any] | None = None,
        trained_rows: str = "all",
        length_penalty: float = 0.0,
        label_smoothing: float = 0.0,
        decoder_layers: int | None = None,
    ):
        """
        Args:
            backbone: arguments of `load_encoder_decoder`; its tables grow by the new tokens.
            identifiers: the scheme, `_target_` and options.
            query_length: tokens kept of a query, the end token included.
            document_length: tokens kept of a document where it is encoded (the model's own
                encoder as source of docids, the contextual table of NP decoding).
            beam_size: hypotheses a query.
            optimizer: see `System`.
            head: see `GenerativeSystem`.
            trained_rows: of the embedding table: "all", or "new", the docid tokens' alone.
            length_penalty: documents are ranked by log p / length^penalty (0.8 in NCI).
            label_smoothing: of the training loss.
            decoder_layers: a new decoder of this depth; None = the backbone's.

        Raises:
            ValueError: an unknown `trained_rows`.
        """
        if trained_rows not in ("all", "new"):
            raise ValueError(f"model.trained_rows={trained_rows}: must be all or new")
        super().__init__(backbone, optimizer, head, decoder_layers)
        self.save_hyperparameters()
        self.identifiers: Identifiers | None = None
        self.scheme: Scheme = build(identifiers)

    # Identifiers ----------------------------------------------------------------------------

    def prepare(self, documents: Table, known: Sequence[int], directory: str | Path) -> None:
        """Gives every known document its identifier, and the backbone rows for new tokens.

        Args:
            documents: the whole corpus, `PairBatch.document_index` counts in it.
            known: rows of the documents that are there before training; `index` adds the others.
            directory: where identifiers are kept; those of an interrupted run are read back.

        Raises:
            ValueError: the scheme refuses the documents, or `directory` belongs to others.
        """
        directory, ids = Path(directory), documents["id"][:]
        first_token = self.backbone.config.vocab_size
        if directory.is_dir():
            self.identifiers = Identifiers.load(directory, collection_hash(ids))
            self.scheme.load(directory / "scheme", self.mean_vectors)
        else:
            chosen = documents.select(known)
            self.scheme.fit(chosen, first_token, self.mean_vectors)
            sequences: list[list[int]] = [[] for _ in ids]
            for row, sequence in zip(known, self.scheme.assign(chosen), strict=True):
                sequences[row] = sequence
            self.identifiers = Identifiers(ids, sequences)
            self.identifiers.save(directory)
            self.scheme.save(directory / "scheme")
        self._grow(self.scheme.n_tokens)
        self._build_head(documents, first_token)

    def _grow(self, n_tokens: int) -> None:
        """Embedding and output rows for the scheme's new tokens."""
        if not n_tokens:
            return
        old = self.backbone.config.vocab_size
        self.backbone.resize_token_embeddings(old + n_tokens, mean_resizing=False)
        check_embedding_ties(self.backbone)
        if self.hparams.trained_rows == "new":
            tables = {self.backbone.shared.weight, self.backbone.lm_head.weight}
            for table in tables:
                table.register_hook(lambda gradient: _without_rows(gradient, old))

    def _build_head(self, documents: Table, first_token: int) -> None:
        new = range(first_token, first_token + self.scheme.n_tokens)
        used = {token for sequence in self.identifiers.sequences for token in sequence}
        tokens = torch.tensor(sorted(used | set(new) | {EOS_ID}))
        vocabulary = Vocabulary(tokens, first_token, self.scheme.width)
        self.set_head(vocabulary, self.identifiers.sequences, documents)

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """With `trained_rows: new` the tables do not decay: no step moves their other rows."""
        tables = {self.backbone.shared.weight, self.backbone.lm_head.weight}
        if self.hparams.trained_rows == "all":
            return super().parameter_groups(weight_decay)
        others = [parameter for parameter in self.parameters() if parameter not in tables]
        return [
            {"params": others, "weight_decay": weight_decay},
            {"params": list(tables), "weight_decay": 0.0},
        ]

    def targets(self, batch: PairBatch) -> PairBatch:
        """The identifiers of the batch's documents on its document side.

        Raises:
            ValueError: a document has no identifier (yet): `index` assigns new ones.
        """
        sequences = [self.identifiers.of(row) for row in batch.document_index.tolist()]
        if not all(sequences):
            row = batch.document_index[[not s for s in sequences].index(True)]
            name = self.identifiers.document_ids[row]
            raise ValueError(f"document {name!r} has no identifier, index the documents first")
        ids, mask = (x.to(self.device) for x in pad(sequences))
        return PairBatch(batch.query_ids, batch.query_mask, ids, mask, batch.document_index)

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) log p(identifier | query) / length^penalty, what the search ranks by."""
        batch = self.targets(batch)
        queries = self.encode(batch.query_ids, batch.query_mask)
        sides = batch.document_ids, batch.document_mask, batch.document_index
        scores = self.token_log_probs(queries, batch.query_mask, *sides).sum(1)
        return scores / batch.document_mask.sum(1) ** self.hparams.length_penalty

    # Search ---------------------------------------------------------------------------------

    def index(self, documents: Table, directory: str | Path | None = None) -> Trie:
        """The trie of all identifiers; documents that arrived after training get theirs now."""
        directory = Path(directory or tempfile.mkdtemp(prefix="trie-")) / "trie"
        self._assign_new(documents)
        collection = collection_hash(self.identifiers.document_ids)
        Trie.build(self.identifiers.sequences).save(directory, collection)
        self.searcher = Trie.load(directory, collection)
        self.document_ids = self.identifiers.document_ids
        return self.searcher

    def _assign_new(self, documents: Table) -> None:
        if documents["id"][:] == self.identifiers.document_ids and all(self.identifiers.sequences):
            return
        self.identifiers = Identifiers(documents["id"][:], self.scheme.assign(documents))
        self.head.extend({token for found in self.identifiers.sequences for token in found})

    @property
    def search_length(self) -> int:
        return self.searcher.depth

    def documents_of(self, found: SearchResult, number: int) -> dict[int, float]:
        """Every document of a generated identifier; those that share it in their own order."""
        mine = found.final[found.final.query == number]
        scores = mine.log_probs.double() / mine.lengths**self.hparams.length_penalty
        results: dict[int, float] = {}
        for node, score in zip(
            self.searcher.find(mine.tokens).tolist(), scores.tolist(), strict=True
        ):
            for document in self.searcher.documents_at(node).tolist() if node >= 0 else ():
                results[document] = score
                score = float(np.nextafter(score, -np.inf))
        return results

    def is_identifier(self, tokens: Sequence[int]) -> bool:
        """Whether a sequence is a document's identifier."""
        node = int(self.searcher.find(torch.tensor([list(tokens)])))
        return node >= 0 and len(self.searcher.documents_at(node)) > 0

    def gold_prefixes(self, document: int) -> set[tuple[int, ...]]:
        """The prefixes of the document's identifier."""
        sequence = tuple(self.identifiers.of(document))
        return {sequence[:length] for length in range(1, len(sequence) + 1)}

    @torch.inference_mode()
    def rerank(
        self, queries: Table, documents: Table, candidates: dict[str, Sequence[str]]
    ) -> Ranking:
        """log p(identifier | query) of each candidate; one without an identifier is left out."""
        self.eval()
        row = {identifier: number for number, identifier in enumerate(self.document_ids)}
        results = {}
        for query in track(queries, "reranking", total=len(queries)):
            rows = [row[document] for document in candidates[query["id"]]]
            rows = [number for number in rows if self.identifiers.of(number)]
            scores = self._identifier_scores(query["tokens"], rows).tolist()
            results[query["id"]] = {
                self.document_ids[number]: score for number, score in zip(rows, scores, strict=True)
            }
        return Ranking(results)

    def _identifier_scores(self, query: Sequence[int], rows: list[int]) -> Tensor:
        """(n,) what `score` gives for one query and some documents."""
        sequences = [self.identifiers.of(row) for row in rows]
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        means = self.segment_scores(query, sequences, rows)
        return means * lengths ** (1 - self.hparams.length_penalty)

    @torch.inference_mode()
    def score_all(self, queries: Sequence[Sequence[int]]) -> Tensor:
        """(documents, queries) what `score` gives for every pair; −inf without an identifier."""
        self.eval()
        rows = [row for row in range(len(self.document_ids)) if self.identifiers.of(row)]
        scores = torch.full((len(self.document_ids), len(queries)), -torch.inf)
        for number, query in enumerate(track(queries, "scoring all", total=len(queries))):
            scores[rows, number] = self._identifier_scores(query, rows)
        return scores

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
