"""SPLADE: a text as learned weights of the vocabulary's terms (Formal et al. 2021, 2022).

It is Eq. 1 with term weights as one-dimensional vectors and COIL's alignment: A_ij = 1 if the terms
are equal. BM25 counts the terms of a text; SPLADE's encoder and embedding table weigh them, and
also weigh terms that do not occur in the text (expansion).
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from gr_mvdr.alignment import LexicalMaxSim
from gr_mvdr.backbones import check_length, hash_weights, load_backbone, read_states
from gr_mvdr.batch import PairBatch, batch_by_length, pad
from gr_mvdr.evaluation.bm25 import InvertedLists, Query
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.losses import expected_operations
from gr_mvdr.measures import Measured, costs
from gr_mvdr.options import AtLeast, NonNegative, Size, build, part
from gr_mvdr.progress import track
from gr_mvdr.ranks import encode_share, gather_batch, gather_rows
from gr_mvdr.relevance import PairAlignment, Scoring, at_least_float32
from gr_mvdr.token_vectors import Side, TokenVectors
from models.base import Table, hash_documents
from models.bm25 import LexicalSystem
from models.training import OptimizerOptions

_EXACT_MATCH = Scoring(LexicalMaxSim())  # a term occurs once in a text
_RAMP = 1 / 3  # share of the training in which the regulariser grows


@part("model")
class SPLADE(LexicalSystem):
    """w_v = max_i log(1 + ReLU(h_i · e_v + b_v)) over a text's tokens i (Formal et al. 2021).

    e are the encoder's input embeddings, b a bias for each term, and special tokens have no weight.
    With head="own", the states pass through the head of a pretrained masked language model first,
    e and b are its output table, and special tokens may have weight, as in published models.
    """

    share_of = "vocabulary term"
    needs_negatives = True
    ramp_steps = 0.0  # set when a training starts

    def __init__(
        self,
        backbone: dict[str, Any],
        query_length: Size,
        document_length: Size,
        loss: dict[str, Any],
        optimizer: OptimizerOptions,
        keep: dict[str, Size],
        regulariser: dict[str, NonNegative],
        initial_bias: Annotated[float, AtLeast(-100)] = 0.0,
        gradient_cache: Size | None = None,
        head: Literal["tied", "own"] = "tied",
        activation: Literal["relu", "log1p_relu"] = "relu",
        query_weights: bool = False,
    ):
        """
        Args:
            backbone: arguments of `load_backbone`.
            query_length, document_length: tokens kept of a text, special tokens included.
            loss: a loss of `gr_mvdr.losses`, as a dict with `_target_`.
            optimizer: options of `make_optimizer`.
            keep: side → number of a text's heaviest terms that scoring and search use; training
                uses all terms.
            regulariser: side → weight of `expected_operations` in the loss; it grows with the
                square of the step in the first third of the training (PAG).
            initial_bias: b before training.
            gradient_cache: texts encoded at once in training (`encode_share`); None = all.
            head: whether a pretrained model's own head gives the logits.
            activation: "log1p_relu" takes the logarithm twice (Shen et al. 2025).
            query_weights: whether a query's terms are its tokens, each with a learned weight,
                which needs no encoder (inference-free); it starts at 1.

        Raises:
            ValueError: the backbone's embeddings and states differ in width.
        """
        super().__init__()
        self.save_hyperparameters()
        self.loss_function, own = build("loss", loss), head == "own"
        self.encoder = load_backbone(**backbone, head="words" if own else None)
        lengths = {"query_length": query_length, "document_length": document_length}
        check_length(self.encoder, **lengths)
        config, self.template = self.encoder.config, self.encoder.template
        if own:
            self.encoder.get_output_embeddings().forward = _keep  # its logits never exist at once
        self.vocabulary_size, width = self._decoder.weight.shape
        if width != config.hidden_size and not own:
            rule = f"are {width} wide, must be as wide as its states, {config.hidden_size}"
            raise ValueError(f"backbone.name={backbone['name']}: its embeddings {rule}")
        # T5's embeddings are √d times as large as BERT's, and a tied T5 scales its logits so.
        self.scale = width**-0.5 if config.model_type in ("t5", "mt5", "umt5") else 1.0
        bias = getattr(self._decoder, "bias", None)
        new = nn.Parameter(torch.full((self.vocabulary_size,), float(initial_bias)))
        self.bias = new if bias is None else bias
        if query_weights:
            self.query_weights = nn.Parameter(torch.ones(self.vocabulary_size))
        words = torch.ones(self.vocabulary_size, dtype=torch.bool)
        words[[] if own else [*self.template.special, *self.template.skip]] = False
        self.register_buffer("words", words, persistent=False)

    @property
    def _decoder(self) -> nn.Module:
        """What holds the table of the terms, which is not a module of its own."""
        own = self.hparams.head == "own"
        model = self.encoder
        return model.get_output_embeddings() if own else model.get_input_embeddings()

    # Term weights -----------------------------------------------------------------------------

    def term_weights(self, ids: Tensor, mask: Tensor, side: Side = "document") -> Tensor:
        """Computes the weights (B, V) fp32 ≥ 0 of all terms from ids (B, L) and mask (B, L).

        The logits (B, L, V) never exist at once: each term's token with the largest logit is found
        first, and only positive logits are computed again with a gradient.
        """
        if side == "query" and self.hparams.query_weights:
            around = ids.new_tensor([*self.template.query, *self.template.suffix])
            text, place = (mask & ~torch.isin(ids, around)).nonzero(as_tuple=True)
            occurs = self.query_weights.new_zeros(len(ids), self.vocabulary_size)
            occurs[text, ids[text, place]] = 1
            return occurs * self.query_weights
        table = self._decoder.weight
        if self.hparams.head == "own":
            states = self.encoder(input_ids=ids, attention_mask=mask.long()).logits
        else:
            states = read_states(self.encoder, mask, input_ids=ids) * self.scale
        with torch.no_grad():
            per_text = [
                _largest(text, real, table) for text, real in zip(states, mask, strict=True)
            ]
            largest, tokens = map(torch.stack, zip(*per_text, strict=True))
            text, term = ((largest + self.bias > 0) & self.words).nonzero(as_tuple=True)
        products = states[text, tokens[text, term]] * table[term]
        logits = at_least_float32(products).sum(-1) + self.bias[term]
        values = logits.relu().log1p()
        if self.hparams.activation == "log1p_relu":
            values = values.log1p()
        return logits.new_zeros(largest.shape).index_put((text, term), values)

    def find_terms(self, ids: Tensor, mask: Tensor, side: Side) -> TokenVectors:
        """Finds the K heaviest terms of texts, in descending order, with weights as vectors
        (B, K, 1).

        A text without terms gets one term of weight 0.
        """
        weights = self.term_weights(ids, mask, side)
        counts = (weights > 0).sum(1).clamp(1, self.hparams.keep[side])
        heaviest = weights.topk(int(counts.max()))
        real = torch.arange(heaviest.values.shape[1], device=ids.device) < counts[:, None]
        return TokenVectors((heaviest.values * real).unsqueeze(2), real, heaviest.indices)

    # Training ---------------------------------------------------------------------------------

    def loss(self, batch: PairBatch) -> Tensor:
        """Computes the configured loss () of all pairs' relevance, plus the regularisers.

        The batches of all ranks are joined: each rank encodes its share and computes the whole
        loss.
        """
        batch, how = gather_batch(batch), (self.hparams.gradient_cache, self.device)
        host = batch.on_host
        texts = (host.document_ids, host.document_mask), (host.query_ids, host.query_mask)
        encode = [partial(self.term_weights, side=side) for side in ("document", "query")]
        documents, queries = (
            gather_rows(torch.cat(encode_share(one, *text, *how)))
            for one, text in zip(encode, texts, strict=True)
        )
        with torch.autocast(self.device.type, enabled=False):
            loss = self.loss_function(documents @ queries.T, batch)
        grown = min(1.0, self.global_step / self.ramp_steps) ** 2 if self.ramp_steps else 1.0
        for side, weights in (("query", queries), ("document", documents)):
            loss = loss + grown * self.hparams.regulariser[side] * expected_operations(weights)
        return loss

    def on_train_start(self) -> None:
        super().on_train_start()
        self.ramp_steps = _RAMP * self.trainer.estimated_stepping_batches

    # Given pairs ------------------------------------------------------------------------------

    def score(self, batch: PairBatch) -> Tensor:
        """Computes Σ_t w_q(t) · w_d(t) (B,) of each pair, over the kept terms."""
        return self.align(batch).score

    def align(self, batch: PairBatch) -> PairAlignment:
        """Sets S_ij = w_d(i) · w_q(j) of the kept terms, A_ij = 1 if they are equal, and Z = 1.

        The ids on both sides are terms, the heaviest first, instead of the texts' tokens.
        """
        texts = batch.document_ids[: len(batch)], batch.document_mask[: len(batch)]
        queries = self.find_terms(batch.query_ids, batch.query_mask, "query")
        return _EXACT_MATCH.align(self.find_terms(*texts, "document"), queries)

    # Search -----------------------------------------------------------------------------------

    def index(self, documents: Table, directory: str | Path | None = None) -> None:
        """Encodes the documents into inverted lists of their kept terms."""
        matrix = self._encode([*map(self.cut_document, documents["tokens"])], "document")
        terms = {term: term for term in range(self.vocabulary_size)}
        self.searcher = InvertedLists(documents["id"][:], terms, matrix.tocsc())
        if directory is not None:
            self.searcher.save(directory, **self._made_of(documents))

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """Opens what `index` wrote; see `System.open_index`."""
        self.searcher = InvertedLists.open(directory, **self._made_of(documents))

    def _made_of(self, documents: Table) -> dict[str, str]:
        return {"model": hash_weights(self), "collection": hash_documents(documents)}

    def query_terms(self, queries: Table) -> dict[str, Query]:
        """Returns query id → the weights of its kept terms."""
        rows = self._encode([*map(self.cut_query, queries["tokens"])], "query")
        terms = (dict(zip(r.indices.tolist(), r.data.tolist(), strict=True)) for r in rows)
        return dict(zip(queries["id"][:], terms, strict=True))

    @torch.inference_mode()
    def _encode(self, texts: list[list[int]], side: Side) -> Any:
        """Encodes texts as a scipy CSR matrix (texts, V) fp32 of the kept terms' weights.

        A row lists its heaviest term first.
        """
        from scipy.sparse import csr_matrix

        batches, packed = batch_by_length([*map(len, texts)]), []
        for rows in track(batches, f"encoding {side} texts"):
            ids, mask = (part.to(self.device) for part in pad([texts[row] for row in rows]))
            packed.append(self.eval().find_terms(ids, mask, side).to("cpu").float().pack())
        weights, counts, terms, *_ = map(list, zip(*packed, strict=True))
        starts = np.append(0, torch.cat(counts).cumsum(0))
        entries = torch.cat(weights)[:, 0].numpy(), torch.cat(terms).numpy(), starts
        matrix = csr_matrix(entries, (len(texts), self.vocabulary_size))
        matrix.eliminate_zeros()  # of texts without a term
        return matrix[np.argsort(np.concatenate(batches))]

    def search_fidelity(self, queries: Table, ranking: Ranking, depth: int) -> list[Measured]:
        """Returns the costs of a search; `shared_terms` is Formal et al.'s FLOPS, the mean number
        of terms that a query and a document share, over all pairs."""
        lists = self.searcher
        spent, asked, size = lists.costs, lists.costs.queries, len(lists.ids)
        terms = {"shared_terms": spent.scored_tokens / asked / size}
        terms |= {"query_terms": lists.query_terms / asked}
        return spent.metrics() + costs(terms | {"document_terms": lists.matrix.nnz / size})


def _keep(states: Tensor) -> Tensor:
    return states


def _largest(states: Tensor, mask: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each term's largest logit (V,) over a text's tokens (L, d), and its token's place."""
    return (table @ states.T).masked_fill(~mask, -torch.inf).max(1)
