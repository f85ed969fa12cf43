import pytest
import torch

from gr_mvdr.decoding.beam_search import beam_search
from gr_mvdr.decoding.evidence import score_documents
from gr_mvdr.tokenizers import EOS_ID


def runs(tokens, length=4):
    """Every n-gram of a text and its end, up to a length."""
    text = (*tokens, EOS_ID)
    return {text[i : i + n] for n in range(1, length + 1) for i in range(len(text) - n + 1)}


@pytest.mark.parametrize("seed", [0, 1])
def test_constrained_decoding_never_leaves_the_corpus(tools, documents, queries, tmp_path, seed):
    seal = tools.make_seal(beam_size=5)
    torch.manual_seed(seed)
    for weight in seal.parameters():
        torch.nn.init.normal_(weight)
    seal.index(documents, tmp_path)
    found = seal.search(queries["tokens"])
    allowed = set().union(*map(runs, documents["tokens"]))
    for number in range(len(queries)):
        keys = [tuple(tokens) for tokens, _ in found.candidates.of(number)]
        assert len(keys) > 10 and set(keys) <= allowed
        final = [tuple(tokens) for tokens, _ in found.final.of(number)]
        assert final and all(len(key) == 4 or key[-1] == EOS_ID for key in final)


def test_retrieval_adds_up_the_evidence_of_every_key(tools, documents, queries, tmp_path):
    seal = tools.sharpen(tools.make_seal())
    index = seal.index(documents, tmp_path)
    ranking = seal.retrieve(queries, 100)
    query = torch.tensor([seal.prepare_query(queries[0]["tokens"])])
    with torch.no_grad():
        step = seal.decoding_step(query, torch.ones_like(query, dtype=torch.bool))
        found = beam_search(step, index, 1, 3, 4, EOS_ID)
    unigrams = found.first_log_probs[0].numpy()
    scores = score_documents(index, found.candidates.of(0), unigrams, **tools.EVIDENCE)
    expected = {f"d{number}": score for number, score in scores.items()}
    assert len(expected) > 1
    assert ranking.scores("q0") == pytest.approx(expected, abs=1e-3)
    assert len(seal.retrieve(queries, 1).documents("q0")) == 1


@torch.no_grad()
def test_the_leak_free_score_is_the_mean_of_its_windows(tools):
    seal = tools.sharpen(tools.make_seal())
    batch = tools.make_batch(document_lengths=(9, 2, 4))
    scores = seal.score(batch)
    queries = seal.encode(batch.query_ids, batch.query_mask)
    for number, length in enumerate((9, 2, 4)):
        ids = batch.document_ids[number, :length]
        ids = ids[ids != EOS_ID]  # the end of a text that was cut is no key's
        windows = [
            seal.token_log_probs(
                queries[[number]],
                batch.query_mask[[number]],
                window[None],
                torch.ones(1, len(window), dtype=torch.bool),
                batch.document_index[[number]],
            ).mean(1)
            for window in ids.split(4)
        ]
        assert torch.isclose(scores[number], torch.cat(windows).mean(), atol=1e-5)


@torch.no_grad()
def test_a_document_without_tokens_is_covered_nowhere(tools, queries, tmp_path):
    seal, documents = tools.make_seal(), tools.Texts([[5, 6, 7], [], [8]], "d")
    seal.prepare(documents, range(3), tmp_path)
    assert [seal.covers(row) for row in range(3)] == [True, False, True]
    batch = tools.make_batch((3, 3), (3, 1))  # the second document is its end token alone
    assert seal.score(batch).isfinite().tolist() == [True, False]
    seal.index(documents, tmp_path / "index")
    candidates = {query: documents["id"] for query in queries["id"]}
    for windows in (lambda query, row: [row["tokens"]] if row["tokens"] else [], lambda *_: []):
        for pool in ("sum", "mean", "max"):
            found = seal.rerank(queries, documents, candidates, segments=windows, pool=pool)
            expected = {"d0", "d2"} if windows("", documents[0]) else set()
            assert all(set(found.documents(query)) == expected for query in queries["id"])
