import torch

from gr_mvdr.tokenizers import EOS_ID


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
