"""Files that several processes may make at the same time: one does, the others wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from gr_mvdr.files.writing import new_file, remove_abandoned


@contextmanager
def written_once(path: Path) -> Iterator[Path | None]:
    """Gives a temporary name for what is to be made, or None if it is there.

    What was made takes its name at the end of the block; after an error or an interruption nothing
    is left, after a kill what the next call sweeps away. What is there is not touched: a cache that
    is filled may be on a disk that cannot be written to.

    Args:
        path: of a file or folder that is whole if it is there.
    """
    if path.exists():
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if path.exists():
            yield None
            return
        remove_abandoned(path.parent)
        with new_file(path) as partial:
            yield partial
