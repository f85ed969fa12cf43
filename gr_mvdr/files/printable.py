"""Texts from anywhere, for a terminal."""

_SHOWN = 80  # characters of a value in an error


def printable(text: object) -> str:
    """A text without what steers a terminal: escape codes and reversed writing are spelt out."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1]
        for letter in str(text)
    )


def shown(value: object) -> str:
    """A value in an error as the command line has it: null, true, [a, b]; cut to a line."""
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, list):
        text = f"[{', '.join(map(shown, value))}]"
    else:
        text = str(value) if value != "" else "''"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
