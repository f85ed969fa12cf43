"""Docid systems: all verbs agree on a score, and identifiers live with the collection."""

from contextlib import nullcontext

import pytest
import pytorch_lightning as pl
import torch

from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.identifiers import collection_hash
from gr_mvdr.ranking import Ranking
from gr_mvdr.tokenizers import EOS_ID
from models.docid import Docid

pytest.importorskip("sklearn")
PAWA_KINDS = ["semantic-pawa", "shared-pawa", "titles-nci"]
ONE_ROW_KINDS = ["atomic", "naive", "semantic", "titles", *PAWA_KINDS]
KINDS = [*ONE_ROW_KINDS, "titles-np"]


def pairs_of(system, query, rows):
    """A query with each of some documents; the batch's document side is not looked at."""
    ids, mask = pad([system.prepare_query(query)] * len(rows))
    junk = torch.full((len(rows), 2), 5)
    return PairBatch(ids, mask, junk, junk > 0, torch.tensor(rows))


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.mark.parametrize("penalty", [0.0, 0.8])
def test_every_verb_gives_a_pair_the_same_score(tools, queries, kind, penalty, tmp_path):
    documents = tools.named_documents()
    system = tools.make_docid(kind, length_penalty=penalty)
    system.index(documents, tmp_path)
    found = system.retrieve(queries, 100)
    everything = {query: documents["id"] for query in queries["id"]}
    reranked = system.rerank(queries, documents, everything)
    matrix = system.score_all(queries["tokens"])
    assert matrix.shape == (8, 3)
    for number, query in enumerate(queries["id"]):
        batch = pairs_of(system, queries["tokens"][number], list(range(8)))
        scores = system.score(batch)
        expected = {f"d{row}": score for row, score in enumerate(scores.tolist())}
        assert scores.std() > 0.01 and scores.isfinite().all()
        assert found.scores(query) == pytest.approx(expected, abs=1e-4)
        assert reranked.scores(query) == pytest.approx(expected, abs=1e-4)
        assert torch.allclose(matrix[:, number], scores, atol=1e-4)
        assert torch.allclose(system.align(batch).score, scores, atol=1e-5)


@pytest.mark.parametrize("kind", ONE_ROW_KINDS)
def test_a_score_is_the_sum_of_the_targets_log_probabilities(tools, queries, kind):
    """Where every token has one row, teacher forcing along it is all that a score is."""
    system = tools.make_docid(kind)
    batch = system.targets(pairs_of(system, queries["tokens"][0], [0, 2, 5]))
    encoded = system.encode(batch.query_ids, batch.query_mask)
    sides = batch.document_ids, batch.document_mask, batch.document_index
    expected = system.token_log_probs(encoded, batch.query_mask, *sides).sum(1)
    assert torch.allclose(system.score(batch), expected, atol=1e-4)


@torch.no_grad()
def test_a_score_under_several_rows_a_token_follows_the_best_row(tools, queries):
    """By hand for one title of two tokens and its end: the best row, then the best after it."""
    system = tools.make_docid("titles-np")
    head = system.head
    counts = torch.bincount(head.row_tokens)
    assert counts[9] == counts[8] == 2 and counts[EOS_ID] == 1
    batch = pairs_of(system, queries["tokens"][0], [0])
    encoded, inputs, total = system.encode(batch.query_ids, batch.query_mask), [], 0.0
    for token in [9, 8, EOS_ID]:
        inputs = torch.stack([head.start_vector, *inputs])
        hidden = system.backbone.decoder(
            inputs_embeds=inputs[None], encoder_hidden_states=encoded, use_cache=False
        ).last_hidden_state[0, -1:]
        scores = (hidden @ head.table.T * 16**-0.5).log_softmax(-1)[0]
        best = scores.masked_fill(head.row_tokens != token, -torch.inf).argmax()
        total += scores[best].item()
        inputs = [*inputs[1:], head.table[best]]
    assert system.score(batch).item() == pytest.approx(total, abs=1e-4)


