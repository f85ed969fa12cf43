"""The explorer's view of an alignment as a file."""

import re
from dataclasses import dataclass
from io import BytesIO
from threading import Lock

from matplotlib.figure import Figure

from analysis.figures import DOTS
from models.results import AlignedPair

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


def draw_alignment(
    label: str, aligned: AlignedPair, head: int | None, shown: str, kind: str
) -> Picture:
    """Draws a pair's matrix.

    Args:
        label: the system's.
        head: None = all heads together. shown: "similarity", "alignment" or "product".
        kind: "png" or "pdf".
    """
    content = BytesIO()
    with _drawing:
        figure = Figure(figsize=aligned.figure_size, layout="constrained")
        aligned.plot(shown, head, figure.subplots())
        figure.savefig(content, format=kind, dpi=DOTS)
    name = _NO_NAME.sub("-", f"{label} {shown}").strip("-").lower()
    return Picture(f"{name}.{kind}", content.getvalue(), MEDIA[kind])
