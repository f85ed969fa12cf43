"""Random numbers and relations without state, so that any entry can be made alone, in O(1)."""

from collections.abc import Iterator
from functools import cache
from hashlib import blake2b

_MASK = (1 << 64) - 1


@cache
def _salt(name: str, seed: int) -> int:
    return int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "big")


def draw(seed: int, name: str, number: int) -> int:
    """A uniform 64-bit integer, a function of its arguments only (SplitMix64's finaliser)."""
    x = (_salt(name, seed) + number * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class Permutation:
    """A shuffle of range(size) and its inverse.

    Rounds of multiplying by an odd number and folding the upper half onto the lower one shuffle
    the numbers below a power of two; those that leave range(size) are sent on until they return.
    """

    ROUNDS = 3

    def __init__(self, size: int, seed: int, name: str):
        self.size = size
        bits = max(1, (size - 1).bit_length())
        self.mask, self.half = (1 << bits) - 1, (bits + 1) // 2
        factors = [draw(seed, name, n) & self.mask | 1 for n in range(self.ROUNDS)]
        shifts = [draw(seed, name, ~n) & self.mask for n in range(self.ROUNDS)]
        self.rounds = list(zip(factors, shifts, strict=True))
        self.back = [(pow(f, -1, 1 << bits), shift) for f, shift in reversed(self.rounds)]

    def __call__(self, number: int) -> int:
        while True:
            for factor, shift in self.rounds:
                number = number * factor + shift & self.mask
                number ^= number >> self.half
            if number < self.size:
                return number

    def inverse(self, number: int) -> int:
        while True:
            for factor, shift in self.back:
                number ^= number >> self.half
                number = (number - shift) * factor & self.mask
            if number < self.size:
                return number


class Link:
    """A relation from each of range(sources) to one of range(targets), evenly spread.

    It is found in both directions without a table: the birthplace of a person, and all people
    born in a place.
    """

    def __init__(self, sources: int, targets: int, seed: int, name: str):
        self.count, self.targets = sources, targets
        self.order = Permutation(max(sources, targets), seed, name)

    def target(self, source: int) -> int:
        return self.order(source) % self.targets

    def sources(self, target: int) -> Iterator[int]:
        """All sources of a target; none of a number that is no target."""
        values = range(target, self.order.size, self.targets) if target < self.targets else ()
        return (source for source in map(self.order.inverse, values) if source < self.count)


def shuffled(items: list[str], seed: int, name: str) -> list[str]:
    """The items in another order."""
    order = Permutation(len(items), seed, name)
    return [items[order(i)] for i in range(len(items))]
