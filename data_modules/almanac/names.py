"""Names by number: composed, so that a million entries share a few thousand words.

A person has a given name and a surname of two parts; a place a name of two parts, with or without a
word before it; a work a title of ordinary words, with or without a place. Small collections use
few parts, so that most given names, surnames and place names belong to several entries.
"""

from data_modules.almanac import name_parts as parts
from data_modules.almanac.randomness import Permutation, shuffled


class Names:
    """The names of a world with this many entries; different numbers have different names."""

    def __init__(self, seed: int, people: int, places: int, rivers: int, works: int):
        given = min(len(parts.GIVEN), max(16, round(40 * (people / 200) ** 0.25)))
        self.given = parts.GIVEN[:given]
        surnames = shuffled(_pairs(parts.SURNAME_STARTS, parts.SURNAME_ENDS), seed, "surnames")
        self.surnames = surnames[: max(12, round(0.3 * people))]
        self.codes = Permutation(len(self.given) * len(self.surnames), seed, "person names")
        assert people <= self.codes.size, "more people than names"
        self.places = PlaceNames("place", places, seed)
        self.rivers = PlaceNames("river", rivers, seed)
        provinces = _pairs(parts.PROVINCE_STARTS, parts.PROVINCE_ENDS)
        self.provinces = shuffled(provinces, seed, "provinces")[: max(3, min(places // 9, 60))]
        self.titles = shuffled(_titles(), seed, "titles")[: max(10, round(0.6 * works))]

    def person(self, number: int) -> tuple[str, str, bool]:
        """(given name, surname, is a woman)."""
        surname, given = divmod(self.codes(number), len(self.given))
        return self.given[given], self.surnames[surname], given % 2 == 0

    def title(self, number: int, places: int) -> str:
        """A work's title; when the plain ones are used up, "... of <one of the places>"."""
        repeat, title = divmod(number, len(self.titles))
        if repeat == 0:
            return self.titles[title]
        return f"{self.titles[title]} of {self.places((title * 7 + repeat) % places)}"


class PlaceNames:
    """Two-part names, shared by several: "Velsund", "Upper Velsund", "New Velsund"."""

    def __init__(self, kind: str, wanted: int, seed: int):
        starts, ends, words = parts.OF_PLACES[kind]
        self.bases = shuffled(_pairs(starts, ends), seed, kind)[: max(3, round(0.6 * wanted))]
        self.words = shuffled(words, seed, f"{kind} words")
        assert wanted <= len(self.bases) * (len(words) + 1), f"too few names of kind {kind}"

    def __call__(self, number: int) -> str:
        repeat, base = divmod(number, len(self.bases))
        if repeat == 0:
            return self.bases[base]
        # Which word goes with which base differs, so that no word marks all second names.
        return f"{self.words[(base + repeat) % len(self.words)]} {self.bases[base]}"


def _pairs(starts: list[str], ends: list[str]) -> list[str]:
    return list(dict.fromkeys(start + end for start in starts for end in ends))


def _titles() -> list[str]:
    nouns = parts.TITLE_NOUNS
    return [f"The {a} {noun}" for a in parts.TITLE_ADJECTIVES for noun in nouns] + [
        f"The {a} and the {b}" for a in nouns for b in nouns if a != b
    ]
