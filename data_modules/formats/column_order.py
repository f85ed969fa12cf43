"""Which column is the title and which the text, where a file's order of columns is not sure."""

from collections.abc import Iterable
from itertools import islice
from statistics import median

_ROWS = 100  # that are looked at


def check_title_and_text(rows: Iterable[tuple[str, str, str]], expected: str) -> None:
    """Refuses a file whose titles are longer than its texts: its columns stand in another order.

    Args:
        rows: (``file:line``, title, text), of which the first hundred are looked at.
        expected: the order that was read, for the message.

    Raises:
        ValueError: more than half of the titles have more words than half of the texts.
    """
    first = list(islice(rows, _ROWS))
    titles, texts = ([len(row[column].split()) for row in first] for column in (1, 2))
    if first and median(titles) > median(texts):
        raise ValueError(
            f"{first[0][0]}: expected the columns {expected}; what is read as the title "
            f"({first[0][1][:40]!r}) is mostly longer than the text ({first[0][2][:40]!r}): put "
            "the columns in order, or name them in a header"
        )
