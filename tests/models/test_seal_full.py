"""T5-SEAL's options: special tokens, titles and query n-grams as keys, other heads over spans."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from gr_mvdr.batch import cut, pad
from gr_mvdr.decoding.evidence import score_documents
from gr_mvdr.tokenizers import EOS_ID

BODY, TITLE, END = [50], [51, 52], [53]
SPECIAL_TOKENS = {"body": BODY, "title": TITLE, "title_end": END}


@pytest.fixture
def full(tools):
    options = dict(special_tokens=SPECIAL_TOKENS, query_ngrams=3, query_length=5)
    return tools.sharpen(tools.make_seal(**options))


def without_special_tokens(tools, lengths, seed):
    return [[4 + t % 40 for t in row] for row in tools.draw_tokens(lengths, seed)]


@pytest.fixture
def texts(tools):
    """Two documents share a title, the last one has none."""
    titles = [[9, 8], [9, 8, 7], [9], [9, 8], []]
    return tools.Texts(without_special_tokens(tools, [3, 14, 1, 16, 9], 3), "d", titles)


@pytest.fixture
def queries(tools):
    return tools.Texts(without_special_tokens(tools, [4, 2, 11], 4), "q")


@torch.no_grad()
def log_prob(seal, source, target):
    """log p(target | source) under teacher forcing by Hugging Face."""
    logits = seal.backbone(
        input_ids=torch.tensor([source]), labels=torch.tensor([target])
    ).logits.log_softmax(-1)[0]
    return logits.gather(1, torch.tensor(target)[:, None]).sum().item()


def test_a_source_says_what_it_asks_for(full):
    assert full.prepare_query([9, 8]) == [9, 8, 50, EOS_ID]
    assert full.prepare_query([9, 8], "title") == [9, 8, 51, 52, EOS_ID]
    assert full.prepare_query([9, 8, 7, 6, 5, 4]) == [9, 8, 7, 6, 50, EOS_ID], (
        "special tokens cost no token"
    )


@pytest.mark.parametrize("special_tokens", [None, {}])
def test_without_special_tokens_it_is_the_papers_form(
    tools, texts, queries, special_tokens, tmp_path
):
    plain, paper = (
        tools.sharpen(tools.make_seal()),
        tools.sharpen(tools.make_seal(special_tokens=special_tokens)),
    )
    assert paper.prepare_query([9, 8]) == paper.prepare_query([9, 8], "title") == [9, 8, EOS_ID]
    for name, seal in (("plain", plain), ("paper", paper)):
        seal.index(texts, tmp_path / name)
        assert not (tmp_path / name / "titles").exists()
    assert paper.searcher.count([9, 8, 53]) == 0
    found = paper.search(queries["tokens"])
    assert found.further == [[], [], []]
    assert paper.retrieve(queries, 9) == plain.retrieve(queries, 9)
    batch = tools.make_batch()
    assert paper.forced(batch) is batch


@torch.no_grad()
def test_score_and_align_ask_for_the_body(tools, full):
    paper = tools.sharpen(tools.make_seal(query_length=9))
    paper.load_state_dict(full.state_dict())
    batch = tools.make_batch(query_lengths=(3, 5, 1))
    asked = [
        [*cut(q[m].tolist()[:-1], 5), *BODY, EOS_ID]
        for q, m in zip(batch.query_ids, batch.query_mask, strict=True)
    ]
    ids, mask = pad(asked)
    marked = replace(batch, query_ids=ids, query_mask=mask)
    assert torch.allclose(full.score(batch), paper.score(marked), atol=1e-5)
    pairs = full.align(batch)
    assert torch.equal(pairs.query_ids, ids) and torch.equal(pairs.query_mask, mask)
    assert torch.allclose(pairs.alignment, paper.align(marked).alignment, atol=1e-5)


def test_the_index_begins_every_text_with_its_title(full, texts, tmp_path):
    index = full.index(texts, tmp_path)
    for row, (title, tokens) in enumerate(zip(texts["title_tokens"], texts["tokens"], strict=True)):
        begins = [*title, *END] if title else []
        assert index.sequence(row).tolist() == [*begins, *tokens, EOS_ID]
    assert index.count([*END]) == 4
    assert np.count_nonzero(np.diff(full.titles.first_document)) == 3, "two documents share a title"


def test_titles_are_keys_with_the_probability_of_teacher_forcing(full, texts, queries, tmp_path):
    full.index(texts, tmp_path)
    found = full.search(queries["tokens"])
    titles = {(9, 8, 53), (9, 8, 7, 53), (9, 53)}
    for query, keys in zip(queries["tokens"], found.further, strict=True):
        scores = {tuple(key): score for key, score in keys if key[-1] == 53}
        assert set(scores) == titles, "the beam of 3 holds them all"
        source = full.prepare_query(query, "title")
        for key, score in scores.items():
            assert score == pytest.approx(log_prob(full, source, [*key, EOS_ID]), abs=1e-4)


def test_the_querys_ngrams_are_keys_if_the_corpus_has_them(full, texts, tmp_path):
    text = texts["tokens"][1]
    query = [*text[3:7], 58, text[0]]
    full.index(texts, tmp_path)
    (keys,) = full.search([query]).further
    own = [(key, score) for key, score in keys if key[-1] != 53]
    expected = Counter(
        tuple(query[start : start + length])
        for length in (1, 2, 3)
        for start in range(4 - length + 1)
    ) + Counter([(text[0],)])
    assert Counter(tuple(key) for key, _ in own) == Counter(dict.fromkeys(expected, 1))
    for key, score in own:
        expected = log_prob(full, full.prepare_query(query), key)
        assert score == pytest.approx(expected, abs=1e-4)


def test_a_query_without_a_word_of_the_corpus_has_no_ngram_keys(tools, full, texts, tmp_path):
    full.index(texts, tmp_path)
    strange = tools.Texts([[58, 59], [57]], "q")
    assert all(key[-1] == 53 for keys in full.search(strange["tokens"]).further for key, _ in keys)
    assert full.retrieve(strange, 3).documents("q1")


def test_the_evidence_of_all_keys_is_added_up(tools, full, texts, queries, tmp_path):
    index = full.index(texts, tmp_path)
    found, ranking = full.search(queries["tokens"]), full.retrieve(queries, 9)
    for number, query in enumerate(queries["id"]):
        keys = {tuple(key): score for key, score in found.further[number]}
        generated = {tuple(key): score for key, score in found.candidates.of(number)}
        assert set(keys) - set(generated), "the further keys are new"
        unigrams = found.first_log_probs[number].numpy()
        merged = list({**keys, **generated}.items())
        scores = score_documents(index, merged, unigrams, **tools.EVIDENCE)
        expected = {f"d{row}": score for row, score in scores.items()}
        assert ranking.scores(query) == pytest.approx(expected, abs=1e-4)


def test_a_collection_without_titles_has_only_the_other_keys(full, texts, queries, tmp_path):
    texts["title_tokens"][:] = [[] for _ in texts]
    full.index(texts, tmp_path)
    assert full.titles is None and not (tmp_path / "titles").exists()
    assert len(full.retrieve(queries, 9)) == 3


# Other heads -----------------------------------------------------------------------------------


@pytest.fixture(params=["PAWA", "NP"])
def headed(request, tools, texts):
    """A head of its own for the spans; document 4 arrives after training."""
    seal = tools.sharpen(tools.make_seal(head=getattr(tools, request.param), beam_size=5))
    seal.prepare(texts, [0, 1, 2, 3], None)
    return seal.eval()


def spans_of(tools, texts):
    """Three queries, a span of document 1, 3 and 4 each."""
    batch = tools.make_batch()
    spans = [
        [*texts["tokens"][row][start : start + 4], EOS_ID]
        for row, start in ((1, 2), (3, 0), (4, 3))
    ]
    ids, mask = pad(spans)
    return replace(
        batch, document_ids=ids, document_mask=mask, document_index=torch.tensor([1, 3, 4])
    )


def test_labels_of_spans_stand_for_their_tokens(tools, headed, texts):
    batch = spans_of(tools, texts)
    rows = headed.head.labels(batch.document_ids, batch.document_index)
    assert torch.equal(headed.head.row_tokens[rows], batch.document_ids)


def test_another_head_learns_spans(tools, headed, texts):
    batch = spans_of(tools, texts)
    optimizer = torch.optim.Adam(headed.parameters(), 0.02)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        losses.append(headed.loss(batch))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]


def test_a_search_under_another_head_finds_ngrams(headed, texts, queries, tmp_path):
    index = headed.index(texts, tmp_path)
    found = headed.search(queries["tokens"])
    for number in range(3):
        keys = found.candidates.of(number)
        assert len(keys) > 10 and all(index.count(key) for key, _ in keys)
        assert all(score > -60 for _, score in keys)
    ranking = headed.retrieve(queries, 9)
    assert len(ranking.documents("q0")) > 1
    assert headed.rerank(
        queries,
        texts,
        {q: ["d1", "d4"] for q in queries["id"]},
        segments=lambda _, row: [row["tokens"][:4]],
        pool="sum",
    ).scores("q0").keys() == {"d1", "d4"}


@pytest.mark.parametrize("head", ["PAWA", "NP"])
def test_titles_and_special_tokens_have_rows_under_another_head(tools, texts, queries, head):
    """The text need not hold the title's tokens, nor ever what ends it."""
    texts["title_tokens"][0] = [49, 48]
    options = dict(special_tokens=SPECIAL_TOKENS, head=getattr(tools, head), beam_size=5)
    seal = tools.make_seal(**options)
    seal.prepare(texts, range(4), None)
    title = torch.tensor([[49, 48, 53, EOS_ID]])
    rows = seal.head.labels(title, torch.tensor([0]))
    assert torch.equal(seal.head.row_tokens[rows], title)
    seal.index(texts)
    for keys in seal.search(queries["tokens"]).further:
        assert {tuple(key) for key, _ in keys} >= {(49, 48, 53), (9, 8, 53), (9, 53)}
        assert all(score > -60 for _, score in keys)


def test_contrastive_np_decoding_of_spans_knows_every_target(tools, texts):
    """A span from beyond what is encoded, and a token that no document of the batch has."""
    head = tools.NP | {"form": "contrastive", "contrastive_epochs": 1}
    seal = tools.make_seal(head=head, document_length=6)
    seal.prepare(texts, range(5), None)
    tail = texts["tokens"][3][-3:]
    ids, mask = pad([[*tail, EOS_ID], [*texts["tokens"][1][:2], 47, EOS_ID], [47, EOS_ID]])
    batch = replace(spans_of(tools, texts), document_ids=ids, document_mask=mask)
    with seal._live_table(batch):
        rows = seal.head.labels(batch.document_ids, batch.document_index)
        assert torch.equal(seal.head.row_tokens[rows][mask], ids[mask])
    assert seal.loss(batch).isfinite()