def test_a_search_finds_identifiers_only(tools, queries, kind, tmp_path):
    system = tools.make_docid(kind, beam_size=3)
    system.index(tools.named_documents(), tmp_path)
    found = system.search(queries["tokens"])
    known = set(map(tuple, system.identifiers.sequences))
    prefixes = {key[:length] for key in known for length in range(1, len(key) + 1)}
    for number in range(len(queries)):
        final = [tuple(tokens) for tokens, _ in found.final.of(number)]
        assert len(final) >= 3 and set(final) <= known and len(set(final)) == len(final)
        assert {tuple(tokens) for tokens, _ in found.candidates.of(number)} <= prefixes
        assert all(map(system.is_identifier, final))
        assert len(system.documents_of(found, number)) >= len(final)
    assert not system.is_identifier([]) and not system.is_identifier([3, 3])
    for row, sequence in enumerate(system.identifiers.sequences):
        expected = {tuple(sequence[:length]) for length in range(1, len(sequence) + 1)}
        assert system.gold_prefixes(row) == expected


@pytest.mark.parametrize("kind", ["titles", "titles-np"])
def test_documents_of_one_title_are_all_found_in_their_order(tools, queries, kind, tmp_path):
    system = tools.make_docid(kind)
    system.index(tools.named_documents(), tmp_path)
    for query in system.retrieve(queries, 100).query_ids:
        ranking = system.retrieve(queries, 100)
        order, scores = ranking.documents(query), ranking.scores(query)
        assert order.index("d7") == order.index("d6") + 1
        assert 0 < scores["d6"] - scores["d7"] < 1e-9
    ranking.write(tmp_path / "run.trec", "x")
    assert Ranking.read(tmp_path / "run.trec").documents(query) == order


def test_every_label_stands_for_its_token(tools, kind):
    system = tools.make_docid(kind)
    batch = system.targets(tools.make_batch())
    rows = system.head.labels(batch.document_ids, batch.document_index)
    row_tokens = system.head.row_tokens
    tokens = rows if row_tokens is None else row_tokens[rows]
    assert torch.equal(tokens[batch.document_mask], batch.document_ids[batch.document_mask])


def test_an_index_may_be_made_once_more(tools, kind, tmp_path):
    """A run that was interrupted after indexing does so when it is resumed."""
    documents = tools.named_documents()
    system = tools.make_docid(kind, documents=documents, known=range(6))
    system.index(documents, tmp_path)
    again = tools.make_docid(kind, documents=documents, known=range(6))
    again.index(documents, tmp_path)
    assert again.identifiers == system.identifiers
    assert (again.searcher.documents == system.searcher.documents).all()


def test_queries_searched_together_or_alone_find_the_same(tools, queries, kind, monkeypatch):
    system = tools.make_docid(kind, beam_size=4)
    system.index(tools.named_documents())
    together = system.retrieve(queries, 5)
    monkeypatch.setattr("models.generative._QUERY_BATCH", 1)
    monkeypatch.setattr("models.docid._DECODE_BATCH", 2)
    alone = system.retrieve(queries, 5)
    for query in queries["id"]:
        assert together.documents(query) == alone.documents(query)
        assert together.scores(query) == pytest.approx(alone.scores(query), abs=1e-4)
    matrix = system.score_all(queries["tokens"])
    monkeypatch.undo()
    assert torch.allclose(matrix, system.score_all(queries["tokens"]), atol=1e-4)


# Identifiers -----------------------------------------------------------------------------------


def test_identifiers_are_kept_and_read_back(tools, kind, tmp_path):
    first = tools.make_docid(kind, directory=tmp_path / "identifiers")
    again = tools.make_docid(kind, directory=tmp_path / "identifiers")
    assert again.identifiers == first.identifiers
    assert again.identifiers.hash == first.identifiers.hash
    assert again.vocabulary_size == first.vocabulary_size
    statistics = tmp_path / "identifiers/statistics.json"
    assert '"assigned": 8' in statistics.read_text()
    assert list(tmp_path.iterdir()) == [tmp_path / "identifiers"]


def test_identifiers_of_another_collection_are_refused(tools, kind, tmp_path):
    documents = tools.named_documents()
    tools.make_docid(kind, directory=tmp_path / "identifiers")
    fewer = documents.select(range(7))
    here, there = (collection_hash(table["id"]) for table in (fewer, documents))
    with pytest.raises(ValueError, match=f"{there}.*{here}"):
        tools.make_docid(kind, documents=fewer, directory=tmp_path / "identifiers")


