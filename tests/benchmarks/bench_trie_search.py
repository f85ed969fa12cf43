"""Benchmark of trie search against transformers' `generate` with a prefix function.

100,000 docids of three schemes, 16 queries, 10 beams, the same small random T5. All run end to end,
the encoder included, and must find the same docids with the same scores. Ours and `generate` with
`prefix_allowed_tokens_fn` need the same products of the model: under a narrow trie these are more
than half of our time and bound the ratio. Under a wide one `generate` also turns a long list of
allowed tokens into a mask for each beam.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from gr_mvdr.decoding.beam_search import beam_search
from gr_mvdr.decoding.decoding_step import DecodingStep
from gr_mvdr.decoding.trie import Trie
from gr_mvdr.heads.plain import Head
from tests.benchmarks.rows import compare

DOCUMENTS, DEPTH, CLUSTERS = 100_000, 6, 7
QUERIES, BEAMS, QUERY_LENGTH = 16, 10, 32
VOCABULARY, END = 32_128, 1

# For each query its docids and their log-probabilities, the best first.
Found = list[list[tuple[list[int], float]]]


# All docids of a scheme are equally long: of others, `generate` keeps only those that end among the
# best `beam` candidates of a step, ours (SEAL's) those among the best 2 × beam.


def small_t5(vocab_size: int) -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    shape = {"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4}
    return T5ForConditionalGeneration(T5Config(vocab_size=vocab_size, **shape)).eval()


def semantic_docids() -> list[list[int]]:
    """Random leaves of a 7-ary tree, and the end token."""
    leaves = np.random.default_rng(0).choice(CLUSTERS**DEPTH, DOCUMENTS, replace=False)
    digits = leaves[:, None] // CLUSTERS ** np.arange(DEPTH)[::-1] % CLUSTERS
    return [[*row, END] for row in (VOCABULARY - CLUSTERS + digits).tolist()]


def titles() -> list[list[int]]:
    """Tokens with Zipf's frequencies, and the end token: some 16,000 tokens can begin one."""
    tokens = np.arange(3, VOCABULARY)
    chance = 1 / (tokens - 2)
    rng = np.random.default_rng(0)
    drawn = rng.choice(tokens, (DOCUMENTS, DEPTH), p=chance / chance.sum())
    return [[*row, END] for row in drawn.tolist()]


def atomic_docids() -> list[list[int]]:
    """A token of its own for each document; no end token."""
    return [[VOCABULARY + document] for document in range(DOCUMENTS)]


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
    sequences = [_until_the_end(ids[1:]) for ids in output.sequences.tolist()]
    scores = output.sequences_scores.tolist() if with_scores else [0.0] * len(sequences)
    found = list(zip(sequences, scores, strict=True))
    return [found[start : start + beam_size] for start in range(0, len(found), beam_size)]


def _until_the_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(END) + 1] if END in ids else ids


@torch.inference_mode()
def search_by_trie(
    model: T5ForConditionalGeneration,
    query_ids: Tensor,
    trie: Trie,
    beam_size: int,
    length: int,
) -> Found:
    """The same search by `gr_mvdr.decoding.beam_search`, with the step of the generative
    systems."""
    mask = torch.ones_like(query_ids, dtype=torch.bool)
    queries = model.encoder(query_ids, attention_mask=mask.long()).last_hidden_state
    step = DecodingStep(Head(model), queries, mask)
    found = beam_search(step, trie, len(query_ids), beam_size, length, END).final
    return [found.of(query)[:beam_size] for query in range(len(query_ids))]


def assert_same(ours: Found, theirs: Found) -> None:
    """The same sequences with the same scores to 1e-5, whatever the order of equal scores."""
    for mine, other in zip(ours, theirs, strict=True):
        assert sorted(ids for ids, _ in mine) == sorted(ids for ids, _ in other)
        scores = {tuple(ids): score for ids, score in other}
        assert all(abs(score - scores[tuple(ids)]) < 1e-5 for ids, score in mine)


def search_docids(name: str, docids: list[list[int]], bar: float) -> None:
    """Checks that both find the same, and times them; ours may take `bar` of `generate`'s time."""
    trie = Trie.build(docids)
    model = small_t5(max(VOCABULARY, max(map(max, docids)) + 1))
    query_ids = torch.randint(3, 32_000, (QUERIES, QUERY_LENGTH))
    ours = (model, query_ids, trie, BEAMS, trie.depth)
    theirs = (model, query_ids, children_of_prefixes(docids), BEAMS, trie.depth)
    found = search_by_trie(*ours)
    assert_same(found, search_by_generate(*theirs, with_scores=True))
    steps = {
        "ours": lambda: search_by_trie(*ours),
        "`generate`": lambda: search_by_generate(*theirs),
    }
    compare(f"{QUERIES} queries, {BEAMS} beams, {len(docids):,} {name}", steps, bar)


def main() -> None:
    search_docids("atomic docids", atomic_docids(), 0.2)
    search_docids("titles", titles(), 0.5)
    search_docids("semantic docids", semantic_docids(), 0.5)


if __name__ == "__main__":
    main()
