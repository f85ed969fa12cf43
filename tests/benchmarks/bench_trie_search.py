"""Benchmark of trie search against transformers' `generate` with `prefix_allowed_tokens_fn`.

100,000 docids of six cluster tokens and an end token, 16 queries, 10 beams, one random T5 with the
vocabulary of T5. Both run end to end, the encoder included, and must find the same docids with the
same scores. Two models, because both searches need the same products of it: with the small T5 of
the other benchmarks these are most of our time, so that not even a search without any cost would be
five times as fast there; with a thin one the search is.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from gr_mvdr.beam_search import beam_search
from gr_mvdr.heads import Head
from gr_mvdr.trie import Trie
from models.decoding import DecodingStep
from tests.benchmarks.bench_beam_search import small_t5

DOCUMENTS, CLUSTERS, DIGITS = 100_000, 7, 6
QUERIES, BEAMS, QUERY_LENGTH = 16, 10, 32
FIRST_TOKEN, END = 32_000, 1
RUNS = 5

# For each query its docids and their log-probabilities, the best first.
Found = list[list[tuple[list[int], float]]]


def hierarchical_docids() -> list[list[int]]:
    """Random leaves of a 7-ary tree; all are equally long, so that `generate` finds as many."""
    leaves = np.random.default_rng(0).choice(CLUSTERS**DIGITS, DOCUMENTS, replace=False)
    digits = leaves[:, None] // CLUSTERS ** np.arange(DIGITS)[::-1] % CLUSTERS
    tokens = np.pad(FIRST_TOKEN + digits, ((0, 0), (0, 1)), constant_values=END)
    return tokens.tolist()


def children_of_prefixes(docids: Sequence[Sequence[int]]) -> dict[tuple[int, ...], list[int]]:
    """The allowed next tokens of every prefix, ready to be handed out: one look-up a hypothesis."""
    children: dict[tuple[int, ...], set[int]] = {}
    for docid in docids:
        for depth, token in enumerate(docid):
            children.setdefault(tuple(docid[:depth]), set()).add(token)
    return {prefix: sorted(tokens) for prefix, tokens in children.items()}


@torch.inference_mode()
def search_by_generate(
    model: T5ForConditionalGeneration,
    query_ids: Tensor,
    children: dict[tuple[int, ...], list[int]],
    beam_size: int,
    length: int,
    with_scores: bool = False,
) -> Found:
    """Beam search by `generate`; scores are zero unless asked for, which costs it copies."""
    output = model.generate(
        query_ids,
        attention_mask=torch.ones_like(query_ids),
        # A beam that ran dry is filled with prefixes outside the trie: these must end.
        prefix_allowed_tokens_fn=lambda _, ids: children.get(tuple(ids.tolist()[1:]), [END]),
        num_beams=beam_size,
        num_return_sequences=beam_size,
        max_new_tokens=length,
        length_penalty=0.0,  # a score is the sum of the log-probabilities, as ours
        early_stopping=False,
        do_sample=False,
        eos_token_id=END,
        pad_token_id=0,
        decoder_start_token_id=0,
        return_dict_in_generate=True,
        output_scores=with_scores,
    )
    sequences = [ids[1 : ids.index(END) + 1] for ids in output.sequences.tolist()]
    scores = output.sequences_scores.tolist() if with_scores else [0.0] * len(sequences)
    found = list(zip(sequences, scores, strict=True))
    return [found[start : start + beam_size] for start in range(0, len(found), beam_size)]


@torch.inference_mode()
def search_by_trie(
    model: T5ForConditionalGeneration,
    query_ids: Tensor,
    trie: Trie,
    beam_size: int,
    length: int,
) -> Found:
    """The same search by `gr_mvdr.beam_search`, with the step of the generative systems."""

    def encode(ids: Tensor, mask: Tensor) -> Tensor:
        return model.encoder(ids, attention_mask=mask.long()).last_hidden_state

    system = SimpleNamespace(backbone=model, head=Head(model), encode=encode)
    step = DecodingStep(system, query_ids, torch.ones_like(query_ids, dtype=torch.bool))
    found = beam_search(step, trie, len(query_ids), beam_size, length, END).final
    return [found.of(query)[:beam_size] for query in range(len(query_ids))]


def assert_same(ours: Found, theirs: Found) -> None:
    """The same sequences with the same scores to 1e-5, whatever the order of equal scores."""
    for mine, other in zip(ours, theirs, strict=True):
        assert sorted(ids for ids, _ in mine) == sorted(ids for ids, _ in other)
        scores = {tuple(ids): score for ids, score in other}
        assert all(abs(score - scores[tuple(ids)]) < 1e-5 for ids, score in mine)


def median_seconds(search: Callable[[], Found]) -> float:
    """The median of some runs, after one that warms up."""
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        search()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def thin_t5() -> T5ForConditionalGeneration:
    """One layer of 16 dimensions: next to nothing to compute for each token of the vocabulary."""
    torch.manual_seed(0)
    shape = {"d_model": 16, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=32_128, **shape)).eval()


def main() -> None:
    docids, length = hierarchical_docids(), DIGITS + 1
    start = time.perf_counter()
    trie = Trie.build(docids)
    print(f"trie: {len(docids)} docids built in {time.perf_counter() - start:.2f} s")
    children = children_of_prefixes(docids)
    query_ids = torch.randint(3, 32_000, (QUERIES, QUERY_LENGTH))
    for name, model, least in (("thin T5", thin_t5(), 5), ("small T5", small_t5(), 2)):
        ours = (model, query_ids, trie, BEAMS, length)
        theirs = (model, query_ids, children, BEAMS, length)
        assert_same(search_by_trie(*ours), search_by_generate(*theirs, with_scores=True))
        our_time = median_seconds(lambda ours=ours: search_by_trie(*ours))
        their_time = median_seconds(lambda theirs=theirs: search_by_generate(*theirs))
        print(
            f"trie search, {name}: {our_time * 1000:.0f} ms, generate {their_time * 1000:.0f} ms, "
            f"{their_time / our_time:.1f} times as long "
            f"({QUERIES} queries × {BEAMS} beams, docids of {length} tokens)"
        )
        assert their_time >= least * our_time


if __name__ == "__main__":
    main()
