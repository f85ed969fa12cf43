"""The invented world: which entries there are, and how one finds another.

Nothing is stored. Document i of the almanac is slot i % 25 of block i // 25 of LAYOUT; its facts
are draws from (seed, number) and its relations are links that run both ways. So a world of a
million entries takes no more memory than one of fifty, but for the lists of names.
"""

from data_modules.almanac.names import Names
from data_modules.almanac.randomness import Link, Permutation, draw

# In every prefix settlements come first: no more buildings and events than places to be in.
LAYOUT = "SPWPEPSPWPBPWPSPWPEPWPSPB"
LETTERS = {"P": "person", "S": "settlement", "W": "work", "E": "event", "B": "building"}
SLOTS = {
    kind: [slot for slot, other in enumerate(LAYOUT) if other == letter]
    for letter, kind in LETTERS.items()
}


class World:
    """The entries of an almanac of `size` documents.

    Entries of a kind are numbered; their position in the block (number % entries of the kind in a
    block) decides their trade or medium.
    """

    def __init__(self, size: int, seed: int, kinds: dict[str, type]):
        self.size, self.seed, self.kinds = size, seed, kinds
        self.count = {kind: sum(map(self._blocks, slots)) for kind, slots in SLOTS.items()}
        self.rivers = min(max(1, self.count["settlement"] // 3), 25_000)
        self.names = Names(
            seed,
            people=self.count["person"],
            places=self.count["settlement"],
            rivers=self.rivers,
            works=self.count["work"],
        )
        self._links: dict[str, Link] = {}
        self._orders: dict[str, Permutation] = {}

    def entry(self, index: int):
        """The entry of document `index`."""
        block, slot = divmod(index, len(LAYOUT))
        kind = LETTERS[LAYOUT[slot]]
        return self.find(kind, block * len(SLOTS[kind]) + SLOTS[kind].index(slot))

    def find(self, kind: str, number: int):
        """The entry of a kind by its number in the kind."""
        return self.kinds[kind](self, number)

    def blocks(self, kind: str, position: int) -> int:
        """How many entries of a kind have this position in their block."""
        return self._blocks(SLOTS[kind][position])

    def _blocks(self, slot: int) -> int:
        return (self.size - slot + len(LAYOUT) - 1) // len(LAYOUT)

    def link(self, name: str, sources: int, targets: int) -> Link:
        """The relation of this name, between ranges of these sizes."""
        if name not in self._links:
            self._links[name] = Link(sources, targets, self.seed, name)
        return self._links[name]

    def order(self, name: str, size: int) -> Permutation:
        """The order of this name, of range(size)."""
        if name not in self._orders:
            self._orders[name] = Permutation(size, self.seed, name)
        return self._orders[name]

    def draw(self, name: str, number: int) -> int:
        """A uniform 64-bit integer that belongs to this name and number."""
        return draw(self.seed, name, number)
