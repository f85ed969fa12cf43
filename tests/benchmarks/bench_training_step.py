"""Benchmark of a ColBERT's training step and of its loss, next to sentence-transformers'.

    python -m tests.benchmarks.bench_training_step [BERT]

64 queries of 32 tokens, 64 documents of 160, d = 128, the small T5 of conf/backbone with 32,128
rows. Both libraries train the same
encoder on the same ids, and their losses and gradients are compared before anything is timed.
BERT is the folder of a pretrained encoder: its texts have the lengths of SQuAD's.
"""

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from sentence_transformers.multi_vector_encoder.scoring import colbert_scores
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from gr_mvdr.alignment import MaxSim
from gr_mvdr.batch import PairBatch
from gr_mvdr.heads.plain import Head, table_cross_entropy
from gr_mvdr.relevance import Scoring, all_pairs_relevance
from gr_mvdr.token_vectors import TokenVectors
from models.multi_vector import MultiVector
from tests.benchmarks.rows import compare

PAIRS, QUERY, DOCUMENT, DIMENSION, VOCABULARY = 64, 32, 160, 128, 32_128
SHAPE = dict(vocab_size=VOCABULARY, d_model=128, d_kv=32, d_ff=512, num_layers=2, num_heads=4)
LARGEST_ERROR = 1e-4
OWN = torch.arange(PAIRS)


def draw_batch(vocabulary: int, padded: bool) -> PairBatch:
    """Pairs of texts, without padding or of the lengths of SQuAD's: 14 ± 4 and 150 ± 60."""
    sides = []
    for length, mean, deviation in ((QUERY, 14, 4), (DOCUMENT, 150, 60)):
        ids = torch.randint(5, vocabulary, (PAIRS, length))
        lengths = torch.full((PAIRS, 1), length)
        if padded:
            lengths = torch.normal(float(mean), float(deviation), (PAIRS, 1)).clamp(5, length)
        mask = torch.arange(length) < lengths
        sides += [ids[:, mask.any(0)], mask[:, mask.any(0)]]
    return PairBatch(*sides, OWN)


def our_loss(documents: TokenVectors, queries: TokenVectors) -> Tensor:
    return F.cross_entropy(all_pairs_relevance(documents, queries, Scoring(MaxSim())).T, OWN)


def their_loss(documents: TokenVectors, queries: TokenVectors) -> Tensor:
    """As `MultiVectorMultipleNegativesRankingLoss` computes it without hard negatives."""
    sides = queries.vectors, documents.vectors.unsqueeze(1), queries.mask, documents.mask[:, None]
    return F.cross_entropy(colbert_scores(*sides), OWN)


def unit_vectors(length: int) -> TokenVectors:
    vectors = F.normalize(torch.randn(PAIRS, length, DIMENSION), dim=-1).requires_grad_()
    ids = torch.zeros(PAIRS, length, dtype=torch.int64)
    return TokenVectors(vectors, ids == 0, ids)


def loss_steps() -> dict[str, Callable[[], list[Tensor]]]:
    """Each returns the loss and both gradients."""
    sides = unit_vectors(DOCUMENT), unit_vectors(QUERY)
    vectors = [side.vectors for side in sides]

    def of(loss: Callable[[TokenVectors, TokenVectors], Tensor]) -> Callable[[], list[Tensor]]:
        def step() -> list[Tensor]:
            found = loss(*sides)
            return [found.detach(), *torch.autograd.grad(found, vectors)]

        return step

    documents, queries = (part.detach().flatten(0, 1) for part in vectors)
    return {
        "the product alone": lambda: [queries @ documents.T],
        "ours": of(our_loss),
        "sentence-transformers": of(their_loss),
    }


def training_steps(
    dtype: torch.dtype, name: str | None = None
) -> dict[str, Callable[[], list[Tensor]]]:
    """Each returns the loss; the encoders alone return nothing."""
    own = dict(attention="sdpa") if name else dict(attention="eager", shape=SHAPE)
    system = MultiVector(
        dict(name=name, dropout_rate=0.0, **own),
        dimension=DIMENSION,
        query_length=QUERY,
        document_length=DOCUMENT,
        alignment={"_target_": "gr_mvdr.alignment.MaxSim"},
        loss={"_target_": "gr_mvdr.losses.InBatchCrossEntropy"},
        search={},
        optimizer={"learning_rate": 1e-12, "weight_decay": 0.0, "schedule": "constant"},
    ).train()
    backbone = system.encoder.backbone
    batch = draw_batch(backbone.config.vocab_size, padded=name is not None)
    optimizer = system.configure_optimizers()
    theirs = torch.optim.AdamW(system.parameters(), 0.0)  # as transformers' trainer builds it

    def encode() -> tuple[TokenVectors, TokenVectors]:
        documents = system.encode_documents(batch.document_ids, batch.document_mask)
        return documents, system.encode_queries(batch.query_ids, batch.query_mask)

    def step(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> list[Tensor]:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            found = loss()
        found.backward()
        torch.nn.utils.clip_grad_norm_(system.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return [found.detach()]

    def encoders() -> list[Tensor]:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            found = [part.vectors for part in encode()]
        torch.autograd.backward(found, [torch.ones_like(part) for part in found])
        system.zero_grad()
        return []

    def their_step() -> list[Tensor]:
        packs = backbone.config._attn_implementation
        backbone.set_attn_implementation(own["attention"])  # padded, as everywhere else
        found = step(lambda: their_loss(*encode()), theirs)
        backbone.set_attn_implementation(packs)
        return found

    return {
        "the encoders alone": encoders,
        "ours": lambda: step(lambda: system.loss(batch), optimizer),
        "sentence-transformers": their_step,
    }


def report(name: str, steps: dict[str, Callable[[], list[Tensor]]], error: float) -> None:
    """Compares what two libraries return, then times all in turns."""
    for ours, theirs in zip(steps["ours"](), steps["sentence-transformers"](), strict=True):
        assert (ours - theirs).abs().max() <= error * theirs.abs().max(), name
    compare(name, steps)


def table_steps(size: int) -> dict[str, Callable[[], object]]:
    """The cross-entropy over an output table, and its three matrix products alone."""
    shape = T5Config(vocab_size=VOCABULARY, d_model=size, num_layers=1, d_ff=64, d_kv=32)
    head = Head(T5ForConditionalGeneration(shape))
    states = torch.randn(640, size, requires_grad=True), None, torch.zeros(640, dtype=torch.int64)
    labels = torch.randint(VOCABULARY, (640,))
    table, hidden = head.output_table.detach(), states[0].detach()

    def ours() -> object:
        loss = table_cross_entropy(head, states, labels)
        return torch.autograd.grad(loss, [states[0], head.output_table])

    def products() -> object:
        logits = hidden @ table.T
        return logits @ table, logits.T @ hidden

    return {"ours": ours, "its products alone": products}


def main(bert: str | None = None) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if bert:
        report("a T5-ColBERT step from MiniLM", training_steps(torch.float32, bert), LARGEST_ERROR)
        return
    report("MaxSim loss", loss_steps(), LARGEST_ERROR)
    report("a T5-ColBERT step, fp32", training_steps(torch.float32), LARGEST_ERROR)
    # Their similarities are in bf16 under autocast.
    report("a T5-ColBERT step, bf16", training_steps(torch.bfloat16), 0.05)
    for size in (128, 512):
        compare(
            f"cross-entropy over {VOCABULARY:,} tokens, d = {size}", table_steps(size), bar=1.25
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
