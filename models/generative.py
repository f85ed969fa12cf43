"""The base class of generative systems: loss, scores, alignments, search (gr_as_mvdr §4).

A system generates a name of the document from the query (`models.docid`, `models.t5_seal`), or the
query from the document (`models.beyond.query_generator`).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gr_mvdr import cross_attention
from gr_mvdr.backbones import load_backbone
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.decoder_layers import read_decoder
from gr_mvdr.decoders import check_output, read_query
from gr_mvdr.decoding.beam_search import BeamSearchResult, beam_search
from gr_mvdr.decoding.decoding_step import DecodingStep
from gr_mvdr.decoding.names import Names
from gr_mvdr.decoding.search_trace import Continuation, SearchPath, SearchTrace, continue_prefix
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.heads.plain import (
    Head,
    States,
    Vocabulary,
    real_places,
    states_at,
    table_cross_entropy,
    table_log_probs,
)
from gr_mvdr.measures import Measured, costs
from gr_mvdr.options import build
from gr_mvdr.progress import track
from gr_mvdr.ranks import mean_over_ranks
from gr_mvdr.relevance import Explanation, Factors, PairAlignment
from gr_mvdr.texts import TextTable
from models.base import Among, Candidates, Share, System, Table, token_shares
from models.training import OptimizerOptions

PLAIN = {"_target_": "gr_mvdr.heads.plain.Head"}
_TARGETS = 64  # targets of a batch, for which the head's memory is reported
_QUERY_BATCH = 16  # queries decoded at once


def continues_prompts(system: Any) -> bool:
    """Returns whether a system generates by a causal language model."""
    generates = isinstance(system, GenerativeSystem)
    return generates and not system.backbone.config.is_encoder_decoder


class GenerativeSystem(System):
    """An encoder, a decoder and a head: their loss, and the scores and alignments of pairs.

    A subclass defines what is generated: `targets` in training.
    """

    paradigm = "generative"
    # The maximum length of a generated sequence, in tokens.
    search_length: int
    # Whether a target is any n-gram of `target_source` or, if False, the whole of it.
    targets_are_ngrams: ClassVar[bool] = False
    # The number of target tokens teacher-forced at once in alignments; None = the whole sequence.
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
            backbone, decoder_layers: arguments of `load_backbone`.
            optimizer: options of `make_optimizer`.
            head: the output table, `_target_` and options; None = the backbone's own.
            ranking: a loss of `models.beyond.ranking_losses` to add; None = no such loss.
        """
        super().__init__()
        self.backbone = load_backbone(**backbone, decoder_layers=decoder_layers, decodes=True)
        if continues_prompts(self):
            check_output(self.backbone)
        try:
            read_decoder(self.backbone)
        except ValueError:  # no alignment can be read from it
            if not continues_prompts(self):
                raise
            self.alignable = False
        self.template = self.backbone.template
        self.vocabulary_size = self.backbone.config.vocab_size
        self.head: Head = build("head", PLAIN, self.backbone)  # until `set_head`
        ranking_loss = build("ranking", ranking) if ranking else None
        self.ranking_loss = ranking_loss if ranking_loss and ranking_loss.weight else None
        self.needs_negatives = self.ranking_loss is not None

    def targets(self, batch: PairBatch) -> PairBatch:
        """Returns the batch with the token sequences to generate on its document side."""
        return batch

    def prepare_query(self, tokens: Sequence[int]) -> list[int]:
        """Truncates a query and adds the special tokens, as the encoder reads it."""
        return self.cut_query(tokens)

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Encodes query token ids (B, N) with their mask as query vectors Q (B, N, d).

        Those of a causal language model are the prompt's inputs: its Q differs from layer to layer.
        """
        return read_query(self.backbone, ids, mask)

    # The loss -------------------------------------------------------------------------------------

    def loss(self, batch: PairBatch) -> Tensor:
        """Computes the cross-entropy () of target tokens (Eq. 10), a mean over all ranks' tokens.

        The batch may hold S targets for each query, rows b·S … b·S + S − 1 for query b; the query
        is encoded once. Only `model.ranking` uses the batch's hard negatives.
        """
        batch = self.targets(batch if self.ranking_loss else batch.without_negatives())
        with self.head.batch_table(batch, self.current_epoch):
            loss = self._cross_entropy(batch.without_negatives())
            return loss + self.ranking_loss(self, batch) if self.ranking_loss else loss

    def _cross_entropy(self, batch: PairBatch) -> Tensor:
        """Computes the mean cross-entropy () of all ranks' targets (Eq. 10)."""
        per_query = len(batch.document_ids) // len(batch)
        index = batch.document_index.repeat_interleave(per_query, 0)
        rows = self.head.labels(batch.document_ids, index)
        places = real_places(batch.on_host.document_mask).to(rows.device, non_blocking=True)
        labels = rows.flatten()[places]
        masked = self.head.masked_rows(batch, labels)
        queries = self.encode(batch.query_ids, batch.query_mask)
        states = self.target_states(queries, batch.query_mask, rows, places)
        smoothing = self.hparams.label_smoothing
        total = table_cross_entropy(self.head, states, labels, masked, smoothing)
        return mean_over_ranks(total, len(labels))

    def setup(self, stage: str) -> None:
        """Begins the ranking loss, before a checkpoint to resume from is loaded."""
        if stage == "fit" and self.ranking_loss:
            self.ranking_loss.begin(self)

    def teardown(self, stage: str) -> None:
        if self.ranking_loss:
            self.ranking_loss.end()

    # Scores and alignments ------------------------------------------------------------------------

    def target_states(
        self, queries: Tensor, query_mask: Tensor, rows: Tensor, places: Tensor
    ) -> States:
        """Computes the inputs of `Head.logits` for n target positions.

        Args:
            queries: (B, N, d) from `encode`; query_mask: (B, N).
            rows: (B·S, M) int64 rows of the head, S targets for each query; places: (n,) int64,
                see `real_places`.
        """
        states, context = self.head.decode(queries, query_mask, rows)
        position = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
        return states_at(places, states, context, position)

    def token_log_probs(
        self,
        queries: Tensor,
        query_mask: Tensor,
        ids: Tensor,
        mask: Tensor,
        index: Tensor,
    ) -> Tensor:
        """Computes (B·S, M) fp32 log p(token | tokens before it, query), zero at padding (Eq. 8).

        Args:
            queries, query_mask: (B, N, d) and (B, N).
            ids, mask: (B·S, M), S sequences for each query; a mask on the CPU saves a wait for the
                device.
            index: (B·S,), the sequences' documents.
        """
        rows = self.head.labels(ids, index)
        places = real_places(mask).to(ids.device, non_blocking=True)
        states = self.target_states(queries, query_mask, rows, places)
        log_probs = table_log_probs(self.head, states, rows.flatten()[places])
        return log_probs.new_zeros(mask.numel()).index_put((places,), log_probs).view(mask.shape)

    def score(self, batch: PairBatch) -> Tensor:
        """Computes (B,), the mean log-probability of the target tokens; −inf without targets."""
        batch, values = self.target_shares(batch)
        return values.sum(1).masked_fill(~batch.document_mask.any(1), -torch.inf)

    @torch.no_grad()
    def shares(self, batch: PairBatch) -> list[list[Share]]:
        """Splits the pairs' `score` into the contributions of target tokens."""
        targets, values = self.target_shares(batch)
        return token_shares(targets.document_ids, values, targets.document_mask)

    def target_shares(self, batch: PairBatch) -> tuple[PairBatch, Tensor]:
        """Returns the batch with its targets, and each token's contribution (B, M) to `score`."""
        batch = self.forced(batch)
        queries = self.encode(batch.query_ids, batch.query_mask)
        sides = batch.document_ids, batch.document_mask, batch.document_index
        log_probs = self.token_log_probs(queries, batch.query_mask, *sides)
        return batch, log_probs / batch.document_mask.sum(1, keepdim=True).clamp(min=1)

    def align(self, batch: PairBatch) -> PairAlignment:
        """Returns S and A of the last decoder layer with teacher-forced targets (Eq. 12–14)."""
        return cross_attention.align_layer(self._trace(batch), self.score(batch))

    def explain(self, batch: PairBatch) -> Explanation:
        """Returns S and A of every decoder layer, and the logits as sums over all paths (§8)."""
        trace, score = self._trace(batch), self.score(batch)
        numbers = range(len(trace.attended))
        layers = [cross_attention.align_layer(trace, score, number) for number in numbers]
        return Explanation(layers, decoder=cross_attention.sum_paths(trace))

    def factors(self, batch: PairBatch) -> Factors:
        """Returns the vectors behind S and A of the last decoder layer."""
        return cross_attention.collect_factors(self._trace(batch))

    def _trace(self, batch: PairBatch) -> cross_attention.DecoderTrace:
        """Records the decoder's computation with the batch's targets teacher-forced."""
        batch = self.forced(batch)
        queries = self.encode(batch.query_ids, batch.query_mask)
        return cross_attention.trace_decoder(self.head, batch, queries, self.window)

    def forced(self, batch: PairBatch) -> PairBatch:
        """Returns the batch with the sequences that scores and alignments teacher-force."""
        return self.targets(batch)

    # The head and its table -----------------------------------------------------------------------

    def set_head(
        self, vocabulary: Vocabulary, sequences: list[list[int]], documents: Table
    ) -> None:
        """Makes the head for targets that are cut from these sequences.

        Args:
            vocabulary: the tokens that occur in the sequences.
            sequences, documents: see `Head.make_table`.

        Raises:
            ValueError: an option of the head is impossible.
        """
        head = self.hparams.head or PLAIN
        self.head = build("head", head, self.backbone, vocabulary=vocabulary).to(self.device)
        # All heads but the plain one only have rows for the tokens of indexed documents.
        self.scores_texts = self.scores_texts and type(self.head) is Head
        self.head.make_table(sequences, documents, self.hparams.document_length)
        output = self.backbone.get_output_embeddings().weight
        tied = output is self.backbone.get_input_embeddings().weight
        if not tied and all(tensor is not output for tensor in self.head.table_parameters):
            output.requires_grad_(False)  # DDP waits for its gradient

    def on_train_epoch_start(self) -> None:
        self.head.begin_epoch(self.current_epoch)

    def on_train_epoch_end(self) -> None:
        epoch = self.current_epoch  # before `done`, which counts an epoch that ends the training
        if self.trainer.fit_loop.done:  # before the last checkpoint is written
            self.head.end_training(epoch)

    def on_validation_start(self) -> None:
        """Makes the table with which a search would begin if training ended here."""
        self.head.end_training(self.current_epoch)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["table"] = self.head.table_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        if checkpoint["table"] is not None:
            self.head.renew_table(checkpoint["table"])

    def statistics(self) -> list[Measured]:
        """Returns the bytes in fp32 of the head and of its logits for a batch of targets.

        Training adds gradients of the same size, and the moments of the optimiser.
        """
        own = list(self.head.parameters()) or self.head.table_parameters
        logits = _TARGETS * self.search_length * self.head.numbers_per_position
        return costs({"head_bytes": 4.0 * (sum(tensor.numel() for tensor in own) + logits)})


