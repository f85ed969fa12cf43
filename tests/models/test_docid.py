"""Docid systems: all verbs agree on a score, searches find documents, odd collections."""

import pytest
import torch

from gr_mvdr.batch import pad
from gr_mvdr.tokenizers import EOS_ID


@pytest.mark.parametrize(
    ("kind", "penalty"),
    [
        ("naive", 0.8),
        ("semantic", 0.0),
        ("shared-pawa", 0.8),
        ("titles-nci", 0.0),
        ("titles-np", 0.8),
    ],
)
def test_every_verb_gives_a_pair_the_same_score(tools, queries, kind, penalty, tmp_path):
    documents = tools.named_documents()
    system = tools.make_docid(kind, length_penalty=penalty)
    system.index(documents, tmp_path)
    found = system.retrieve(queries, 100)
    everything = {query: documents["id"] for query in queries["id"]}
    reranked = system.rerank(queries, documents, everything)
    for number, query in enumerate(queries["id"]):
        batch = tools.pairs_of(system, queries["tokens"][number], list(range(8)))
        scores = system.score(batch)
        expected = {f"d{row}": score for row, score in enumerate(scores.tolist())}
        assert scores.std() > 0.01 and scores.isfinite().all()
        assert found.scores(query) == pytest.approx(expected, abs=1e-4)
        assert reranked.scores(query) == pytest.approx(expected, abs=1e-4)
        assert torch.allclose(system.align(batch).score, scores, atol=1e-5)
        if kind == "titles-np":
            continue
        # Where every token has one row, teacher forcing along it is all that a score is.
        batch = system.targets(batch)
        encoded = system.encode(batch.query_ids, batch.query_mask)
        sides = batch.document_ids, batch.document_mask, batch.document_index
        total = system.token_log_probs(encoded, batch.query_mask, *sides).sum(1)
        assert torch.allclose(scores, total / batch.document_mask.sum(1) ** penalty, atol=1e-4)


def title_in_loops(system, query, title):
    """log p(title | query): every row of a token counts, and the decoder reads their mean.

    One title alone, without cache, padding or the head's methods.
    """
    head, (ids, mask) = system.head, pad([system.prepare_query(query)])
    encoded, read, total = system.encode(ids, mask), [system.backbone.shared.weight[0]], 0.0
    for token in title:
        hidden = system.backbone.decoder(
            inputs_embeds=torch.stack(read)[None], encoder_hidden_states=encoded, use_cache=False
        ).last_hidden_state[0, -1]
        probabilities = (head.table @ hidden * 16**-0.5).softmax(0)
        own = [row for row, of in enumerate(head.row_tokens.tolist()) if of == token]
        together = sum(probabilities[row] for row in own)
        read.append(sum(probabilities[row] * head.table[row] for row in own) / together)
        total += together.log().item()
    return total


@torch.no_grad()
def test_np_search_with_a_wide_beam_equals_scoring_all_and_every_title_in_loops(
    tools, queries, tmp_path
):
    system, documents = tools.make_docid("titles-np", beam_size=8).double(), tools.named_documents()
    system.index(documents, tmp_path)
    counts = torch.bincount(system.head.row_tokens)
    assert counts[[7, 8, 9]].tolist() == [2, 2, 2] and counts[[11, 12, EOS_ID]].tolist() == [
        1,
        2,
        1,
    ]
    found, every = system.retrieve(queries, 100), dict.fromkeys(queries["id"], documents["id"])
    reranked = system.rerank(queries, documents, every)
    for number, query in enumerate(queries["id"]):
        titles = [[*title, EOS_ID] for title in documents["title_tokens"]]
        expected = [title_in_loops(system, queries["tokens"][number], title) for title in titles]
        for ranking in (found, reranked):
            scores = [ranking.scores(query)[name] for name in documents["id"]]
            assert scores == pytest.approx(expected, abs=1e-10)
        pairs = tools.pairs_of(system, queries["tokens"][number], range(8))
        assert system.score(pairs).tolist() == pytest.approx(expected, abs=1e-10)


@torch.no_grad()
def test_many_identifiers_are_scored_in_parts_with_few_logits_each(
    tools, queries, tmp_path, monkeypatch
):
    system, documents = tools.make_docid("titles-np").double(), tools.named_documents()
    system.index(documents, tmp_path)
    every = dict.fromkeys(queries["id"], documents["id"])
    whole, search, beams = system.rerank(queries, documents, every), system.search, []
    monkeypatch.setattr("models.docid._LOGITS", 3 * system.head.numbers_per_position)
    monkeypatch.setattr(
        system, "search", lambda *given, **o: beams.append(o["beam_size"]) or search(*given, **o)
    )
    parts = system.rerank(queries, documents, every)
    assert beams == [3, 3, 1] * len(queries), "two of the eight titles are the same"
    for query in queries["id"]:
        assert parts.scores(query) == pytest.approx(whole.scores(query), abs=1e-12)
