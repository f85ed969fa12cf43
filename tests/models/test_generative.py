"""Laws of every generative system, whatever its identifiers and its head.

Under the plain head Hugging Face's own T5 is the reference; under any, decoding step by step.
"""

import pytest
import torch

from gr_mvdr.batch import PairBatch, pad


def labels_of(batch):
    return batch.document_ids.masked_fill(~batch.document_mask, -100)


def hugging_face(seal, batch):
    """The reference: T5ForConditionalGeneration's own loss and logits."""
    return seal.backbone(
        input_ids=batch.query_ids,
        attention_mask=batch.query_mask.long(),
        labels=labels_of(batch),
    )


def expected_log_probs(seal, batch):
    """(B, M) log p of each document token, from Hugging Face's logits."""
    log_probs = hugging_face(seal, batch).logits.log_softmax(-1)
    return log_probs.gather(2, batch.document_ids.unsqueeze(2)).squeeze(2)


@torch.no_grad()
def test_several_targets_a_query_follow_one_another(seal, tools):
    targets = tools.make_batch((1,) * 6, (5, 2, 7, 3, 4, 6), seed=8)
    few = tools.make_batch()
    batch = PairBatch(
        few.query_ids, few.query_mask, targets.document_ids, targets.document_mask, torch.arange(3)
    )
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    repeated = PairBatch(
        few.query_ids[rows], few.query_mask[rows], targets.document_ids, targets.document_mask, rows
    )
    assert torch.isclose(seal.loss(batch), hugging_face(seal, repeated).loss, atol=1e-5)


# Every head over the decoder: batches, padding and caches change nothing -----------------------


def last_state(system, query, inputs):
    """(1, d) the decoder's state after inputs (1, t, d), for a query (1, N), without padding."""
    if system.backbone.config.is_encoder_decoder:
        given = dict(input_ids=query, decoder_inputs_embeds=inputs, output_hidden_states=True)
        return system.backbone(**given).decoder_hidden_states[-1][:, -1]
    before = system.backbone.get_input_embeddings()(query[:, :-1])  # its last token is the start
    given = dict(inputs_embeds=torch.cat([before, inputs], 1), use_cache=False)
    return system.backbone(**given, output_hidden_states=True).hidden_states[-1][:, -1]


def step_by_step(system, batch):
    """Log-probabilities of the real target rows, pair by pair and position by position.

    One pair alone, no padding, no cache: only the head's `logits` after a given prefix.
    """
    head, found, batch = system.head, [], system.targets(batch)
    labels = head.labels(batch.document_ids, batch.document_index)
    for pair, length in enumerate(batch.document_mask.sum(1).tolist()):
        query = batch.query_ids[[pair]][:, batch.query_mask[pair]]
        rows, inputs = labels[pair, :length], head.start_vector[None, None]
        for at, row in enumerate(rows):
            context = head.context(inputs)
            context = None if context is None else context[:, -1]
            logits = head.logits(last_state(system, query, inputs), context, torch.tensor([at]))
            found.append((pair, logits.log_softmax(-1)[0, row]))
            inputs = torch.cat([inputs, head.embed(row)[None, None]], 1)
    return found


@torch.no_grad()
def test_the_loss_is_that_of_decoding_step_by_step(system, tools):
    batch = tools.make_batch()
    expected = step_by_step(system, batch)
    loss = -torch.stack([score for _, score in expected]).mean()
    assert torch.isclose(system.loss(batch), loss, atol=1e-4)
    targets = system.targets(batch)
    scores = system.token_log_probs(
        system.encode(batch.query_ids, batch.query_mask),
        batch.query_mask,
        targets.document_ids,
        targets.document_mask,
        targets.document_index,
    )
    wanted = torch.stack([score for _, score in expected])
    assert torch.allclose(scores[targets.document_mask], wanted, atol=1e-4)


@torch.no_grad()
def test_cached_decoding_under_any_head_equals_decoding_without_a_cache(system, tools):
    """Hypotheses that split, die, swap and change in number; the decoder reads tokens."""
    system, batch = system.double(), tools.make_batch()
    head, step = system.head, system.decoding_step(batch.query_ids, batch.query_mask)
    scores = step(torch.zeros(3, dtype=torch.int64), torch.arange(3)).of_rows
    queries, inputs = torch.arange(3), head.start_vector.expand(3, 1, -1)
    for parents in ([0, 0, 1, 2, 2], [4, 1, 0], [2, 0, 0, 1]):
        # Any tokens that are allowed here, another one for every row.
        best = head.by_token(scores).topk(3).indices
        tokens = torch.stack([best[parent, n % 3] for n, parent in enumerate(parents)])
        parents = torch.tensor(parents)
        read = head.expected_inputs(scores, parents, tokens)
        queries, inputs = queries[parents], torch.cat([inputs[parents], read[:, None]], 1)
        scores = step(tokens, parents).of_rows
        asked = [batch.query_ids[[q]][:, batch.query_mask[q]] for q in queries.tolist()]
        each = zip(asked, inputs.split(1), strict=True)
        hidden = torch.cat([last_state(system, *one) for one in each])
        context = head.context(inputs)
        at = torch.full_like(queries, inputs.shape[1] - 1)
        logits = head.logits(hidden, None if context is None else context[:, -1], at)
        assert torch.allclose(scores, logits.log_softmax(-1), atol=1e-10)


# Reranking by segments --------------------------------------------------------------------------


POOLED = {"sum": sum, "mean": lambda scores: sum(scores) / len(scores), "max": max}


@pytest.mark.parametrize(("pool", "at_once"), [("sum", 1), ("mean", 4), ("max", 512)])
@torch.no_grad()
def test_rerank_pools_segment_scores(tools, documents, queries, monkeypatch, pool, at_once):
    monkeypatch.setattr("models.t5_seal._DECODE_BATCH", at_once)
    seal = tools.sharpen(tools.make_seal())
    candidates = {"q0": ["d1", "d3"], "q1": ["d6"], "q2": ["d5", "d0", "d2"]}
    windows = lambda query, row: [row["tokens"][s : s + 4] for s in range(0, len(row["tokens"]), 4)]  # noqa: E731
    heard = lambda query, row: windows(read.append(query) or query, row)  # noqa: E731
    queries.columns["text"], read = [" a  b " * 400, "a b c d e f g  h i", " a  b "], []
    ranking = seal.rerank(queries, documents, candidates, segments=heard, pool=pool)
    # At most `query_length` = 8 words, and no other change.
    assert [*dict.fromkeys(read)] == [
        (" a  b " * 4).rstrip(" ") + "  ",
        "a b c d e f g  h ",
        " a  b ",
    ]
    for query, chosen in candidates.items():
        assert set(ranking.documents(query)) == set(chosen)
        for document in chosen:
            tokens = seal.prepare_query(queries[int(query[1])]["tokens"])
            scores = []
            for segment in windows("", documents[int(document[1])]):
                pair = PairBatch(*pad([tokens]), *pad([segment]), torch.tensor([0]))
                scores.append(expected_log_probs(seal, pair).mean().item())
            assert ranking.scores(query)[document] == pytest.approx(POOLED[pool](scores), abs=1e-4)
