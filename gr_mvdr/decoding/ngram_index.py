"""An index of all n-grams of a corpus: a suffix array, used instead of SEAL's FM-index.

The suffixes that begin with a prefix of t tokens form an interval [low, high) of the sorted
suffixes. The interval's length is the prefix's count; its entries are the prefix's places. A new
successor begins at `low` and wherever two neighbours share exactly t tokens, so the array of shared
prefix lengths lists the successors.
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
# The number of depths whose branches are kept in memory; deeper intervals are short enough to scan.
LISTED_DEPTHS = 2
DEPTH, DEEPEST = 16, 255  # default and maximum depth: tokens of the longest n-gram
# The maximum number of tokens, plus one per document, that int32 can number.
MOST = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Intervals:
    """Prefixes of `depth` tokens each, as intervals [low, high) of the index, (H,) int64.

    The intervals are numpy arrays, like the index; the search runs on `device`.
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
    """Counts, places and successors of the n-grams of a corpus; a `Constraint` for the search.

    An n-gram never crosses the end of a document. Places are int32, so the numbers of tokens and
    documents together are at most 2^31 − 1.

    Attributes:
        text: (T,) uint16 or uint32, each document followed by the terminator (the type's maximum).
        starts: (documents + 1,) int64, the place in `text` where each document begins.
        suffixes: (tokens,) int32, places in `text` ordered by `depth` tokens, then by place.
        shared: (tokens,) uint8, the number of tokens that each suffix shares with the suffix sorted
            before it.
        tokens: (distinct tokens,) int64, the tokens that occur.
        token_counts: (distinct tokens,) int32, how often each of them occurs.
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
        # Branches of depth t begin at suffixes that share at most t tokens with the suffix before.
        self._branches = [
            np.append(np.flatnonzero(shared <= t), len(suffixes)).astype(np.int32)
            for t in range(LISTED_DEPTHS)
        ]
        self.tokens = text[suffixes[self._branches[0][:-1]]].astype(np.int64)
        self.token_counts = np.diff(self._branches[0])

    @classmethod
    def build(cls, sequences: Iterable[Sequence[int]], depth: int = DEPTH) -> "NgramIndex":
        """Indexes the documents' token ids; the caller appends end tokens if they are needed.

        Args:
            sequences: each document's token ids ≥ 0, in the order of the documents' numbers.
            depth: the length of the longest n-gram that a search can generate, at most 255; longer
                n-grams are counted more slowly.

        Raises:
            ValueError: there are more tokens than int32 can number.
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
            FileNotFoundError: the file does not exist.
            ValueError: the file is damaged.
        """
        tensors, settings = open_tensors(Path(path))
        with reading(f"{path}: is damaged"):
            arrays = {name: tensors[name].numpy() for name in _ARRAYS}
            return cls(**arrays, depth=settings["depth"])

    def holds(self, sequences: Iterable[Sequence[int]]) -> bool:
        """Returns whether the index was built from exactly these token sequences."""
        text, starts = join_sequences([np.asarray(tokens, np.int64) for tokens in sequences])
        return np.array_equal(starts, self.starts) and np.array_equal(text, self.text)

    def within(self, documents: Iterable[int]) -> "NgramIndex":
        """Returns an index of the n-grams of some documents (at least one), without sorting again.

        The documents keep their numbers; n-grams are counted in these documents only.
        """
        wanted = np.zeros(self.n_documents, bool)
        wanted[list(documents)] = True
        rows = np.flatnonzero(np.repeat(wanted, np.diff(self.starts))[self.suffixes])
        # Two suffixes share as many tokens as the least similar neighbours between them.
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
        """Returns the tokens of one document."""
        return self.text[self.starts[document] : self.starts[document + 1] - 1]

    def count(self, ngram: Sequence[int]) -> int:
        """Returns how often the n-gram occurs."""
        if len(ngram) > self.depth:
            return len(self.positions(ngram))
        low, high = self.intervals([ngram])
        return int(high[0] - low[0])

    def successors(self, ngram: Sequence[int]) -> np.ndarray:
        """Returns the distinct tokens that follow the n-gram, ascending, int64."""
        if len(ngram) < self.depth:
            return self.expand(Intervals(*self.intervals([ngram]), len(ngram))).token.numpy()
        following = self.text[self.positions(ngram) + len(ngram)]
        return np.unique(following[following != self.terminator]).astype(np.int64)

    def documents(self, ngram: Sequence[int]) -> np.ndarray:
        """Returns the numbers of the documents that contain the n-gram, ascending, int64."""
        return np.unique(self.documents_at(self.positions(ngram)))

    def documents_at(self, positions: np.ndarray) -> np.ndarray:
        """Returns the number of the document at each of these places of `text`."""
        return np.searchsorted(self.starts, positions, side="right") - 1

    def positions(self, ngram: Sequence[int]) -> np.ndarray:
        """Returns all places of `text` where the n-gram begins, in no particular order, int64."""
        (low,), (high,) = self.intervals([ngram[: self.depth]])
        places = self.suffixes[low:high].astype(np.int64)
        for t in range(self.depth, len(ngram)):
            if ngram[t] == self.terminator:  # not a token; a place after the last one is invalid
                return places[:0]
            places = places[self.text[places + t] == ngram[t]]
        return places

    def intervals(self, ngrams: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Finds the intervals of n-grams of at most `depth` tokens, all at once.

        Returns:
            low, high: (n,) int64; high − low is an n-gram's count.

        Raises:
            ValueError: an n-gram has more than `depth` tokens.
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
        """Finds the first row of each interval [low, high) whose token at `depth` is ≥ `token`."""
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
        """Returns the distinct tokens that follow each prefix.

        Raises:
            ValueError: the prefixes are as long as the index is deep.
        """
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
        """Returns the numbers of the documents that contain one prefix, ascending, int64."""
        return np.unique(self.documents_at(self.suffixes[state.low[0] : state.high[0]]))

    def _split(self, state: Intervals) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Splits intervals into branches; returns each branch's row of the state, start and end."""
        if state.depth < LISTED_DEPTHS:
            branches = self._branches[state.depth]
            # With the dtype of `branches`, searchsorted does not copy them to a wider type.
            low, high = state.low.astype(branches.dtype), state.high.astype(branches.dtype)
            row, branch = ragged_range(
                np.searchsorted(branches, low), np.searchsorted(branches, high)
            )
            return row, branches[branch], branches[branch + 1]
        row, entry = ragged_range(state.low, state.high)
        begins = (self.shared[entry] == state.depth) | (entry == state.low[row])
        row, start = row[begins], entry[begins]
        # A branch ends where the next branch begins; a row's last branch ends with its interval.
        stop = np.append(start, 0)[1:]
        is_last = np.append(row, -1)[1:] != row
        return row, start, np.where(is_last, state.high[row], stop)


