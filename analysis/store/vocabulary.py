"""What the token ids of an alignment store read as, so that pages need no tokeniser.

`alignments/vocabulary.json` holds the strings of the ids that occur in the store, and which of
them are special: {"tokens": {"17": "▁the"}, "special": [1]}.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.store.alignment_store import AlignmentStore
from gr_mvdr.files.writing import write_json

FILE = "vocabulary.json"
# How tokenisers mark a piece that begins a word, and one that goes on with it.
BEGINNINGS, CONTINUATION = ("▁", "Ġ"), "##"
_DOCID = re.compile(r"#\d+")


@dataclass(frozen=True)
class TokenStrings:
    """Strings of token ids.

    Attributes:
        strings: id → the tokeniser's own string, with its mark of a word's beginning.
        special: ids of end, padding, sentinels and the like.
    """

    strings: dict[int, str]
    special: frozenset[int]

    def token(self, number: int) -> dict[str, Any]:
        """A token for people: its string, its text, whether it begins a word, is special."""
        string = self.strings.get(number, f"#{number}")
        special = number in self.special
        text, begins = string, special or self._begins(string)
        for mark in (*BEGINNINGS, CONTINUATION):
            text = text.removeprefix(mark) if len(text) > len(mark) else text
        return {"string": string, "text": text, "begins": begins, "special": special}

    def _begins(self, string: str) -> bool:
        if string.startswith(CONTINUATION) and len(string) > len(CONTINUATION):
            return False
        return string.startswith(BEGINNINGS) or not self._marked or bool(_DOCID.fullmatch(string))

    @property
    def _marked(self) -> bool:
        """Does the tokeniser mark beginnings at all? One of whole words does not."""
        return any(string.startswith(BEGINNINGS) for string in self.strings.values())


def write_vocabulary(
    store: AlignmentStore,
    strings: Callable[[list[int]], Sequence[str]],
    special: Collection[int] = (),
) -> Path:
    """Writes the strings of all token ids that occur in a store into the store's folder.

    Args:
        strings: token ids to strings, such as `tokenizer.convert_ids_to_tokens`.
        special: ids of special tokens.

    Returns:
        The file's path.
    """
    found: set[int] = set()
    for tokens in store.tokens():
        found.update(tokens.tolist())
    ids = sorted(found)
    tokens = {str(number): str(name) for number, name in zip(ids, strings(ids), strict=True)}
    path = Path(store.directory) / FILE
    write_json(path, {"tokens": tokens, "special": sorted(found & set(special))})
    return path


def read_vocabulary(directory: Path) -> TokenStrings:
    """Reads what `write_vocabulary` wrote.

    Raises:
        FileNotFoundError: there is none, as in a run of an older version.
        ValueError: it is broken.
    """
    path = Path(directory) / FILE
    if not path.is_file():
        again = f"python -m analysis.run run={path.parents[1]}"
        raise FileNotFoundError(f"{path} is missing: analyse the run again ({again})")
    try:
        content = json.loads(path.read_text())
        strings = {int(number): str(name) for number, name in content["tokens"].items()}
        return TokenStrings(strings, frozenset(content["special"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a vocabulary ({error})") from None
