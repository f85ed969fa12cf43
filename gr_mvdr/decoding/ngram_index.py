"""An index of every n-gram of a corpus: a suffix array, which does the work of SEAL's FM-index.

A prefix of t tokens is an interval [low, high) of the sorted suffixes: its length is the prefix's
count, its entries are the prefix's places. The prefix's successors begin at `low` and wherever two
neighbours share exactly t tokens, so the array of shared prefix lengths lists them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.batch import ragged_range
from gr_mvdr.decoding.beam_search import Successors
from gr_mvdr.files import open_tensors, reading, write_tensors

_ARRAYS = ("text", "starts", "suffixes", "shared")
# Depths whose branches are held in memory; deeper intervals are short enough to scan.
LISTED_DEPTHS = 2
DEPTH, DEEPEST = 16, 255  # tokens of the longest n-gram, unless asked for more, and at most
# Tokens, with one more for each document, that int32 can number.
MOST = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Intervals:
    """Prefixes of `depth` tokens each: their intervals [low, high) of the index, (H,) int64.

    The intervals stay in numpy, like the index; `device` is where the search runs.
    """

    low: np.ndarray
    high: np.ndarray
    depth: int
    device: torch.device | str = "cpu"

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, index: Tensor) -> "Intervals":
        rows = index.cpu().numpy()
        return Intervals(self.low[rows], self.high[rows], self.depth, self.device)


class NgramIndex:
    """Counts, places and continuations of the n-grams of a corpus; a `Constraint` for the search.

    An n-gram lies within one document: it never crosses a document's end. Places are int32, so that
    tokens and documents together are at most 2^31 − 1.

    Attributes:
        text: (T,) uint16 or uint32, each document followed by the terminator (the type's maximum);
        starts: (documents + 1,) int64, where each document begins in `text`;
        suffixes: (tokens,) int32, places in `text` ordered by `depth` tokens and then by place;
        shared: (tokens,) uint8, how many tokens each suffix shares with the one sorted before it;
        tokens, token_counts: (distinct tokens,) int64, the tokens that occur and how often.
    """

    def __init__(
        self,
        text: np.ndarray,
        starts: np.ndarray,
        suffixes: np.ndarray,
        shared: np.ndarray,
        depth: int,
    ):
        self.text, self.starts, self.suffixes, self.shared = text, starts, suffixes, shared
        self.depth = depth
        self.terminator = int(np.iinfo(text.dtype).max)
        # Branches of depth t: where suffixes begin that share at most t tokens with the one before.
        self._branches = [
            np.append(np.flatnonzero(shared <= t), len(suffixes)).astype(np.int32)
            for t in range(LISTED_DEPTHS)
        ]
        self.tokens = text[suffixes[self._branches[0][:-1]]].astype(np.int64)
        self.token_counts = np.diff(self._branches[0])

    @classmethod
    def build(cls, sequences: Iterable[Sequence[int]], depth: int = DEPTH) -> "NgramIndex":
        """Indexes the documents' token ids; an end-of-sequence token is the caller's to append.

        Args:
            sequences: token ids ≥ 0, document by document in the order of their numbers.
            depth: the search's longest n-gram, at most 255; longer ones are counted more slowly.

        Raises:
            ValueError: more tokens than int32 can number.
        """
        text, starts = join_sequences([np.asarray(tokens, np.int64) for tokens in sequences])
        suffixes = sort_suffixes(text, starts, depth)
        return cls(text, starts, suffixes, count_common_prefixes(text, suffixes, depth), depth)

    def save(self, path: str | Path) -> None:
        """Writes the index as one file."""
        arrays = {name: torch.from_numpy(getattr(self, name)) for name in _ARRAYS}
        write_tensors(Path(path), arrays, {"depth": self.depth})

    @classmethod
    def load(cls, path: str | Path) -> "NgramIndex":
        """Opens a saved index by memory map.

        Raises:
            FileNotFoundError: no such file.
            ValueError: it is damaged.
        """
        tensors, settings = open_tensors(Path(path))
        with reading(f"{path}: is damaged"):
            arrays = {name: tensors[name].numpy() for name in _ARRAYS}
            return cls(**arrays, depth=settings["depth"])

    def holds(self, sequences: Iterable[Sequence[int]]) -> bool:
        """Whether these are the documents that it was built of, token by token."""
        text, starts = join_sequences([np.asarray(tokens, np.int64) for tokens in sequences])
        return np.array_equal(starts, self.starts) and np.array_equal(text, self.text)

    def within(self, documents: Iterable[int]) -> "NgramIndex":
        """The n-grams of some documents alone, of one or more; all keep their numbers.

        Counts are those within these documents. Takes a pass over all tokens, no sorting.
        """
        wanted = np.zeros(self.n_documents, bool)
        wanted[list(documents)] = True
        rows = np.flatnonzero(np.repeat(wanted, np.diff(self.starts))[self.suffixes])
        # Two suffixes share what all neighbours between them share.
        shared = np.zeros(len(rows), np.uint8)
        shared[1:] = np.minimum.reduceat(self.shared[: rows[-1] + 1], rows[:-1] + 1)
        return NgramIndex(self.text, self.starts, self.suffixes[rows], shared, self.depth)

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.suffixes)

    @property
    def n_documents(self) -> int:
        return len(self.starts) - 1

    def sequence(self, document: int) -> np.ndarray:
        """The tokens of one document, as they were given."""
        return self.text[self.starts[document] : self.starts[document + 1] - 1]

    def count(self, ngram: Sequence[int]) -> int:
        """How often the n-gram occurs."""
        if len(ngram) > self.depth:
            return len(self.positions(ngram))
        low, high = self.intervals([ngram])
        return int(high[0] - low[0])

    def successors(self, ngram: Sequence[int]) -> np.ndarray:
        """The distinct tokens that follow the n-gram somewhere, ascending, int64."""
        if len(ngram) < self.depth:
            return self.expand(Intervals(*self.intervals([ngram]), len(ngram))).token.numpy()
        following = self.text[self.positions(ngram) + len(ngram)]
        return np.unique(following[following != self.terminator]).astype(np.int64)

    def documents(self, ngram: Sequence[int]) -> np.ndarray:
        """The distinct numbers of the documents that hold the n-gram, ascending, int64."""
        return np.unique(self.documents_at(self.positions(ngram)))

    def documents_at(self, positions: np.ndarray) -> np.ndarray:
        """The numbers of the documents that hold these places of `text`."""
        return np.searchsorted(self.starts, positions, side="right") - 1

    def positions(self, ngram: Sequence[int]) -> np.ndarray:
        """Every place of `text` where the n-gram begins, in no particular order, int64."""
        (low,), (high,) = self.intervals([ngram[: self.depth]])
        places = self.suffixes[low:high].astype(np.int64)
        for t in range(self.depth, len(ngram)):
            if ngram[t] == self.terminator:  # no token, and behind the last one nothing comes
                return places[:0]
            places = places[self.text[places + t] == ngram[t]]
        return places

    def intervals(self, ngrams: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """The intervals of n-grams of at most `depth` tokens, all at once.

        Returns:
            low, high (n,) int64; high − low is the n-gram's count.

        Raises:
            ValueError: an n-gram is longer.
        """
        lengths = np.fromiter(map(len, ngrams), np.int64, len(ngrams))
        if lengths.max(initial=0) > self.depth:
            raise ValueError(
                f"an n-gram of {lengths.max()} tokens: must be ≤ {self.depth}, the index's depth"
            )
        flat = np.fromiter((token for ngram in ngrams for token in ngram), np.int64, lengths.sum())
        flat[(flat < 0) | (flat >= self.terminator)] = -1  # occurs nowhere
        first = np.cumsum(lengths) - lengths
        low, high = np.zeros_like(lengths), np.full_like(lengths, len(self))
        for t in range(lengths.max(initial=0)):
            rows = np.flatnonzero((lengths > t) & (low < high))
            token, bounds = flat[first[rows] + t], (low[rows], high[rows])
            low[rows] = self._first_at_least(*bounds, token, t)
            high[rows] = self._first_at_least(*bounds, token + 1, t)
        return low, high

    def _first_at_least(
        self, low: np.ndarray, high: np.ndarray, token: np.ndarray, depth: int
    ) -> np.ndarray:
        """The first row of each interval [low, high) whose token at `depth` is ≥ `token`."""
        while (open_ := low < high).any():
            middle = np.where(open_, (low + high) >> 1, 0)
            less = open_ & (self.text[self.suffixes[middle] + np.where(open_, depth, 0)] < token)
            low = np.where(less, middle + 1, low)
            high = np.where(open_ & ~less, middle, high)
        return low

    # The constraint of a search: all hypotheses at once --------------------------------------

    def root(self, batch: int, device: torch.device | str) -> Intervals:
        return Intervals(np.zeros(batch, np.int64), np.full(batch, len(self), np.int64), 0, device)

    def expand(self, state: Intervals) -> Successors:
        """The distinct tokens that follow each prefix; ValueError at the depth of the index."""
        if state.depth >= self.depth:
            raise ValueError(
                f"length={state.depth + 1}: an index of depth {self.depth} cannot constrain longer "
                f"sequences, build it with depth={state.depth + 1}"
            )
        row, start, stop = self._split(state)
        token = self.text[self.suffixes[start] + state.depth]
        goes_on = token != self.terminator
        if not goes_on.all():
            row, start, stop, token = (x[goes_on] for x in (row, start, stop, token))
        counts = np.diff(np.searchsorted(row, np.arange(len(state) + 1))).tolist()
        row, token = (torch.from_numpy(x).to(state.device) for x in (row, token.astype(np.int64)))
        return Successors(row, token, Intervals(start, stop, state.depth + 1, state.device), counts)

    def reachable(self, state: Intervals) -> np.ndarray:
        """The numbers of the documents that hold one prefix, ascending, int64."""
        return np.unique(self.documents_at(self.suffixes[state.low[0] : state.high[0]]))

    def _split(self, state: Intervals) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cuts each interval into its branches: rows of the state, first and last + 1 entries."""
        if state.depth < LISTED_DEPTHS:
            branches = self._branches[state.depth]
            # In the type of `branches`: searchsorted would copy them to the wider one.
            low, high = state.low.astype(branches.dtype), state.high.astype(branches.dtype)
            row, branch = ragged_range(
                np.searchsorted(branches, low), np.searchsorted(branches, high)
            )
            return row, branches[branch], branches[branch + 1]
        row, entry = ragged_range(state.low, state.high)
        begins = (self.shared[entry] == state.depth) | (entry == state.low[row])
        row, start = row[begins], entry[begins]
        # A branch ends where the next one of its row begins, the last one where its interval ends.
        stop = np.append(start, 0)[1:]
        is_last = np.append(row, -1)[1:] != row
        return row, start, np.where(is_last, state.high[row], stop)


# The suffix array: prefix doubling with numpy alone ---------------------------------------------


def join_sequences(sequences: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Lays sequences in a row, a terminator (the type's largest value) after each.

    Args:
        sequences: int64 arrays of token ids ≥ 0, at least one id in all.

    Returns:
        text (tokens + sequences,) uint16 where the ids fit and uint32 otherwise, and
        starts (sequences + 1,) int64, where each sequence begins, closed by the text's length.

    Raises:
        ValueError: too long a text.
    """
    starts = np.cumsum([0] + [len(sequence) + 1 for sequence in sequences])
    if starts[-1] > MOST:
        raise ValueError(
            f"sequences: {starts[-1]:,} tokens, one more for each document among them: must be "
            f"≤ {MOST:,}, what int32 can number; split the collection (data.shard)"
        )
    tokens = np.concatenate(sequences)
    dtype = np.uint16 if tokens.max() < np.iinfo(np.uint16).max else np.uint32
    text = np.full(starts[-1], np.iinfo(dtype).max, dtype)
    holds_token = np.ones(len(text), bool)
    holds_token[starts[1:] - 1] = False
    text[holds_token] = tokens
    return text, starts


def sort_suffixes(text: np.ndarray, starts: np.ndarray, depth: int) -> np.ndarray:
    """The suffix array of a joined text, ordered by `depth` tokens and then by place.

    As many tokens as fit are packed in one 64-bit key for the first sort; each further sort then
    doubles the order's depth, and touches only the suffixes that are still equal. Suffixes
    are compared up to the terminator, which is larger than every token: never across a document.

    Args:
        text, starts: as `join_sequences` returns them; depth: tokens that are compared.

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
        # A suffix that has ended is distinct already: any constant will do.
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
