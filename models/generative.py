"""What all generative systems do: teacher forcing, loss, scores and alignments (gr_as_mvdr §4).

A system generates a name of the document from the query, in a constrained search
(`models.docid`, `models.t5_seal`), or the query from the document
(`models.beyond.query_generator`).
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gr_mvdr import cross_attention
from gr_mvdr.backbones import encode, load_encoder_decoder
from gr_mvdr.batch import PairBatch
from gr_mvdr.decoder_layers import read_decoder
from gr_mvdr.decoding.decoding_step import DecodingStep
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.heads.plain import Head, Vocabulary, real_places
from gr_mvdr.heads.softmax import States, table_cross_entropy, table_log_probs
from gr_mvdr.losses import symmetric_divergence, target_cross_entropy
from gr_mvdr.options import build
from gr_mvdr.ranks import mean_over_ranks
from gr_mvdr.relevance import Explanation, Factors, PairAlignment, at_least_float32
from gr_mvdr.token_vectors import TokenVectors
from models.base import Share, Shares, System, Table, token_shares
from models.constrained_search import ConstrainedSearch, search_of
from models.training import OptimizerOptions

PLAIN = {"_target_": "gr_mvdr.heads.plain.Head"}
_TARGETS = 64  # of a training batch, for the statement of the head's memory


class GenerativeSystem(System):
    """Encoder, decoder and head, their loss, and the scores and alignments of given pairs.

    A subclass says what is generated: `targets` for training, `search_length` at most.
    """

    paradigm = "generative"
    # Whose tokens it generates: the decoder's paths, and the rows of A that sum to one, are theirs.
    generates: ClassVar[Literal["document", "query"]] = "document"
    # Set by `index`; None of a system that generates queries.
    searcher: ConstrainedSearch | None = None
    # The most tokens of a generated sequence.
    search_length: int
    # Whether a target is any n-gram of `target_source`, or the whole of it.
    targets_are_ngrams: ClassVar[bool] = False
    # Target tokens that are teacher-forced at once in alignments; None = the whole sequence.
    window: int | None = None

    def __init__(
        self,
        backbone: dict[str, Any],
        optimizer: OptimizerOptions,
        head: dict[str, Any] | None = None,
        decoder_layers: int | None = None,
        ranking: dict[str, Any] | None = None,
    ):
        """
        Args:
            backbone, decoder_layers: arguments of `load_encoder_decoder`.
            optimizer: see `System`.
            head: the output table, `_target_` and options; None = the backbone's own.
            ranking: a loss of `models.beyond.ranking_losses` that is added; None = none.
        """
        super().__init__(optimizer)
        self.backbone = load_encoder_decoder(**backbone, decoder_layers=decoder_layers)
        read_decoder(self.backbone.get_decoder())  # one that no alignment can be read from
        self.template = self.backbone.template
        self.vocabulary_size = self.backbone.config.vocab_size
        self.head: Head = build("head", PLAIN, self.backbone)  # until `set_head`
        ranking_loss = build("ranking", ranking) if ranking else None
        self.ranking_loss = ranking_loss if ranking_loss and ranking_loss.weight else None
        self.needs_negatives = self.ranking_loss is not None
        self.document_ids: list[str] = []

    def targets(self, batch: PairBatch) -> PairBatch:
        """The batch with the token sequences to generate on its document side."""
        return batch

    def prepare_query(self, tokens: Sequence[int]) -> list[int]:
        """The query's first tokens with the template's, as the encoder reads them."""
        return self.template.read_query(tokens, self.hparams.query_length)

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Query token ids (B, N) and mask → query vectors Q (B, N, d)."""
        return encode(self.backbone, ids, mask)

    def encode_queries(self, ids: Tensor, mask: Tensor) -> TokenVectors:
        """The encoder's states as the query side of Eq. 1."""
        return TokenVectors(self.encode(ids, mask), mask, ids)

    # The loss -------------------------------------------------------------------------------------

    def loss(self, batch: PairBatch) -> Tensor:
        """() cross-entropy of the target tokens (Eq. 10), a mean over the tokens of all ranks.

        The batch may hold S targets for each query, rows b·S … b·S + S − 1 for query b: the query
        is encoded once. Its hard negatives are for `model.ranking` alone.
        """
        batch = self.targets(batch if self.ranking_loss else batch.without_negatives())
        with self.head.batch_table(batch, self.current_epoch):
            loss = token_cross_entropy(self, batch.without_negatives())
            return loss + self.ranking_loss(self, batch) if self.ranking_loss else loss

    def setup(self, stage: str) -> None:
        """Begins the ranking loss before a checkpoint to resume from is read."""
        if stage == "fit" and self.ranking_loss:
            self.ranking_loss.begin(self)

    def teardown(self, stage: str) -> None:
        if self.ranking_loss:
            self.ranking_loss.end()

    def states(self, queries: Tensor, query_mask: Tensor, rows: Tensor, places: Tensor) -> States:
        """What the head makes the logits of n target positions from (`Head.logits`).

        Args:
            queries: (B, N, d) from `encode`; query_mask: (B, N).
            rows: (B, M) int64 rows of the head; places: (n,) int64, see `real_places`.
        """
        output, context = self.head.decode(queries, query_mask, rows)
        position = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
        return self.head.states_at(places, output.last_hidden_state, context, position)

    # Scores and alignments ------------------------------------------------------------------------

    def token_log_probs(
        self,
        queries: Tensor,
        query_mask: Tensor,
        ids: Tensor,
        mask: Tensor,
        index: Tensor,
        normalised: bool = True,
    ) -> Tensor:
        """(B, M) fp32 log p(token | tokens before it, query), zero at padding (Eq. 8).

        Args:
            queries, query_mask: (B, N, d) and (B, N) of each sequence's query.
            ids, mask: (B, M) the sequences; index: (B,) their documents.
            normalised: False = the tokens' logits.
        """
        rows = self.head.labels(ids, index)
        places = real_places(mask)
        states = self.states(queries, query_mask, rows, places)
        log_probs = table_log_probs(self.head, states, rows.flatten()[places], normalised)
        return log_probs.new_zeros(mask.numel()).index_put((places,), log_probs).view(mask.shape)

    def score(self, batch: PairBatch) -> Tensor:
        """(B,) mean log-probability of the target tokens."""
        return self.target_shares(batch)[1].sum(1)

    @torch.no_grad()
    def shares(self, batch: PairBatch) -> list[list[Share]]:
        """What each target token adds to the pairs' `score`."""
        targets, values = self.target_shares(batch)
        return token_shares(targets.document_ids, values, targets.document_mask)

    def target_shares(self, batch: PairBatch) -> tuple[PairBatch, Tensor]:
        """The batch with its targets as documents, and (B, M) what each of them adds to `score`."""
        batch = self.forced(batch)
        queries = self.encode(batch.query_ids, batch.query_mask)
        sides = batch.document_ids, batch.document_mask, batch.document_index
        log_probs = self.token_log_probs(queries, batch.query_mask, *sides)
        return batch, log_probs / batch.document_mask.sum(1, keepdim=True).clamp(min=1)

    def align(self, batch: PairBatch, layer: int = -1) -> PairAlignment:
        """S and A of one decoder layer, the targets teacher-forced (Eq. 12–14)."""
        return cross_attention.align_layer(trace_targets(self, batch), self.score(batch), layer)

    def explain(self, batch: PairBatch) -> Explanation:
        """S and A of every decoder layer, and the logits as sums over all paths (§8)."""
        trace, score = trace_targets(self, batch), self.score(batch)
        numbers = range(len(trace.attentions))
        layers = [cross_attention.align_layer(trace, score, number) for number in numbers]
        return Explanation(layers, decoder=cross_attention.sum_paths(trace))

    def factors(self, batch: PairBatch) -> Factors:
        """The vectors behind the last decoder layer's S and A."""
        return cross_attention.collect_factors(trace_targets(self, batch))

    def forced(self, batch: PairBatch) -> PairBatch:
        """The batch with the token sequences that are teacher-forced in scores and alignments."""
        return self.targets(batch)

    # The head and its table -----------------------------------------------------------------------

    def set_head(
        self, vocabulary: Vocabulary, sequences: list[list[int]], documents: Table
    ) -> None:
        """Makes the head for targets that are cut from these sequences.

        Args:
            vocabulary: the tokens that occur in them.
            sequences, documents: see `Head.make_table`.

        Raises:
            ValueError: an option of the head is impossible.
        """
        head = self.hparams.head or PLAIN
        self.head = build("head", head, self.backbone, vocabulary=vocabulary).to(self.device)
        # The rows of any other head are those of indexed documents.
        self.scores_texts = self.scores_texts and type(self.head) is Head
        self.head.make_table(sequences, documents, self.hparams.document_length)
        output = self.backbone.get_output_embeddings().weight
        tied = output is self.backbone.get_input_embeddings().weight
        if not tied and all(tensor is not output for tensor in self.head.table_parameters):
            output.requires_grad_(False)  # DDP waits for its gradient

    def on_train_epoch_start(self) -> None:
        self.head.begin_epoch(self.current_epoch)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["table"] = self.head.table_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        if checkpoint["table"] is not None:
            self.head.renew_table(checkpoint["table"])

    def statistics(self) -> dict[str, float]:
        """The memory of the head and of its logits for a batch of targets."""
        return {"cost/head_bytes": float(self.head.memory_bytes(_TARGETS, self.search_length))}

    # Search ---------------------------------------------------------------------------------------

    def decoding_step(self, query_ids: Tensor, query_mask: Tensor) -> DecodingStep:
        """The step function of a search for queries (B, N)."""
        return DecodingStep(self.head, self.encode(query_ids, query_mask), query_mask)

    def retrieve(self, queries: Table, k: int = 100, **options: Any) -> Ranking:
        """Constrained beam search, then from names to documents; see `ConstrainedSearch`."""
        return search_of(self).retrieve(queries, k, **options)

    def retrieve_with_shares(
        self, queries: Table, k: int = 100, among: Sequence[str] | None = None
    ) -> tuple[Ranking, Shares]:
        """`retrieve`, and what made each score in that very search."""
        return search_of(self).retrieve_with_shares(queries, k, among)


