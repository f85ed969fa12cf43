"""NP decoding's table in a system's life: what it is made of, when it is made again."""

import pytest
import torch

from gr_mvdr.tokenizers import EOS_ID


@pytest.mark.parametrize("form", ["base", "contrastive"])
def test_a_title_longer_than_what_is_encoded_learns_its_own_tokens(tools, form):
    documents = tools.named_documents()
    documents["title_tokens"][1] = [*range(20, 40)]
    system = tools.make_docid("titles", documents=documents, head=tools.NP | {"form": form})
    batch = system.targets(tools.make_batch())
    with system.head.batch_table(batch, 0):
        rows = system.head.labels(batch.document_ids, batch.document_index)
        tokens = system.head.row_tokens[rows]
        assert torch.equal(tokens[batch.document_mask], batch.document_ids[batch.document_mask])


@torch.no_grad()
def test_the_table_is_what_the_encoder_makes_of_titles_in_context(tools):
    """Titles of one token that no other has: a row is the encoder's vector of that token."""
    documents = tools.named_documents()
    documents["title_tokens"][:] = [[20 + row] for row in range(8)]
    documents["tokens"][1] = [21, 5, 6]  # begins with its title
    system = tools.make_docid("titles-np", documents=documents)
    for row, tokens in enumerate(documents["tokens"]):
        read = tokens if row == 1 else [20 + row, *tokens]
        ids = torch.tensor([[*read[:11], EOS_ID]])
        vector = system.backbone.encoder(input_ids=ids).last_hidden_state[0, 0]
        (own,) = (system.head.row_tokens == 20 + row).nonzero()[0]
        assert torch.allclose(system.head.table[own], vector, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_rows_of_other_relevant_documents_are_no_negatives_in_contrastive_epochs(tools, smoothing):
    """Query 0 asks for document 4, query 1 for 1, and 1 is relevant to query 0 as well."""
    head = tools.NP | {"form": "contrastive", "contrastive_epochs": 1}
    system = tools.make_docid("titles", head=head, label_smoothing=smoothing).double()
    batch = tools.make_batch((3, 6), (2, 2))
    batch.document_index = torch.tensor([4, 1])
    plain = system.loss(batch)
    batch.relevant = torch.tensor([[2], [0]])
    found = system.loss(batch)
    batch = system.targets(batch)
    with system.head.batch_table(batch, 0):
        queries = system.encode(batch.query_ids, batch.query_mask)
        rows = system.head.labels(batch.document_ids, batch.document_index)
        logits = tools.logits_of(system, queries, batch.query_mask, rows, batch.document_mask)
    # Rows 0 to 2 are document 1's title 9 8 7, 3 to 6 are 4's 7 7 7 8, the last is the end.
    of_query = [0] * 5 + [1] * 4
    labels = rows[batch.document_mask].tolist()
    assert labels == [3, 4, 5, 6, 7, 0, 1, 2, 7]
    losses = []
    for logit, query, label in zip(logits, of_query, labels, strict=True):
        seen = logit[3:] if query == 0 else logit
        log_probs = seen.log_softmax(0)
        hit = log_probs[label - 3 if query == 0 else label]
        losses.append(-(1 - smoothing) * hit - smoothing * log_probs.mean())
    assert torch.isclose(found, torch.stack(losses).mean(), rtol=1e-9)
    assert not torch.isclose(found, plain, rtol=1e-6)
    found.backward()
    weight = system.backbone.encoder.block[0].layer[0].SelfAttention.q.weight
    assert weight.grad.isfinite().all() and weight.grad.any()
