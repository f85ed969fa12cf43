"""The suffix array of a corpus of token ids: prefix doubling with numpy alone."""

import numpy as np

# Tokens, with one more for each document, that int32 can number.
MOST = np.iinfo(np.int32).max


def join(sequences: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Lays sequences in a row, a terminator (the type's largest value) after each.

    Args:
        sequences: int64 arrays of token ids ≥ 0.
    Returns:
        text (tokens + sequences,) uint16 where the ids fit and uint32 otherwise, and
        starts (sequences + 1,) int64, where each sequence begins, closed by the text's length.
    Raises:
        ValueError: no tokens at all, an id that is negative or too large, or too long a text.
    """
    starts = np.cumsum([0] + [len(sequence) + 1 for sequence in sequences])
    if starts[-1] > MOST:
        raise ValueError(
            f"sequences: {starts[-1]:,} tokens, one more for each document among them: must be "
            f"≤ {MOST:,}, what int32 can number; split the collection (data.shard)"
        )
    tokens = np.concatenate(sequences) if sequences else np.empty(0, np.int64)
    if not len(tokens):
        raise ValueError("sequences: an n-gram index needs at least one token, received none")
    if tokens.min() < 0 or tokens.max() >= np.iinfo(np.uint32).max:
        raise ValueError(
            f"sequences: ids {tokens.min()} to {tokens.max()}, must lie in [0, 2^32 - 1)"
        )
    dtype = np.uint16 if tokens.max() < np.iinfo(np.uint16).max else np.uint32
    text = np.full(starts[-1], np.iinfo(dtype).max, dtype)
    holds_token = np.ones(len(text), bool)
    holds_token[starts[1:] - 1] = False
    text[holds_token] = tokens
    return text, starts


def sort_suffixes(text: np.ndarray, starts: np.ndarray, depth: int) -> np.ndarray:
    """The suffix array of a joined text, ordered by `depth` tokens and then by place.

    As many tokens as fit are packed in one 64-bit key for the first sort; each further sort then
    doubles the order's depth, and touches only the suffixes that are not yet told apart. Suffixes
    are compared up to the terminator, which is larger than every token: never across a document.

    Args:
        text, starts: as `join` returns them; depth: compare so many tokens.
    Returns:
        (tokens,) int32, the places in `text`; terminators are no suffixes.
    """
    keys, sorted_depth = _packed_keys(text, depth)
    order = np.argsort(keys, kind="stable").astype(np.int32)
    keys = keys[order]
    rank = np.empty(len(text), np.int32)
    tied = _rank(rank, order, keys, np.arange(len(text), dtype=np.int32))
    del keys
    ends = np.repeat((starts[1:] - 1).astype(np.int32), np.diff(starts))
    while sorted_depth < depth and len(tied):
        step = min(sorted_depth, depth - sorted_depth)
        suffix = order[tied]
        # Beyond its sequence's end a suffix has been told apart already: any constant will do.
        later = np.where(suffix <= ends[suffix] - step, suffix + step, len(text) - 1)
        keys = (rank[suffix].astype(np.int64) << 32) | rank[later]
        sort = np.argsort(keys, kind="stable")
        order[tied] = suffix[sort]
        tied = _rank(rank, order, keys[sort], tied)
        sorted_depth += step
    n_terminators = len(starts) - 1  # they are the largest, so they come last
    return order[: len(order) - n_terminators].copy()


def _packed_keys(text: np.ndarray, depth: int) -> tuple[np.ndarray, int]:
    """The first tokens of every suffix as one int64 (terminator largest), and how many they are."""
    terminator = np.iinfo(text.dtype).max
    largest = int(text[text != terminator].max()) + 1
    bits = largest.bit_length()
    width = max(1, min(depth, 63 // bits))
    ended = text == terminator
    tokens = np.where(ended, largest, text)
    keys = tokens.astype(np.int64)
    for packed in range(1, width):
        rest = np.append(keys[1:], 0)
        rest[ended] = 0  # what follows a terminator belongs to another sequence
        np.left_shift(tokens, bits * packed, out=keys, dtype=np.int64)
        keys |= rest
    return keys, width


def _rank(rank: np.ndarray, order: np.ndarray, keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Writes the ranks of `order[rows]`, sorted by `keys`; returns the rows that are still tied.

    A suffix's rank is the first row of its group of equals, so refining one group changes no other.
    """
    new = np.ones(len(keys), bool)
    new[1:] = keys[1:] != keys[:-1]
    first = np.flatnonzero(new).astype(np.int32)
    sizes = np.diff(np.append(first, len(keys)))
    rank[order[rows]] = np.repeat(rows[first], sizes)
    return rows[np.repeat(sizes > 1, sizes)]


def count_common_prefixes(text: np.ndarray, suffixes: np.ndarray, depth: int) -> np.ndarray:
    """How many tokens each suffix shares with the one sorted before it, at most `depth`.

    Two suffixes equal up to the end of their sequences count as sharing `depth` tokens, so that
    they form one branch of every prefix and not one each.

    Returns:
        (tokens,) uint8; the first is 0.
    """
    terminator = np.iinfo(text.dtype).max
    shared = np.full(len(suffixes), depth, np.uint8)
    shared[0] = 0
    active = np.arange(1, len(suffixes))
    for t in range(depth):
        token = text[suffixes[active] + t]
        equal = token == text[suffixes[active - 1] + t]
        shared[active[~equal]] = t
        active = active[equal & (token != terminator)]
    return shared
