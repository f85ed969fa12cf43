"""Every head over the decoder: batches, padding and caches change nothing."""

import torch


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
            states = system.backbone(
                input_ids=query, decoder_inputs_embeds=inputs, output_hidden_states=True
            ).decoder_hidden_states[-1]
            context = head.context(inputs)
            context = None if context is None else context[:, -1]
            logits = head.logits(states[:, -1], context, torch.tensor([at]))
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
    scores = system.sequence_log_probs(
        system.encode(batch.query_ids, batch.query_mask),
        batch.query_mask,
        targets.document_ids,
        targets.document_mask,
        targets.document_index,
    )
    for pair, score in enumerate(scores):
        mean = torch.stack([found for own, found in expected if own == pair]).mean()
        assert torch.isclose(score, mean, atol=1e-4)


@torch.no_grad()
def test_cached_decoding_under_any_head_equals_decoding_without_a_cache(system, tools):
    """Hypotheses that split, die, swap and change in number; the decoder reads tokens."""
    system, batch = system.double(), tools.make_batch()
    head, step = system.head, system.decoding_step(batch.query_ids, batch.query_mask)
    scores = step.row_scores(torch.zeros(3, dtype=torch.int64), torch.arange(3))
    queries, inputs = torch.arange(3), head.start_vector.expand(3, 1, -1)
    for parents in ([0, 0, 1, 2, 2], [4, 1, 0], [2, 0, 0, 1]):
        # Any tokens that may stand here, another one for every row.
        best = head.by_token(scores).topk(3).indices
        tokens = torch.stack([best[parent, n % 3] for n, parent in enumerate(parents)])
        parents = torch.tensor(parents)
        read = head.expected_inputs(scores, parents, tokens)
        queries, inputs = queries[parents], torch.cat([inputs[parents], read[:, None]], 1)
        scores = step.row_scores(tokens, parents)
        hidden = system.backbone.decoder(
            inputs_embeds=inputs,
            encoder_hidden_states=system.encode(batch.query_ids, batch.query_mask)[queries],
            encoder_attention_mask=batch.query_mask[queries].long(),
            use_cache=False,
        ).last_hidden_state[:, -1]
        context = head.context(inputs)
        at = torch.full_like(queries, inputs.shape[1] - 1)
        logits = head.logits(hidden, None if context is None else context[:, -1], at)
        assert torch.allclose(scores, logits.log_softmax(-1), atol=1e-10)
