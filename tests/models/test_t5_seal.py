import pytest
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


def test_keys_longer_than_the_index_counts_by_default_are_found(tools, queries):
    documents = tools.Texts(tools.draw_tokens([30, 20], seed=3), "d")
    seal = tools.sharpen(tools.make_seal(key_length=18))
    seal.index(documents)
    assert seal.retrieve(queries, 2).query_ids == queries["id"]
    with pytest.raises(ValueError, match="key_length=256: must be .*≤ 255"):
        tools.make_seal(key_length=256)
