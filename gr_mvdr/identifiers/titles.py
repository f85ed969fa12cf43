"""Titles as identifiers (GENRE, De Cao et al. 2021; gr_as_mvdr §5.1, §7.3)."""

from gr_mvdr.identifiers.scheme import Encode, Scheme, Table, check_at_least, check_choice
from gr_mvdr.options import part


@part("identifiers")
class Titles(Scheme):
    """A document's identifier is its title, then </s>. Documents of one title share it.

    Of a BART it begins with <s>, as the sequences of GENRE's published models do.
    """

    options = ("missing", "first_tokens", "max_length", "long")

    def __init__(
        self,
        missing: str = "refuse",
        first_tokens: int = 8,
        max_length: int = 32,
        long: str = "refuse",
    ):
        """
        Args:
            missing: what to do where there is no title: "refuse", or "first_tokens": the text's
                first tokens name the document, and where there is no text, the end token alone.
            first_tokens: how many tokens of the text.
            max_length: tokens of an identifier, </s> (and BART's <s>) included.
            long: what to do with longer ones: "refuse" or "cut".

        Raises:
            ValueError: an option out of range.
        """
        super().__init__()
        check_choice("model.identifiers.missing", missing, ("refuse", "first_tokens"))
        check_choice("model.identifiers.long", long, ("refuse", "cut"))
        check_at_least("model.identifiers.first_tokens", first_tokens, 1)
        check_at_least("model.identifiers.max_length", max_length, 2)
        self.missing, self.first_tokens = missing, first_tokens
        self.max_length, self.long = max_length, long

    def fit(self, documents: Table, first_token: int, encode: Encode | None = None) -> None:
        """Learns nothing, but refuses now what `assign` would refuse later."""
        super().fit(documents, first_token, encode)
        self.assign(documents)

    def assign(self, documents: Table) -> list[list[int]]:
        """The titles' tokens, with those around them.

        Raises:
            ValueError: a document without a title, or a title that is too long, is to be refused.
        """
        ids, names = documents["id"][:], documents["title_tokens"][:]
        nameless = [document for document, name in zip(ids, names, strict=True) if not name]
        if self.missing == "first_tokens":
            texts = documents["tokens"]
            names = [name or texts[row][: self.first_tokens] for row, name in enumerate(names)]
        elif nameless:
            raise ValueError(
                f"model.identifiers.missing=refuse: {len(nameless)} documents have no title, the "
                f"first is {nameless[0]!r}; model.identifiers.missing=first_tokens names them by "
                "their text"
            )
        around = len(self.template.read_target((), 0))
        lengths = {document: len(name) + around for document, name in zip(ids, names, strict=True)}
        long = [document for document, length in lengths.items() if length > self.max_length]
        if long and self.long == "refuse":
            longest = max(long, key=lengths.__getitem__)
            raise ValueError(
                f"model.identifiers.max_length={self.max_length}: {len(long)} titles have more "
                f"tokens, the longest ({longest!r}) {lengths[longest]}, those around it included; "
                "model.identifiers.long=cut shortens them"
            )
        return [self.template.read_target(name, self.max_length) for name in names]
