"""Files that several processes may make at the same time: one does, the others wait."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


@contextmanager
def written_once(path: Path) -> Iterator[Path | None]:
    """Gives a temporary name for what is to be made, or None if it is there.

    What was made takes its name at the end of the block; after an error or an interruption nothing
    is left.

    Args:
        path: of a file or folder that is whole if it is there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if path.exists():
            yield None
            return
        partial = path.with_name(f".{path.name}.partial")
        _remove(partial)  # of a process that was killed
        try:
            yield partial
            partial.rename(path)
        finally:
            _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
