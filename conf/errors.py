"""How a command ends where the user's choices, files or disk are at fault: a line, no traceback."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import InstantiationException

from gr_mvdr.printable import printable


@contextmanager
def errors_in_a_line() -> Iterator[None]:
    """Ends the program with status 1 and ``error: …`` for what messages of this project explain.

    Other exceptions are faults of the code and keep their traceback; so do these two under
    HYDRA_FULL_ERROR=1, as a library may raise them, too.

    Raises:
        SystemExit: in the place of a ValueError or OSError, also of one within Hydra's instantiate.
    """
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        yield
        return
    try:
        yield
    except InstantiationException as error:
        sys.exit(f"error: {printable(_said(error.__cause__ or error))}")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {printable(_said(error))}")


def _said(error: BaseException) -> str:
    """The system's errors by the name of the file: "outputs/…: No space left on device"."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
