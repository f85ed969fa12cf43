"""T5-ColBERT: contextual vectors, query-to-document MaxSim (gr_as_mvdr Eq. 21, Appendix D)."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gr_mvdr.alignment import MaxSim
from gr_mvdr.batch import PairBatch
from gr_mvdr.losses import in_batch_cross_entropy, pairwise_cross_entropy
from gr_mvdr.max_sim import all_pairs_relevance
from models.multi_vector import MultiVectorSystem

LOSSES = {"in_batch": in_batch_cross_entropy, "pairwise": pairwise_cross_entropy}


class T5ColBERT(MultiVectorSystem):
    """Every query token chooses its most similar document token; no normalisation (Z = 1)."""

    alignment = MaxSim("query_to_document")

    def __init__(
        self,
        backbone: dict[str, Any],
        dimension: int,
        query_length: int,
        document_length: int,
        search: dict[str, Any],
        optimizer: dict[str, Any],
        loss: str = "in_batch",
        sentinel_id: int | None = None,
    ):
        """
        Args:
            backbone, dimension, query_length, document_length, search, optimizer: see
                `MultiVectorSystem`.
            loss: "in_batch" (Appendix D) or "pairwise" (the official ColBERTv1).
            sentinel_id: pad queries up to query_length with this token (T5's <extra_id_0>) and
                let it align like any other: ColBERT's query augmentation. None = off.
        """
        super().__init__(backbone, dimension, query_length, document_length, search, optimizer)
        self.save_hyperparameters()
        if loss not in LOSSES:
            raise ValueError(f"model.loss={loss}: must be one of {', '.join(LOSSES)}")

    def loss(self, batch: PairBatch) -> Tensor:
        """() contrastive loss over the batch's (documents, queries) relevance (Eq. 2)."""
        documents = self.encode(batch.document_ids, batch.document_mask)
        query_ids, query_mask = self.prepare_queries(batch.query_ids, batch.query_mask)
        queries = self.encode(query_ids, query_mask)
        scores = all_pairs_relevance(documents, batch.document_mask, queries, query_mask)
        return LOSSES[self.hparams.loss](scores, batch.document_index)

    def prepare_queries(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Fills a query up to query_length with sentinels that align like its own tokens."""
        if self.hparams.sentinel_id is None:
            return ids, mask
        missing = self.hparams.query_length - ids.shape[1]
        ids, mask = F.pad(ids, (0, missing)), F.pad(mask, (0, missing))
        return ids.masked_fill(~mask, self.hparams.sentinel_id), mask.new_ones(mask.shape)
