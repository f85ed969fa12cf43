"""Public collections by name: beir/…, lotte/…, miracl/…, entity_questions."""

from pathlib import Path

from data_modules.builders import beir, entity_questions, lotte, miracl
from data_modules.formats.layout import Layout

FAMILIES = {
    "beir": beir,
    "lotte": lotte,
    "miracl": miracl,
    "entity_questions": entity_questions,
}


def public(name: str, path: str | None = None) -> Layout:
    """The collection of a name, in a local copy or on the Hugging Face hub.

    Args:
        name: beir/NAME, lotte/TOPIC/search|forum[/dev|test], miracl/LANGUAGE, entity_questions.
        path: of the local copy; None = the hub.

    Raises:
        FileNotFoundError: there is no such copy, or it lacks a file.
        ValueError: another name.
    """
    family, _, rest = name.partition("/")
    if family not in FAMILIES:
        raise ValueError(f"data.name={name}: must begin with {', '.join(FAMILIES)}")
    place = None if path is None else Path(path).expanduser()
    if place is not None and not place.exists():
        raise FileNotFoundError(f"data.path={path}: no such folder or file")
    return FAMILIES[family].read(rest, place)
