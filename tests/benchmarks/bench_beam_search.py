"""Benchmark of constrained beam search: the constraint against the model (`make bench`).

16 queries × 15 beams × 10 steps over 5 million tokens, with a small random T5 and its cache. Beside
the random model, one that prefers the corpus's frequent tokens, as a trained one does: it walks
through the largest intervals of the index.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from gr_mvdr.decoding.beam_search import beam_search
from gr_mvdr.decoding.ngram_index import NgramIndex
from tests.benchmarks.bench_ngram_index import zipf_corpus

QUERIES, BEAMS, STEPS, QUERY_LENGTH = 16, 15, 10, 32
RUNS = 5


class CachedT5:
    """The small model as a beam search's step; counts the seconds it runs."""

    def __init__(self, model: T5ForConditionalGeneration, query_ids: Tensor, bias: Tensor):
        self.model, self.bias, self.cache, self.seconds = model, bias, None, 0.0
        start = time.perf_counter()
        self.mask = torch.ones_like(query_ids)
        self.encoded = model.encoder(query_ids, attention_mask=self.mask).last_hidden_state
        self.seconds += time.perf_counter() - start

    def __call__(self, tokens: Tensor, parents: Tensor) -> Tensor:
        start = time.perf_counter()
        self.encoded, self.mask = self.encoded[parents], self.mask[parents]
        if self.cache is not None:
            self.cache.reorder_cache(parents)
        output = self.model(
            encoder_outputs=(self.encoded,),
            attention_mask=self.mask,
            decoder_input_ids=tokens[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache = output.past_key_values
        log_probs = (output.logits[:, -1] + self.bias).log_softmax(-1)
        self.seconds += time.perf_counter() - start
        return log_probs


def small_t5(vocab_size: int = 32_128) -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    shape = {"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4}
    return T5ForConditionalGeneration(T5Config(vocab_size=vocab_size, **shape)).eval()


@torch.inference_mode()
def seconds_of_one_search(make_step: Callable[[], CachedT5], index: NgramIndex) -> tuple:
    """Seconds in the model and seconds outside it: the constraint's."""
    start = time.perf_counter()
    step = make_step()
    found = beam_search(step, index, QUERIES, BEAMS, STEPS, end_token=1)
    total = time.perf_counter() - start
    assert found.final.lengths.max() == STEPS
    return step.seconds, total - step.seconds


def main() -> None:
    index = NgramIndex.build(zipf_corpus())
    model = small_t5()
    query_ids = torch.randint(3, 32_000, (QUERIES, QUERY_LENGTH))
    frequency = torch.zeros(32_128)
    frequency[index.tokens] = torch.from_numpy(index.token_counts / len(index)).float()
    biases = {
        "random model": torch.zeros(32_128),
        "model that prefers frequent tokens": (frequency + 1e-9).log(),
    }
    for name, bias in biases.items():
        times = [
            seconds_of_one_search(lambda bias=bias: CachedT5(model, query_ids, bias), index)
            for _ in range(RUNS + 1)
        ][1:]
        in_model, in_constraint = (statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"beam search, {name}: model {in_model * 1000:.0f} ms, constraint "
            f"{in_constraint * 1000:.0f} ms ({QUERIES} queries × {BEAMS} beams × {STEPS} steps)"
        )
        assert in_constraint < in_model


if __name__ == "__main__":
    main()
