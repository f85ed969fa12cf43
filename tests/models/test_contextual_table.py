"""NP decoding's table in a system's life: what it is made of, when it is made again."""

import pytest
import pytorch_lightning as pl
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


class Same(torch.utils.data.Dataset):
    """Two steps an epoch over one batch."""

    def __init__(self, batch):
        self.batch = batch

    def __len__(self):
        return 2

    def __getitem__(self, step):
        return self.batch


class Watch(pl.Callback):
    """The table at the end of every epoch, and its first row as the encoder sees it now."""

    def __init__(self):
        self.tables, self.live = [], []

    def on_train_epoch_start(self, trainer, system):
        self.live.append(system.head.is_contrastive(trainer.current_epoch))

    def on_train_epoch_end(self, trainer, system):
        self.tables.append(system.head.table.clone())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "made_again", "contrastive"),
    [
        (dict(form="base"), [], 0),
        (dict(form="async", rebuild_every=2), [2, 4], 0),
        (dict(form="contrastive", contrastive_epochs=3), [3], 3),
    ],
)
def test_the_table_is_made_again_when_it_is_due(tools, options, made_again, contrastive, tmp_path):
    system, watch = tools.make_docid("titles", head=tools.NP | options), Watch()
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = pl.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_epochs=5,
        enable_checkpointing=False,
        callbacks=[watch],
        **quiet,
    )
    trainer.fit(system, torch.utils.data.DataLoader(Same(tools.make_batch()), batch_size=None))
    pairs = zip(watch.tables, watch.tables[1:], strict=False)
    assert [n for n, (a, b) in enumerate(pairs, 1) if not torch.equal(a, b)] == made_again
    assert watch.live == [epoch < contrastive for epoch in range(5)]


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


def test_in_contrastive_epochs_the_table_is_the_batchs_own_and_learns(tools):
    """Two documents' titles, one row a token and one for the end; the table before comes back."""
    head = tools.NP | {"form": "contrastive", "contrastive_epochs": 1}
    system = tools.make_docid("titles", head=head)
    batch = system.targets(tools.make_batch())
    batch.document_index = torch.tensor([4, 1, 4])
    batch = system.targets(batch)
    before = system.head.table
    with system.head.batch_table(batch, 0):
        table = system.head.table
        assert system.head.row_tokens.tolist() == [9, 8, 7, 7, 7, 7, 8, EOS_ID]
        table[:-1].square().sum().backward()
    weight = system.backbone.encoder.block[0].layer[0].SelfAttention.q.weight
    assert weight.grad.abs().max() > 1e-3
    assert system.head.table is before and not before.requires_grad
    named = system.identifiers.sequences[4][:-1]
    text = torch.tensor([[*named, *tools.named_documents()["tokens"][4], EOS_ID]])
    with torch.no_grad():
        vectors = system.backbone.encoder(input_ids=text).last_hidden_state[0, :4]
    assert torch.allclose(table[3:7], vectors, atol=1e-5)


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
