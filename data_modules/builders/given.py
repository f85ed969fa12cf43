"""Paths as the user typed them."""

from pathlib import Path


def given_folder(path: str) -> Path:
    """``data.path`` of a builder.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"data.path={path}: no such folder")
    return folder


def given_file(key: str, path: str | None) -> Path | None:
    """A file that an option names; None if it names none.

    Raises:
        FileNotFoundError: there is no such file.
    """
    file = None if path is None else Path(path).expanduser()
    if file is not None and not file.is_file():
        raise FileNotFoundError(f"data.{key}={path}: no such file")
    return file
