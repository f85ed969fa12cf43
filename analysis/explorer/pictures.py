"""The explorer's view of an alignment as a file."""

import re
from dataclasses import dataclass
from io import BytesIO
from threading import Lock
from typing import Any

from analysis.figures import DOTS

MEDIA = {"png": "image/png", "pdf": "application/pdf"}
_NO_NAME = re.compile(r"[^A-Za-z0-9]+")
_drawing = Lock()  # matplotlib's fonts are shared by all threads


@dataclass(frozen=True)
class Picture:
    """A file that the page can save.

    Attributes:
        name: of letters, digits, "-" and one dot, whatever the labels say.
    """

    name: str
    content: bytes
    media_type: str


def draw_alignment(label: str, aligned: Any, head: int | None, shown: str, kind: str) -> Picture:
    """Draws a pair's matrix.

    Args:
        label: the system's. aligned: of `Retriever.align`.
        head: None = all heads together. shown: "similarity", "alignment" or "product".
        kind: "png" or "pdf".
    """
    content = BytesIO()
    with _drawing:
        figure = aligned.plot(head=head, what=shown).figure
        figure.savefig(content, format=kind, dpi=DOTS, bbox_inches="tight")
    name = _NO_NAME.sub("-", f"{label} {shown}").strip("-").lower()
    return Picture(f"{name}.{kind}", content.getvalue(), MEDIA[kind])
