"""A T5 under teacher forcing: from (query, identifier) pairs to logits and loss (gr_as_mvdr §4)."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.backbones import load_encoder_decoder
from gr_mvdr.batch import PairBatch
from gr_mvdr.distributed.ranks import broadcast, mean_over_ranks, world_size
from gr_mvdr.heads.plain import Head, Vocabulary
from gr_mvdr.identifiers.scheme import collection_hash
from gr_mvdr.losses import symmetric_divergence, target_cross_entropy
from gr_mvdr.parts import build
from gr_mvdr.relevance import at_least_float32
from models.base import System, Table
from models.contextual import build_table, encode_texts, live_table

PLAIN = {"_target_": "gr_mvdr.heads.plain.Head"}


class EncoderDecoder(System):
    """Encoder, decoder and head: what a generative system is, before it searches."""

    def __init__(
        self,
        backbone: dict[str, Any],
        optimizer: dict[str, Any],
        head: dict[str, Any] | None = None,
        decoder_layers: int | None = None,
    ):
        """
        Args:
            backbone: arguments of `load_encoder_decoder`.
            optimizer: see `System`.
            head: the output table, `_target_` and options; None = the backbone's own.
            decoder_layers: see `load_encoder_decoder`.
        """
        super().__init__(optimizer)
        self.backbone = load_encoder_decoder(**backbone, decoder_layers=decoder_layers)
        self.head: Head = build("head", PLAIN, self.backbone)  # until `set_head`
        self.document_ids: list[str] = []

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding table: the tokeniser's pieces, unused rows, docid tokens."""
        return self.backbone.config.vocab_size

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Query token ids (B, N) and mask → query vectors Q (B, N, d_model)."""
        return self.backbone.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state

    def mean_vectors(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        """Token lists, ended → (n, d_model) fp32, the mean of the encoder's vectors."""
        length = max(map(len, texts), default=1)
        vectors = encode_texts(self, [tokens[:-1] for tokens in texts], length)
        return np.stack([text.mean(0).numpy() for text in vectors])

    def set_head(
        self, vocabulary: Vocabulary, sequences: list[list[int]], documents: Table
    ) -> None:
        """Makes the head for targets that are cut from given sequences.

        Args:
            vocabulary: the tokens that occur in them.
            sequences: of each document, the text that its targets are cut from: its identifier,
                or for n-grams the document itself.
            documents: with `tokens`, what the contextual vectors of NP decoding are read from.

        Raises:
            ValueError: an option of the head is impossible, or label smoothing under it.
        """
        head = self.hparams.head or PLAIN
        self.head = build("head", head, self.backbone, vocabulary=vocabulary).to(self.device)
        smoothing = self.hparams.label_smoothing
        if smoothing and self.head.masks_rows:
            raise ValueError(
                f"model.label_smoothing={smoothing}: must be 0 under a head that masks the rows of "
                "other positions"
            )
        if not self.head.reads_output_table and not self._is_tied:
            self.backbone.lm_head.weight.requires_grad_(False)  # DDP waits for its gradient
        self._sequences, self._documents = sequences, documents
        self._make_table(0)

    @property
    def _is_tied(self) -> bool:
        return self.backbone.lm_head.weight is self.backbone.shared.weight

    def _make_table(self, epoch: int) -> None:
        if self.head.builds_before(epoch):
            build_table(self, self._sequences, self._documents)

    def on_train_epoch_start(self) -> None:
        # A resumed run has the table of its checkpoint and makes the next one when it is due.
        if self.current_epoch:
            self._make_table(self.current_epoch)
        # Each rank has made it; rounding may differ between devices, the rows must not.
        if world_size() > 1 and (state := self.head.table_state()) is not None:
            collection = state.pop("collection")
            state = {name: broadcast(state[name]) for name in sorted(state)}
            self.head.load_table_state(state | {"collection": collection})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["table"] = self.head.table_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        if checkpoint["table"] is not None:
            collection = collection_hash(self._documents["id"][:])
            self.head.load_table_state(checkpoint["table"], collection)

    def targets(self, batch: PairBatch) -> PairBatch:
        """The batch with the identifiers that are to be generated on its document side."""
        return batch

    def decode(
        self, queries: Tensor, query_mask: Tensor, rows: Tensor, **options: Any
    ) -> tuple[Any, Tensor | None]:
        """Teacher forcing: the states that predict each target position (Eq. 8).

        Args:
            queries: (B, N, d_model) from `encode`; query_mask: (B, N) bool.
            rows: (B, M) int64 rows of the head; position i is predicted from those before it.
            options: of the decoder.

        Returns:
            The decoder's output, `last_hidden_state` (B, M, d_model), and the head's context.
        """
        inputs = self.head.inputs(rows)
        output = self.backbone.decoder(
            inputs_embeds=inputs,
            encoder_hidden_states=queries,
            encoder_attention_mask=query_mask.long(),
            use_cache=False,
            **options,
        )
        return output, self.head.context(inputs)

    def logits(self, queries: Tensor, query_mask: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """(n, R) logits, at least fp32, of the n real target positions, row by row of `mask`."""
        output, context = self.decode(queries, query_mask, rows)
        return self._row_logits(output.last_hidden_state, context, _positions(mask), mask)

    def _row_logits(
        self, hidden: Tensor, context: Tensor | None, position: Tensor, mask: Tensor
    ) -> Tensor:
        """(n, R) logits, at least fp32, from the decoder's states (B, M, d) at n real positions."""
        # Only real positions reach the output table, the dearest product of a small model.
        context = None if context is None else context[mask]
        return at_least_float32(self.head.logits(hidden[mask], context, position[mask]))

    def row_log_probs(
        self, hidden: Tensor, context: Tensor | None, rows: Tensor, position: Tensor, mask: Tensor
    ) -> Tensor:
        """(n,) fp32 log-probability of the targets' rows (B, M) at n real positions.

        Args:
            hidden, context: what `decode` answered; position: (B, M) int64 places in the decoded
            sequences; mask: (B, M) bool.
        """
        log_probs = self._row_logits(hidden, context, position, mask).log_softmax(-1)
        return log_probs.gather(1, rows[mask].unsqueeze(1)).squeeze(1)

    def loss(self, batch: PairBatch) -> Tensor:
        """() cross-entropy of the target tokens (Eq. 10), a mean over the tokens of all ranks.

        The batch may hold S targets for each query, rows b·S … b·S + S − 1 for query b: the query
        is encoded once.
        """
        batch = self.targets(batch)
        contrastive = self.head.is_contrastive(self.current_epoch)
        with self._live_table(batch) if contrastive else nullcontext():
            return self._cross_entropy(batch)

    def _live_table(self, batch: PairBatch) -> AbstractContextManager[None]:
        return live_table(self, self._sequences, self._documents, batch)

    def _cross_entropy(self, batch: PairBatch) -> Tensor:
        per_query = len(batch.document_ids) // len(batch)
        queries = self.encode(batch.query_ids, batch.query_mask).repeat_interleave(per_query, 0)
        query_mask = batch.query_mask.repeat_interleave(per_query, 0)
        index = batch.document_index.repeat_interleave(per_query, 0)
        rows = self.head.labels(batch.document_ids, index)
        labels, sides = rows[batch.document_mask], (query_mask, rows, batch.document_mask)
        smoothing, weight = self.hparams.label_smoothing, self.hparams.get("consistency", 0.0)
        masked = self._masked_rows(batch, labels)
        logits = _without(self.logits(queries, *sides), masked)
        total = target_cross_entropy(logits, labels, smoothing)
        if weight and self.training:
            # A second pass with dropout of its own.
            again = self.encode(batch.query_ids, batch.query_mask).repeat_interleave(per_query, 0)
            second = _without(self.logits(again, *sides), masked)
            divergence = symmetric_divergence(logits, second)
            total = total + weight * divergence * len(labels)
        return mean_over_ranks(total, len(labels))

    def _masked_rows(self, batch: PairBatch, labels: Tensor) -> Tensor | None:
        """(n, R) bool: rows that the n target positions are not told apart from; None = all are.

        They are of other documents that are relevant to the query; a target itself never is one.
        """
        found = self.head.relevant_rows(batch.relevant)
        if found is None:
            return None
        per_query = len(batch.document_ids) // len(batch)
        lengths = batch.document_mask.sum(1).view(len(batch), per_query).sum(1)
        return found.repeat_interleave(lengths, 0).scatter(1, labels.unsqueeze(1), False)

    def token_log_probs(
        self, queries: Tensor, query_mask: Tensor, ids: Tensor, mask: Tensor, index: Tensor
    ) -> Tensor:
        """(B, M) fp32 log p(token | tokens before it, query), zero at padding.

        Args:
            queries, query_mask: (B, N, d_model) and (B, N) of each sequence's query.
            ids, mask: (B, M) the sequences; index: (B,) their documents.
        """
        rows = self.head.labels(ids, index)
        output, context = self.decode(queries, query_mask, rows)
        states = output.last_hidden_state
        found = self.row_log_probs(states, context, rows, _positions(mask), mask)
        return found.new_zeros(mask.shape).masked_scatter(mask, found)

    def sequence_log_probs(
        self, queries: Tensor, query_mask: Tensor, ids: Tensor, mask: Tensor, index: Tensor
    ) -> Tensor:
        """(B,) mean of `token_log_probs` over the real tokens of each sequence."""
        scores = self.token_log_probs(queries, query_mask, ids, mask, index)
        return scores.sum(1) / mask.sum(1).clamp(min=1)


def _without(logits: Tensor, masked: Tensor | None) -> Tensor:
    return logits if masked is None else logits.masked_fill(masked, -torch.inf)


def _positions(mask: Tensor) -> Tensor:
    """(B, M) int64, each token's place in its sequence."""
    return torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
