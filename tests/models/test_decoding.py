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
def test_cached_decoding_under_any_head_equals_teacher_forcing(system, tools):
    """Rows that split, die, swap and change in number, each along its token's best row."""
    batch, head = tools.make_batch(), system.head
    step = system.decoding_step(batch.query_ids, batch.query_mask)
    scores = step.row_scores(torch.zeros(3, dtype=torch.int64), torch.arange(3))
    queries, paths = torch.arange(3), torch.empty(3, 0, dtype=torch.int64)
    for parents in ([0, 0, 1, 2, 2], [4, 1, 0], [2, 0, 0, 1]):
        # Any tokens that may stand here, another one for every row.
        tokens = torch.stack(
            [
                step.head.by_token(scores[[p]])[0].topk(3).indices[n % 3]
                for n, p in enumerate(parents)
            ]
        )
        parents = torch.tensor(parents)
        rows = head.best_rows(scores, parents, tokens)
        assert torch.equal(scores[parents, rows], head.by_token(scores)[parents, tokens]), (
            "the best row has the token's score"
        )
        queries = queries[parents]
        paths = torch.cat([paths[parents], rows[:, None]], 1)
        scores = step.row_scores(tokens, parents)
        encoded = system.encode(batch.query_ids[queries], batch.query_mask[queries])
        longer = torch.cat([paths, paths[:, :1]], 1)  # the last row is predicted, not read
        output, context = system.decode(encoded, batch.query_mask[queries], longer)
        at = torch.full((len(paths),), paths.shape[1])
        context = None if context is None else context[:, -1]
        logits = head.logits(output.last_hidden_state[:, -1], context, at)
        assert torch.allclose(scores, logits.log_softmax(-1), atol=1e-4)
