"""Cleaning of texts before they are tokenised."""

import html
import re
import unicodedata
from collections.abc import Sequence

STEPS = {
    "html": lambda text: html.unescape(re.sub(r"<[^>]+>", " ", text)),
    "unicode": lambda text: unicodedata.normalize("NFC", text),
    "punctuation": lambda text: re.sub(r"[^\w\s]", " ", text),
}


def cleaned(text: str, steps: Sequence[str]) -> str:
    """A text after some steps, in their order."""
    for step in steps:
        if step not in STEPS:
            raise ValueError(f"data.cleaning=[{step}]: must be of {', '.join(STEPS)}")
        text = " ".join(STEPS[step](text).split())
    return text
