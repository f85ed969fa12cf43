"""How a command ends where the user's choices, files or disk are at fault: a line, no traceback."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import (
    ConfigCompositionException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)

from gr_mvdr.files.printable import printable

# Of Hydra's and OmegaConf's messages, what tells the user nothing.
_NOISE = ("See https://hydra.cc", "Config search path:", "provider=", "full_key:", "object_type=")


@contextmanager
def errors_in_a_line() -> Iterator[None]:
    """Ends the program with status 1 and ``error: …`` for what messages of this project explain.

    Other exceptions are faults of the code and keep their traceback; so do these under
    HYDRA_FULL_ERROR=1, as a library may raise them, too.

    Raises:
        SystemExit: in the place of a ValueError or OSError, also of one within Hydra's instantiate,
            and of what Hydra refuses on the command line.
    """
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        yield
        return
    try:
        yield
    except InstantiationException as error:
        sys.exit(f"error: {printable(_line(error.__cause__ or error))}")
    except (ConfigCompositionException, OverrideParseException, ValueError, OSError) as error:
        sys.exit(f"error: {printable(_line(error))}")


def _line(error: BaseException) -> str:
    """An exception's message in one line, which names the key or the file."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={option}: must be one of {', '.join(error.options)}"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    lines = map(str.strip, str(error).splitlines())
    said = " ".join(line for line in lines if line and not line.startswith(_NOISE))
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {said}"
    # An interpolation's: OmegaConf tells the key it was found in.
    key = getattr(error, "full_key", None)
    return f"{key}: {said}" if key else said
