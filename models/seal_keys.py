"""Full SEAL's further keys: titles, and the n-grams of the query itself (facts: Full SEAL)."""

from collections.abc import Sequence
from typing import Any

from gr_mvdr.batch import pad
from gr_mvdr.decoding.ngram_index import NgramIndex
from gr_mvdr.decoding.trie import Trie
from gr_mvdr.tokenizers import EOS_ID
from models.decoding import sequence_scores

# A key: an n-gram of the index and its log-probability given the query.
Key = tuple[list[int], float]


def title_keys(system: Any, sources: Sequence[Sequence[int]], titles: Trie) -> list[list[Key]]:
    """The most probable titles for each source, with their title end, as keys.

    Args:
        system: a `GenerativeSystem`; sources: token ids that ask for a title, ended.
        titles: a trie of all titles with title end and end token.
    """
    found = system.beam(sources, titles, titles.depth)
    ended = [found.final.of(number) for number in range(len(sources))]
    return [[(key[:-1], score) for key, score in keys if key[-1] == EOS_ID] for keys in ended]


def query_keys(
    system: Any, query: Sequence[int], source: Sequence[int], index: NgramIndex, longest: int
) -> list[Key]:
    """The query's own n-grams that occur in the corpus, with their log-probabilities.

    Args:
        system: a `GenerativeSystem`; query: its token ids; source: the same as the encoder reads
            it, ended; index: of the corpus; longest: tokens an n-gram.
    """
    grams = {
        tuple(query[start : start + length])
        for length in range(1, longest + 1)
        for start in range(len(query) - length + 1)
    }
    low, high = index.intervals(grams := sorted(grams))
    grams = [list(gram) for gram, count in zip(grams, high - low, strict=True) if count]
    if not grams:
        return []
    ids, mask = (x.to(system.device) for x in pad(grams))
    step = system.decoding_step(*(x.to(system.device) for x in pad([source] * len(grams))))
    scores = sequence_scores(step, ids, mask)
    return list(zip(grams, scores.tolist(), strict=True))