class DocumentGenerator(GenerativeSystem):
    """Generates names of documents: a search is constrained to the names of indexed documents.

    A subclass makes the `names` when documents are indexed.
    """

    # The side whose tokens it generates; for each of these tokens A sums to one.
    generates = "document"
    # The names of the indexed documents, and these documents' ids, set by `index`.
    names: Names | None = None
    document_ids: Sequence[str] = ()
    # Scores prefixes before a search (`models.beyond.planned_search`); None = no plan.
    plan: Any = None

    def decoding_step(self, query_ids: Tensor, query_mask: Tensor) -> DecodingStep:
        """Makes the step function of a search for queries (B, N)."""
        return DecodingStep(self.head, self.encode(query_ids, query_mask), query_mask)

    def _retrieve(
        self, queries: Table, k: int, among: Among, with_shares: bool, **options: Any
    ) -> Ranking:
        """Runs a constrained beam search and maps generated names to documents."""
        results: dict[str, dict[str, float]] = {query: {} for query in queries["id"][:]}
        shares: dict[str, dict[str, list[Share]]] = {query: {} for query in results}
        if (names := self._names_of(among)) is None:
            return Ranking(results, shares)
        for start in track(range(0, len(queries), _QUERY_BATCH), "searching"):
            rows = queries[start : start + _QUERY_BATCH]
            result = self.search(rows["tokens"], names, texts=rows["text"], **options)
            for number, query in enumerate(rows["id"]):
                scores = names.scores(result, number).items()
                best = sorted(((s, self.document_ids[d], d) for d, s in scores), reverse=True)[:k]
                results[query] = {name: score for score, name, _ in best}
                if with_shares:
                    parts = names.shares(result, number, [document for *_, document in best])
                    own = zip(results[query], parts.values(), strict=True)
                    shares[query] = {name: [Share(*one) for one in part] for name, part in own}
        return Ranking(results, shares if with_shares else None)

    def search(
        self,
        queries: Sequence[Sequence[int]],
        names: Names | None = None,
        texts: Sequence[str] | None = None,
        sources: Sequence[Sequence[int]] | None = None,
        beam_size: int | None = None,
        plan_weight: float | None = None,
        trace: SearchTrace | None = None,
    ) -> BeamSearchResult:
        """Runs a beam search for queries; see `gr_mvdr.decoding.beam_search`.

        Args:
            queries: the token ids of each query.
            names: the names that may be generated; None = those of all documents.
            texts: the queries' texts, which a plan may read.
            sources: the token ids that the encoder reads; None = `prepare_query` of each query.
            beam_size, plan_weight: None = the system's own.
            trace: observes every step.
        """
        names, bonus = names or self.names, None
        if self.plan is not None:
            columns = dict(id=list(map(str, range(len(queries)))), tokens=queries, text=texts)
            table = TextTable({name: list(c) for name, c in columns.items() if c is not None})
            bonus = self.plan.bonus(table, names.constraint, self.device, plan_weight)
        ids, mask = pad(sources or [self.prepare_query(query) for query in queries])
        step = self.decoding_step(ids.to(self.device), mask.to(self.device))
        return beam_search(
            step,
            names.constraint,
            batch_size=len(queries),
            beam_size=beam_size or self.hparams.beam_size,
            length=names.length,
            end_token=self.template.stop,
            device=self.device,
            observer=trace.observe if trace else None,
            bonus=bonus,
        )

    def _names_of(self, among: Among = None) -> Names | None:
        """Returns the names of some indexed documents; None if none of them has a name.

        Args:
            among: ids of these documents; None = all documents.

        Raises:
            ValueError: no documents are indexed, or an id is not indexed.
        """
        if self.names is None:
            raise ValueError(f"system={type(self).__name__}: index the documents first")
        if among is None:
            return self.names
        row = {name: number for number, name in enumerate(self.document_ids)}
        if unknown := [name for name in among if name not in row]:
            raise ValueError(f"among: {unknown[0]!r} must be the id of an indexed document")
        numbers = frozenset(row[name] for name in among)
        return self.names.within(numbers) if any(map(self.covers, numbers)) else None

    @torch.inference_mode()
    def trace_search(
        self, query: Sequence[int], document: int, text: str | None = None
    ) -> SearchPath:
        """Traces the search for a query to find where the beam loses a document.

        T5-SEAL uses the n-grams of all steps, so it may retrieve a document that its beam lost.

        Args:
            query: token ids.
            document: the document's number.
            text: the query's text, for a plan.

        Raises:
            ValueError: the document has no identifier.
        """
        names = self._names_of()
        if not self.covers(document):
            name = self.document_ids[document]
            raise ValueError(f"document {name!r} has no identifier: no search can find it")
        trace = SearchTrace(names.gold_prefixes(document), self.template.stop)
        result = self.eval().search([query], texts=None if text is None else [text], trace=trace)
        return trace.path(result, names.documents_of, self.document_ids)

    @torch.inference_mode()
    def list_continuations(
        self, query: Sequence[int], prefix: Sequence[int] = (), k: int = 10
    ) -> list[Continuation]:
        """Lists the most probable tokens after a prefix, and which of them the constraint allows.

        Args:
            query, prefix: token ids.
            k: see `continue_prefix`.

        Returns:
            [] after the end of an identifier.

        Raises:
            ValueError: no documents are indexed, or no search can generate the prefix.
        """
        names = self._names_of()
        if len(prefix) >= names.length:
            return []
        ids, mask = (x.to(self.device) for x in pad([self.prepare_query(query)]))
        step = self.eval().decoding_step(ids, mask)
        return continue_prefix(step, names.constraint, prefix, k, self.document_ids, self.device)

    @torch.inference_mode()
    def rerank_each(
        self,
        queries: Table,
        documents: Table,
        candidates: Candidates,
        score: Callable[[dict[str, Any], list[int]], Tensor],
    ) -> Ranking:
        """Orders the candidates of each query.

        Args:
            queries, documents, candidates: see `System.rerank`.
            score: maps a query and n rows of `documents` to scores (n,); −inf omits a document.
        """
        self.eval()
        row, results = {name: number for number, name in enumerate(documents["id"][:])}, {}
        for query in track(queries, "reranking", total=len(queries)):
            chosen = candidates[query["id"]]
            scores = score(query, [row[name] for name in chosen]).tolist() if chosen else []
            pairs = zip(chosen, scores, strict=True)
            results[query["id"]] = {name: value for name, value in pairs if value != -math.inf}
        return Ranking(results)
