"""Whether a disk has room for what is about to be written."""

import shutil
from pathlib import Path


def check_room(what: str, folder: Path, needed: int) -> None:
    """Refuses to begin what the disk cannot hold.

    Args:
        what: takes the room, for the message: begins with the key that the user can change.
        folder: where it is written; needed: bytes.

    Raises:
        OSError: fewer bytes are free.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(f"{what} takes about {_amount(needed)}, {_amount(free)} are free")


def _amount(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