def trace_targets(system: GenerativeSystem, batch: PairBatch) -> cross_attention.DecoderTrace:
    """What the decoder computes with the batch's targets teacher-forced."""
    batch = system.forced(batch)
    queries = system.encode(batch.query_ids, batch.query_mask)
    return cross_attention.trace_decoder(system.head, batch, queries, system.window)


def token_cross_entropy(system: GenerativeSystem, batch: PairBatch) -> Tensor:
    """() mean cross-entropy of all ranks' target tokens; `consistency` adds NCI's divergence."""
    per_query = len(batch.document_ids) // len(batch)
    query_mask = batch.query_mask.repeat_interleave(per_query, 0)
    index = batch.document_index.repeat_interleave(per_query, 0)
    rows = system.head.labels(batch.document_ids, index)
    places = real_places(batch.document_mask)
    labels = rows.flatten()[places]
    masked = _mask_relevant(system.head, batch, labels)

    def states() -> States:  # each call draws its own dropout
        queries = system.encode(batch.query_ids, batch.query_mask).repeat_interleave(per_query, 0)
        return system.states(queries, query_mask, rows, places)

    weight, smoothing = system.hparams.get("consistency", 0.0), system.hparams.label_smoothing
    if not (weight and system.training):
        total = table_cross_entropy(system.head, states(), labels, masked, smoothing)
        return mean_over_ranks(total, len(labels))
    # Two whole predictions side by side.
    pair = [at_least_float32(system.head.logits(*states())) for _ in range(2)]
    if masked is not None:
        pair = [logits.masked_fill(masked, -torch.inf) for logits in pair]
    divergence = symmetric_divergence(*pair) * len(labels)
    total = target_cross_entropy(pair[0], labels, smoothing) + weight * divergence
    return mean_over_ranks(total, len(labels))


def _mask_relevant(head: Head, batch: PairBatch, labels: Tensor) -> Tensor | None:
    """(n, R) bool, rows excluded from the negatives of n target positions; None = no rows.

    They belong to other documents that are relevant to the query, and are not the target itself.
    """
    rows = head.relevant_rows(batch.relevant)
    if rows is None:
        return None
    lengths = batch.document_mask.sum(1).view(len(batch), -1).sum(1)
    rows = rows.repeat_interleave(lengths, 0, output_size=len(labels))
    return rows.scatter(1, labels.unsqueeze(1), False)
