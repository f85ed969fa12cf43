"""Texts from anywhere, for a terminal."""

_SHOWN = 80  # characters of a value in an error


def printable(text: object) -> str:
    """A text without what steers a terminal: escape codes and reversed writing are spelt out."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1]
        for letter in str(text)
    )


def shown(value: object) -> str:
    """A value in an error, not longer than a line."""
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