def test_identifiers_of_other_settings_are_refused(tools, tmp_path):
    tools.make_docid("semantic", directory=tmp_path / "tree")
    with pytest.raises(ValueError, match=r"model.identifiers.k=3: .* made with k=2"):
        other = tools.SEMANTIC | {"k": 3}
        tools.make_docid("semantic", identifiers=other, directory=tmp_path / "tree")
    tools.make_docid("naive", directory=tmp_path / "digits")
    with pytest.raises(ValueError, match="holds NaiveDocids, not AtomicDocids"):
        tools.make_docid("atomic", directory=tmp_path / "digits")


def test_identifiers_of_another_vocabulary_are_refused(tools, tmp_path):
    tools.make_docid("semantic", directory=tmp_path / "tree")
    larger = dict(name=None, dropout_rate=0.0, shape=tools.SHAPE | {"vocab_size": 61})
    with pytest.raises(ValueError, match="60.*61"):
        tools.make_docid("semantic", backbone=larger, directory=tmp_path / "tree")


def checkpoint_of(system):
    checkpoint = {"state_dict": system.state_dict()}
    system.on_save_checkpoint(checkpoint)
    return checkpoint


def load(system, checkpoint):
    system.on_load_checkpoint(checkpoint)
    system.load_state_dict(checkpoint["state_dict"])


def test_a_checkpoint_gives_the_system_back(tools, queries, kind, tmp_path):
    first = tools.make_docid(kind, directory=tmp_path / "identifiers")
    with torch.no_grad():
        for weight in first.parameters():
            weight.add_(0.1)
    torch.save(checkpoint_of(first), tmp_path / "last.ckpt")
    again = tools.make_docid(kind, directory=tmp_path / "identifiers")
    batch = pairs_of(first, queries["tokens"][0], [0, 1, 2])
    assert not torch.allclose(again.score(batch), first.score(batch), atol=1e-3)
    load(again, torch.load(tmp_path / "last.ckpt", weights_only=True))
    assert torch.equal(again.score(batch), first.score(batch))


def test_a_checkpoint_of_other_identifiers_is_refused(tools):
    first = tools.make_docid("semantic")
    other = tools.make_docid("semantic", identifiers=tools.SEMANTIC | {"leaf_size": 1})
    with pytest.raises(ValueError, match=f"{first.identifiers.hash}.*{other.identifiers.hash}"):
        load(other, checkpoint_of(first))


def test_a_token_table_of_another_collection_is_refused(tools):
    documents = tools.named_documents()
    fewer = documents.select(range(7))
    here, there = (collection_hash(table["id"]) for table in (fewer, documents))
    with pytest.raises(ValueError, match=f"token table .*{there}.*{here}"):
        load(
            tools.make_docid("titles-np", documents=fewer),
            checkpoint_of(tools.make_docid("titles-np")),
        )


