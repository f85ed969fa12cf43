"""What a score is made of: the decoder's paths sum to the logit, factors make S and A again."""

import torch

from gr_mvdr.batch import PairBatch
from models.t5_seal import T5SEAL

PARTS = ("self_attention", "cross_attention", "feed_forward")
NAMES = ("embedding", *(f"{part}_{layer}" for layer in (1, 2) for part in PARTS))


@torch.inference_mode()
def test_the_paths_sum_to_the_models_own_logits(system, tools):
    batch = tools.make_batch()
    if isinstance(system, T5SEAL):
        system.window = 99  # whole documents at once
    decoder = system.explain(batch).decoder
    assert decoder.names == NAMES
    forced = system.forced(batch)
    real = forced.document_mask
    rows = system.head.labels(forced.document_ids, forced.document_index)
    queries = system.encode(forced.query_ids, forced.query_mask)
    logits = tools.logits_of(system, queries, forced.query_mask, rows, real)
    expected = logits.gather(1, rows[real].unsqueeze(1)).squeeze(1)
    assert torch.allclose(decoder.contributions.sum(1)[real], expected, atol=1e-4)
    assert torch.allclose(decoder.logits[real], expected, atol=1e-4)
    chosen = logits.log_softmax(-1).gather(1, rows[real].unsqueeze(1)).squeeze(1)
    assert torch.allclose(decoder.log_probs[real], chosen, atol=1e-5)
    for values in (decoder.logits, decoder.log_probs, *decoder.contributions.unbind(1)):
        assert not values[~real].any()


@torch.inference_mode()
def test_a_cross_attentions_path_is_its_layers_similarity_times_alignment(system, tools):
    explanation = system.explain(tools.make_batch())
    for number, pairs in enumerate(explanation.layers, start=1):
        path = explanation.decoder.names.index(f"cross_attention_{number}")
        found = (pairs.similarity * pairs.alignment).sum((1, 3))
        assert torch.allclose(found, explanation.decoder.contributions[:, path], atol=1e-4)


@torch.inference_mode()
def test_seal_aligns_a_document_window_by_window_as_it_scores_it(tools):
    seal, batch = tools.sharpen(tools.make_seal(key_length=4)), tools.make_batch()
    whole = seal.explain(batch)
    for start in range(0, batch.document_ids.shape[1], 4):
        window = slice(start, start + 4)
        ids, mask = batch.document_ids[:, window], batch.document_mask[:, window]
        rows = mask.any(1)
        sides = batch.query_ids[rows], batch.query_mask[rows], ids[rows], mask[rows]
        alone = seal.explain(PairBatch(*sides, batch.document_index[rows]))
        for name in ("similarity", "alignment"):
            for part, found in zip(whole.layers, alone.layers, strict=True):
                expected = getattr(part, name)[rows][:, :, window]
                assert torch.allclose(getattr(found, name), expected, atol=1e-5), name
        for name in ("contributions", "logits", "log_probs"):
            expected = getattr(whole.decoder, name)[rows][..., window]
            assert torch.allclose(getattr(alone.decoder, name), expected, atol=1e-5), name
