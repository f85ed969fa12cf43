"""Docids without structure: one token a document, or its number in digits (DSI, §3.2)."""

from typing import Literal

from gr_mvdr.identifiers.scheme import Identifiers, Scheme, Table
from gr_mvdr.options import part


@part("identifiers")
class AtomicDocids(Scheme):
    """One new token a document (DSI's atomic docids).

    A document that arrives later has no trained token, and an untrained one would be noise.
    """

    def __init__(self, new_documents: Literal["skip", "refuse"] = "skip"):
        """new_documents: they get no identifier and no search returns them, or raise an error."""
        super().__init__()
        self.new_documents = new_documents

    @property
    def n_tokens(self) -> int:
        return len(self.known)

    @property
    def width(self) -> int:
        return self.n_tokens

    def learn(self, documents: Table) -> list[list[int]]:
        return [[self.first_token + number] for number in range(len(documents))]

    def assign(self, documents: Table) -> Identifiers:
        """[] for new documents; raises ValueError if `new_documents` is "refuse"."""
        ids = documents["id"][:]
        new = [document for document in ids if document not in self.known]
        if new and self.new_documents == "refuse":
            raise ValueError(
                f"model.identifiers.new_documents=refuse: {len(new)} documents came after training "
                f"and have no token, the first is {new[0]!r}"
            )
        return Identifiers(ids, [self.known.get(document, []) for document in ids])


@part("identifiers")
class NaiveDocids(Scheme):
    """The decimal digits of the document's number, then </s> (DSI's naive string docids).

    Without leading zeros, so that any number of new documents get the next numbers.
    """

    n_tokens = 10

    def name(self, documents: Table) -> list[list[int]]:
        """The numbers after those of the known documents."""
        numbers = range(len(self.known), len(self.known) + len(documents))
        digits = ([self.first_token + int(digit) for digit in str(n)] for n in numbers)
        return [[*tokens, self.template.stop] for tokens in digits]