# Documents that arrive after training ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["naive", "semantic", "titles", "semantic-pawa", "titles-np"])
def test_new_documents_are_named_and_found(tools, queries, kind, tmp_path):
    documents, known = tools.named_documents(), [0, 1, 3, 5, 6, 7]
    system = tools.make_docid(kind, documents=documents, known=known)
    before = {row: system.identifiers.of(row) for row in known}
    assert system.identifiers.of(2) == system.identifiers.of(4) == []
    with pytest.raises(ValueError, match="document 'd2' has no identifier, index the documents"):
        system.score(pairs_of(system, [5], [0, 2]))
    system.index(documents, tmp_path)
    assert {row: system.identifiers.of(row) for row in known} == before
    assert all(system.identifiers.sequences)
    assert '"assigned": 8' in (tmp_path / "identifiers/statistics.json").read_text()
    found = system.retrieve(queries, 100)
    for number, query in enumerate(queries["id"]):
        assert len(found.documents(query)) == 8, "beam 20 finds all"
        scores = system.score(pairs_of(system, queries["tokens"][number], [2, 4]))
        mine = [found.scores(query)[document] for document in ("d2", "d4")]
        assert scores.isfinite().all() and mine == pytest.approx(scores.tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", ["semantic", "titles-np"])
def test_a_collection_may_grow_at_its_end(tools, queries, kind, tmp_path):
    documents = tools.named_documents()
    system = tools.make_docid(kind, documents=documents.select(range(6)))
    before = list(system.identifiers.sequences)
    system.index(documents, tmp_path)
    assert system.identifiers.sequences[:6] == before
    assert {"d6", "d7"} <= set(system.retrieve(queries, 100).documents("q0"))


def test_a_new_document_without_an_atomic_docid_is_left_out(tools, queries, tmp_path):
    documents = tools.named_documents()
    system = tools.make_docid("atomic", documents=documents, known=range(6))
    assert system.vocabulary_size == 60 + 6
    system.index(documents, tmp_path)
    everything = {query: documents["id"] for query in queries["id"]}
    for ranking in (
        system.retrieve(queries, 100),
        system.rerank(queries, documents, everything),
    ):
        assert {len(ranking.documents(query)) for query in queries["id"]} == {6}
        assert not {"d6", "d7"} & set(ranking.documents("q1"))
    lacking = system.score_all(queries["tokens"]).isinf()
    assert lacking[6:].all() and not lacking[:6].any()
    none = system.rerank(queries, documents, {query: ["d7"] for query in queries["id"]})
    assert len(none) == 3 and none.documents("q0") == []


# What a step may move --------------------------------------------------------------------------


def step(system, batch):
    """One optimizer step; the tables before and after."""
    tables = {
        "shared": system.backbone.shared.weight,
        "lm_head": system.backbone.lm_head.weight,
        "encoder": system.backbone.encoder.block[0].layer[0].SelfAttention.q.weight,
    }
    before = {name: table.detach().clone() for name, table in tables.items()}
    optimizer = system.configure_optimizers()
    system.loss(batch).backward()
    optimizer.step()
    return {name: (before[name], table.detach()) for name, table in tables.items()}


@pytest.mark.parametrize("untied", [False, True])
@pytest.mark.parametrize("kind", ["semantic", "semantic-pawa", "titles"])
def test_only_new_rows_are_trained_where_the_config_says_so(tools, kind, untied, tmp_path):
    options = dict(backbone=tools.untied_backbone(tmp_path / "t5")) if untied else {}
    strong = tools.OPTIMIZER | {"weight_decay": 0.5}
    system = tools.make_docid(kind, trained_rows="new", optimizer=strong, **options)
    moved = step(system, tools.make_batch())
    assert (moved["encoder"][0] != moved["encoder"][1]).all()
    for table in ("shared", "lm_head"):
        before, after = moved[table]
        assert torch.equal(before[:60], after[:60]), table
        if kind != "titles" and not (table == "lm_head" and kind == "semantic-pawa"):
            sequences = [system.identifiers.of(row) for row in range(3)]
            # The last token of an identifier is predicted and never read.
            read = table == "shared" and (untied or kind == "semantic-pawa")
            rows = sorted({t for tokens in sequences for t in tokens[: -1 if read else None]})
            assert rows and (before[rows] != after[rows]).any(1).all(), table


def test_all_rows_are_trained_by_default(tools):
    before, after = step(tools.make_docid("semantic"), tools.make_batch())["shared"]
    assert (before != after).any(1).all()


def test_the_optimizers_groups_have_one_order(tools, tmp_path):
    """Moments are restored by place: two tables of one shape must not change theirs."""
    backbone = tools.untied_backbone(tmp_path / "t5")
    for _ in range(5):
        system = tools.make_docid("semantic", trained_rows="new", backbone=backbone)
        tables = system.parameter_groups(0.1)[1]["params"]
        assert [table is system.backbone.shared.weight for table in tables] == [True, False]


def test_an_output_table_of_its_own_stays_so(tools, tmp_path):
    """T5 v1.1: transformers ties the tables when they are resized, the trained rows must stay."""
    backbone = tools.untied_backbone(tmp_path / "t5")
    source = tools.make_docid("titles", backbone=backbone).backbone
    for layers in (None, 1):
        grown = tools.make_docid("semantic", backbone=backbone, decoder_layers=layers).backbone
        assert len(grown.lm_head.weight) == len(grown.shared.weight) == grown.config.vocab_size > 60
        assert torch.equal(grown.lm_head.weight[:60], source.lm_head.weight)
        assert torch.equal(grown.shared.weight[:60], source.shared.weight)
        assert grown.encoder.embed_tokens.weight is grown.shared.weight
        assert not torch.equal(grown.lm_head.weight[60:], grown.shared.weight[60:])
        assert 0.5 < grown.lm_head.weight[60:].std() / source.lm_head.weight.std() < 1.5


def test_an_unknown_choice_of_rows_is_refused(tools):
    with pytest.raises(ValueError, match="model.trained_rows=old: must be all or new"):
        tools.make_docid("semantic", trained_rows="old")


@pytest.mark.parametrize("layers", [1, 3])
def test_the_decoder_may_have_its_own_depth(tools, queries, layers, tmp_path):
    system = tools.make_docid("semantic", decoder_layers=layers)
    assert len(system.backbone.decoder.block) == layers
    assert len(system.backbone.encoder.block) == 2
    system.index(tools.named_documents(), tmp_path)
    assert len(system.retrieve(queries, 3).documents("q0")) == 3


def test_label_smoothing_is_refused_where_rows_are_masked(tools, tmp_path):
    folder = tmp_path / "identifiers"
    with pytest.raises(ValueError, match="model.label_smoothing=0.1: must be 0 under a head that"):
        tools.make_docid("semantic-pawa", label_smoothing=0.1, directory=folder)
    assert not list(tmp_path.iterdir())
    for kind in ("shared-pawa", "semantic", "titles-np"):
        assert tools.make_docid(kind, label_smoothing=0.1).loss(tools.make_batch()).isfinite()


# Bad and odd collections -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("semantic", dict(k=9), "model.identifiers.k=9: must be ≤ the 8 documents"),
        ("semantic", dict(k=1), "model.identifiers.k=1: must be ≥ 2"),
        ("titles", dict(max_length=3), r"max_length=3: 3 titles .*\('d4'\) 5, .*long=cut"),
    ],
)
def test_impossible_schemes_leave_nothing(tools, kind, options, message, tmp_path):
    identifiers = tools.DOCIDS[kind][0] | options
    with pytest.raises(ValueError, match=message):
        tools.make_docid(kind, identifiers=identifiers, directory=tmp_path / "identifiers")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["semantic-pawa", "titles-np"])