# The suffix array: a radix sort with numpy alone ------------------------------------------------


def join_sequences(sequences: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenates sequences, with a terminator (the type's largest value) after each.

    Args:
        sequences: int64 arrays of token ids ≥ 0, at least one id in total.

    Returns:
        text: (tokens + sequences,) uint16 if the ids fit, else uint32.
        starts: (sequences + 1,) int64, where each sequence begins, then the text's length.

    Raises:
        ValueError: the text is longer than int32 can number.
    """
    starts = np.cumsum([0] + [len(sequence) + 1 for sequence in sequences])
    if starts[-1] > MOST:
        raise ValueError(
            f"sequences: {starts[-1]:,} tokens, one more for each document among them: must be "
            f"≤ {MOST:,}, what int32 can number; split the collection"
        )
    tokens = np.concatenate(sequences)
    dtype = np.uint16 if tokens.max() < np.iinfo(np.uint16).max else np.uint32
    text = np.full(starts[-1], np.iinfo(dtype).max, dtype)
    holds_token = np.ones(len(text), bool)
    holds_token[starts[1:] - 1] = False
    text[holds_token] = tokens
    return text, starts


def sort_suffixes(text: np.ndarray, starts: np.ndarray, depth: int) -> np.ndarray:
    """Computes the suffix array of a joined text, ordered by `depth` tokens, then by place.

    A radix sort: suffixes are sorted by their last compared token first and by their first token
    last, each time stably. A comparison never crosses a document's end: past it, every token is the
    terminator, which is larger than all others.

    Args:
        text, starts: as `join_sequences` returns them.
        depth: the number of tokens that are compared.

    Returns:
        (tokens,) int32, the places in `text`, without those of terminators.
    """
    terminators = (starts[1:] - 1).astype(np.int32)
    end = np.repeat(terminators, np.diff(starts))
    order = np.delete(np.arange(len(text), dtype=np.int32), terminators)
    for t in reversed(range(depth)):
        token = text[np.minimum(order, end[order] - t) + t]  # order + t may exceed int32
        order = order[np.argsort(token, kind="stable")]
    return order


def count_common_prefixes(text: np.ndarray, suffixes: np.ndarray, depth: int) -> np.ndarray:
    """Counts the tokens that each suffix shares with the suffix sorted before it, up to `depth`.

    Two suffixes that are equal up to the end of their sequences count as sharing `depth` tokens, so
    that they form one branch of a prefix instead of two.

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
