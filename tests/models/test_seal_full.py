"""T5-SEAL's options: special tokens, titles and query n-grams as keys, other heads over spans."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from gr_mvdr.batch import pad
from gr_mvdr.decoding.beam_search import Hypotheses
from gr_mvdr.tokenizers import EOS_ID
from models.beyond.views import ViewResult

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


@torch.no_grad()
def test_score_and_align_ask_for_the_body(tools, full):
    paper = tools.sharpen(tools.make_seal(query_length=9))
    paper.load_state_dict(full.state_dict())
    batch = tools.make_batch(query_lengths=(3, 5, 1))
    asked = [
        [*q[m].tolist()[:-1][:5], *BODY, EOS_ID]
        for q, m in zip(batch.query_ids, batch.query_mask, strict=True)
    ]
    ids, mask = pad(asked)
    marked = replace(batch, query_ids=ids, query_mask=mask)
    assert torch.allclose(full.score(batch), paper.score(marked), atol=1e-5)
    pairs = full.align(batch)
    assert torch.equal(pairs.query_ids, ids) and torch.equal(pairs.query_mask, mask)
    assert torch.allclose(pairs.alignment, paper.align(marked).alignment, atol=1e-5)


def test_titles_are_keys_with_the_probability_of_teacher_forcing(full, texts, queries, tmp_path):
    full.index(texts, tmp_path)
    found = full.search(queries["tokens"])
    titles = {(9, 8, 53), (9, 8, 7, 53), (9, 53)}
    for query, keys in zip(queries["tokens"], found.further, strict=True):
        scores = {key: score for key, (score, view) in keys.items() if view == "title"}
        assert set(scores) == titles, "the beam of 3 holds them all"
        source = full.prepare_query(query, "title")
        for key, score in scores.items():
            assert score == pytest.approx(log_prob(full, source, [*key, EOS_ID]), abs=1e-4)


def test_the_querys_ngrams_are_keys_if_the_corpus_has_them(full, texts, tmp_path):
    text = texts["tokens"][1]
    query = [*text[3:7], 58, text[0]]
    full.index(texts, tmp_path)
    (keys,) = full.search([query]).further
    own = [(key, score) for key, (score, view) in keys.items() if view == "body"]
    expected = Counter(
        tuple(query[start : start + length])
        for length in (1, 2, 3)
        for start in range(4 - length + 1)
    ) + Counter([(text[0],)])
    assert Counter(key for key, _ in own) == Counter(dict.fromkeys(expected, 1))
    for key, score in own:
        expected = log_prob(full, full.prepare_query(query), key)
        assert score == pytest.approx(expected, abs=1e-4)


MINDER = SPECIAL_TOKENS | {"query": [51, 54], "query_end": [54]}


def test_the_evidence_of_all_views_is_added_up_by_hand(tools):
    """15 tokens and a smoothing of 1: what occurs once has p(n) = 1/8, a logit of −log 7."""
    evidence = dict(alpha=2.0, beta=0.5, smoothing=1.0)
    seal = tools.make_seal(special_tokens=MINDER, evidence=evidence)
    documents = tools.Texts([[30, 31], [40] * 6], "d", [[10], []])
    documents["query_tokens"] = [[[20, 30]], []]
    seal.index(documents)
    index = seal.names.corpus
    assert index.sequence(0).tolist() == [10, 53, 20, 30, 54, 30, 31, EOS_ID] and len(index) == 15
    half, more = np.log(1 / 2), np.log(4 / 5)
    further = {(10, 53): (half, "title"), (20, 30, 54): (half, "query")}
    tokens = torch.tensor([[30, 31], [31, -1], [40, 40]])
    log_probs = torch.tensor([more, half, half])
    body = Hypotheses(torch.zeros(3, dtype=torch.int64), tokens, log_probs)
    found = ViewResult(body, body, torch.full((1, 60), -torch.inf), [further])
    expected = {
        ((30, 31), "body"): 11.103587,  # (log 4 + log 7)²; [31] finds its place taken
        ((10, 53), "title"): 3.786566,  # (log 7)²
        ((20, 30, 54), "query"): 3.155472,  # the same, times 1/2 + 1/2 · 2/3: 30 is covered
    }
    names = seal.names
    (parts,) = names.shares(found, 0, [0]).values()
    assert {(tokens, view): value for tokens, value, view in parts} == pytest.approx(
        expected, abs=1e-6
    )
    # [40, 40] occurs 5 times: (logit 1/2 − logit 6/16)² = (log 5/3)².
    scores = {0: sum(expected.values()), 1: 0.260943}
    assert names.scores(found, 0) == pytest.approx(scores, abs=1e-6)


def test_a_bonus_raises_a_views_keys_to_one_limit(tools, texts, queries):
    texts["query_tokens"] = [[[9, 5, 7]], [], [[6]], [[6, 8], [30, 31, 32, 33]], []]
    found = []
    for bonus in (None, {"query": 20.0}):
        seal = tools.sharpen(tools.make_seal(special_tokens=MINDER, bonus=bonus))
        seal.index(texts)
        found.append(seal.search(queries["tokens"]).further)
    for keys, more in zip(*found, strict=True):
        expected = {
            key: (min(p + 20, -1.0), view) if view == "query" else (p, view)
            for key, (p, view) in keys.items()
        }
        assert more == expected
        raised = [p for p, view in more.values() if view == "query"]
        assert max(raised) == -1 > min(raised), "some at the limit, some below it"