def test_an_impossible_head_leaves_nothing(tools, kind, tmp_path):
    head = tools.DOCIDS[kind][1] | {"form": "round"}
    with pytest.raises(ValueError, match="model.head.form=round: must be one of"):
        tools.make_docid(kind, head=head, directory=tmp_path / "identifiers")
    assert not list(tmp_path.iterdir())


def test_a_document_without_a_title_is_refused_or_named_by_its_beginning(tools, queries, tmp_path):
    documents = tools.named_documents()
    documents["title_tokens"][1] = []
    with pytest.raises(ValueError, match="missing=refuse: 1 documents have no title, .* 'd1'"):
        tools.make_docid("titles", documents=documents, directory=tmp_path / "identifiers")
    assert not list(tmp_path.iterdir())
    named = tools.TITLES | {"missing": "first_words", "first_words": 4}
    system = tools.make_docid("titles-np", documents=documents, identifiers=named)
    assert system.identifiers.of(1) == [*documents["tokens"][1][:4], EOS_ID]
    system.index(documents, tmp_path)
    assert len(system.retrieve(queries, 100).documents("q2")) == 8


def test_a_title_as_long_as_what_is_encoded_is_named_whole(tools, queries, tmp_path):
    """NP decoding reads a title within `document_length` tokens; what is beyond has plain rows."""
    documents = tools.named_documents()
    documents["title_tokens"][1] = [*range(20, 40)]
    system = tools.make_docid("titles-np", documents=documents)
    assert system.identifiers.of(1) == [*range(20, 40), EOS_ID]
    assert (torch.bincount(system.head.row_tokens, minlength=60)[20:40] == 1).all()
    system.index(documents, tmp_path)
    assert "d1" in system.retrieve(queries, 100).documents("q0")


