"""Docids without structure: one token a document, or its number in digits (DSI, §3.2)."""

from typing import Literal

from gr_mvdr.identifiers.scheme import Scheme, Table
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
        return len(self.document_ids)

    @property
    def width(self) -> int:
        return self.n_tokens

    def assign(self, documents: Table) -> list[list[int]]:
        """One token for each known document, [] for new ones.

        Raises:
            ValueError: there are new documents, and `new_documents` is "refuse".
        """
        numbers = self.numbers(documents)
        if self.new_documents == "refuse" and None in numbers:
            first = documents["id"][numbers.index(None)]
            raise ValueError(
                f"model.identifiers.new_documents=refuse: {numbers.count(None)} documents came "
                f"after training and have no token, the first is {first!r}"
            )
        return [[] if number is None else [self.first_token + number] for number in numbers]


@part("identifiers")
class NaiveDocids(Scheme):
    """The decimal digits of the document's number, then </s> (DSI's naive string docids).

    Without leading zeros, so that any number of new documents get the next numbers.
    """

    n_tokens = 10
    width = None

    def assign(self, documents: Table) -> list[list[int]]:
        """Known documents have the number of their row in `fit`, new ones the next numbers."""
        sequences, next_number = [], len(self.document_ids)
        for number in self.numbers(documents):
            if number is None:
                number, next_number = next_number, next_number + 1
            digits = (self.first_token + int(digit) for digit in str(number))
            sequences.append([*digits, self.template.stop])
        return sequences
