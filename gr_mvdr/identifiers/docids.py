"""Identifiers that nothing is learned for: a token, the number in digits (DSI, §3.2), the title
(GENRE), or the codes of a table.

DSI is Tay et al. (2022), GENRE De Cao et al. (2021); see gr_as_mvdr §5.1, §7.3.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Literal

from gr_mvdr.identifiers.scheme import Scheme, Table
from gr_mvdr.options import AtLeast, Size, part


@part("identifiers")
class AtomicDocids(Scheme):
    """One new token for each document (DSI's atomic docids).

    A document that arrives after training gets no token, since an untrained token would be noise,
    and no search returns it.
    """

    @property
    def n_tokens(self) -> int:
        return len(self.known)

    @property
    def width(self) -> int:
        return self.n_tokens

    def learn(self, documents: Table) -> list[list[int]]:
        return [[self.first_token + number] for number in range(len(documents))]

    def name(self, documents: Table) -> list[list[int]]:
        return [[] for _ in range(len(documents))]


@part("identifiers")
class NaiveDocids(Scheme):
    """The decimal digits of the document's number, then </s> (DSI's naive string docids).

    Numbers have no leading zeros, so any number of new documents can get the next numbers.
    """

    n_tokens = 10

    def name(self, documents: Table) -> list[list[int]]:
        """Gives new documents the numbers after those of the known documents."""
        numbers = range(len(self.known), len(self.known) + len(documents))
        digits = ([self.first_token + int(digit) for digit in str(n)] for n in numbers)
        return [[*tokens, self.template.stop] for tokens in digits]


@part("identifiers")
class Titles(Scheme):
    """The title, then </s>; documents with the same title share an identifier (GENRE).

    With a BART backbone it begins with <s>, as in GENRE's published models.
    """

    options = ("missing", "first_tokens", "max_length", "long")

    def __init__(
        self,
        missing: Literal["refuse", "first_tokens"] = "refuse",
        first_tokens: Size = 8,
        max_length: Annotated[int, AtLeast(2)] = 32,
        long: Literal["refuse", "cut"] = "refuse",
    ):
        """
        Args:
            missing: a document without a title is an error ("refuse"), or the first tokens of its
                text name it ("first_tokens"); without text, its identifier is the end token alone.
            first_tokens: the number of these tokens.
            max_length: the maximum length of an identifier in tokens, </s> (and BART's <s>)
                included.
            long: a longer identifier is an error ("refuse") or is truncated ("cut").
        """
        super().__init__()
        self.missing, self.first_tokens = missing, first_tokens
        self.max_length, self.long = max_length, long

    def name(self, documents: Table) -> list[list[int]]:
        """Returns the titles' tokens with the template's special tokens around them.

        Raises:
            ValueError: a title is missing or too long, and the option for it is "refuse".
        """
        ids, names = documents["id"][:], documents["title_tokens"][:]
        untitled = [document for document, name in zip(ids, names, strict=True) if not name]
        if self.missing == "first_tokens":
            texts = documents["tokens"]
            names = [name or texts[row][: self.first_tokens] for row, name in enumerate(names)]
        elif untitled:
            raise ValueError(
                f"model.identifiers.missing=refuse: {len(untitled)} documents have no title, the "
                f"first is {untitled[0]!r}; model.identifiers.missing=first_tokens names them by "
                "their text"
            )
        around = len(self.template.read_target((), 0))
        lengths = {document: len(name) + around for document, name in zip(ids, names, strict=True)}
        long = [document for document, length in lengths.items() if length > self.max_length]
        if long and self.long == "refuse":
            longest = max(long, key=lengths.__getitem__)
            raise ValueError(
                f"model.identifiers.max_length={self.max_length}: {len(long)} titles have more "
                f"tokens, the longest ({longest!r}) {lengths[longest]}, special tokens included; "
                "model.identifiers.long=cut shortens them"
            )
        return [self.template.read_target(name, self.max_length) for name in names]


@part("identifiers")
class TableDocids(Scheme):
    """The codes that `data.identifiers` gives a document; each distinct code is a new token.

    Codes are separated by spaces. If identifiers differ in length, each ends with </s>. A document
    that arrives after training has no identifier if one of its codes is new.

    Attributes:
        codes: the distinct codes of the known documents.
        ends: whether identifiers end with </s>.
    """

    values = ("codes", "ends")
    codes: list[str]
    ends: bool

    @property
    def n_tokens(self) -> int:
        return len(self.codes)

    def learn(self, documents: Table) -> list[list[int]]:
        """
        Raises:
            ValueError: there is no table.
        """
        codes = self._read(documents)
        if not all(codes):
            raise ValueError("data.identifiers=null: must be a file of lines docid<TAB>codes")
        self.codes, self.ends = sorted({*chain(*codes)}), len({*map(len, codes)}) > 1
        return self.name(documents)

    def name(self, documents: Table) -> list[list[int]]:
        tokens = {code: self.first_token + number for number, code in enumerate(self.codes)}
        end = [self.template.stop] if self.ends else []
        named = [[tokens.get(code) for code in codes] for codes in self._read(documents)]
        return [[] if None in name or not name else [*name, *end] for name in named]

    def spell(self, sequence: Sequence[int]) -> str:
        own = (token - self.first_token for token in sequence if token >= self.first_token)
        return " ".join(self.codes[number] for number in own)

    def _read(self, documents: Table) -> list[list[str]]:
        """The codes of each document; a document added through a retriever has none."""
        known = "codes" in documents.column_names
        return documents["codes"][:] if known else [[]] * len(documents)