@pytest.mark.parametrize("form", ["base", "contrastive"])
def test_a_title_longer_than_what_is_encoded_learns_its_own_tokens(tools, form):
    documents = tools.named_documents()
    documents["title_tokens"][1] = [*range(20, 40)]
    system = tools.make_docid("titles", documents=documents, head=tools.NP | {"form": form})
    batch = system.targets(tools.make_batch())
    with system._live_table(batch) if form == "contrastive" else nullcontext():
        rows = system.head.labels(batch.document_ids, batch.document_index)
        tokens = system.head.row_tokens[rows]
        assert torch.equal(tokens[batch.document_mask], batch.document_ids[batch.document_mask])


# The table of NP decoding in training ----------------------------------------------------------


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
    ("options", "made_anew", "contrastive"),
    [
        (dict(form="base"), [], 0),
        (dict(form="async", rebuild_every=1), [1, 2, 3, 4], 0),
        (dict(form="async", rebuild_every=2), [2, 4], 0),
        (dict(form="contrastive", contrastive_epochs=3), [3], 3),
    ],
)
def test_the_table_is_made_anew_when_it_is_due(tools, options, made_anew, contrastive, tmp_path):
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
    assert [n for n, (a, b) in enumerate(pairs, 1) if not torch.equal(a, b)] == made_anew
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


def test_in_contrastive_epochs_the_titles_own_vectors_learn(tools):
    contrastive = tools.NP | {"form": "contrastive", "contrastive_epochs": 1}
    system = tools.make_docid("titles", head=contrastive)
    before = system.head.table
    system.loss(tools.make_batch()).backward()
    live = system.backbone.encoder.block[0].layer[0].SelfAttention.q.weight.grad.clone()
    assert system.head.table is before and not before.requires_grad
    system.zero_grad()
    system.head.contrastive_epochs = 0
    system.loss(tools.make_batch()).backward()
    frozen = system.backbone.encoder.block[0].layer[0].SelfAttention.q.weight.grad
    assert not torch.allclose(live, frozen, atol=1e-4)


def test_a_single_document(tools, queries, kind, tmp_path):
    documents = tools.named_documents().select([1])
    system = tools.make_docid(kind, documents=documents)
    batch = tools.make_batch()
    batch.document_index.zero_()
    assert system.loss(batch).isfinite()
    system.index(documents, tmp_path)
    found = system.retrieve(queries, 100)
    assert all(found.documents(query) == ["d1"] for query in queries["id"])
    reranked = system.rerank(queries, documents, {"q0": ["d1"], "q1": [], "q2": []})
    assert (reranked.documents("q0"), reranked.documents("q1")) == (["d1"], [])


def test_documents_of_the_same_text(tools, queries, kind, tmp_path):
    text = [7, 8, 9, 7]
    documents = tools.Texts([list(text) for _ in range(5)], "d")
    system = tools.make_docid(kind, documents=documents)
    sequences = system.identifiers.sequences
    shared = kind.startswith("titles")
    assert len(set(map(tuple, sequences))) == (1 if shared else 5)
    assert system.loss(tools.make_batch()).isfinite()
    system.index(documents, tmp_path)
    found = system.retrieve(queries, 100)
    assert sorted(found.documents("q0")) == documents["id"]
    assert found.documents("q0") == documents["id"] or not shared


def test_no_document_at_all_is_refused(tools, tmp_path):
    with pytest.raises(ValueError, match="no document to give an identifier to"):
        tools.make_docid("semantic", known=[], directory=tmp_path / "identifiers")
    assert not list(tmp_path.iterdir())


def test_the_models_own_encoder_makes_the_tree(tools):
    """A document's vector is the mean of the encoder's over its tokens and one end token."""
    own = {"_target_": "gr_mvdr.document_embeddings.OwnEncoder", "length": 6}
    documents = tools.named_documents()
    system = tools.make_docid("semantic", identifiers=tools.SEMANTIC | {"embeddings": own})
    points = torch.tensor(system.scheme.tree.points)
    for row, tokens in enumerate(documents["tokens"]):
        ids = torch.tensor([[*tokens[:5], EOS_ID]])
        with torch.no_grad():
            mean = system.backbone.encoder(input_ids=ids).last_hidden_state[0].mean(0)
        assert torch.allclose(points[row], mean / mean.norm(), atol=1e-5)
    assert isinstance(system, Docid)
