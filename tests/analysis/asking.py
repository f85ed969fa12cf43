"""One analysis asked as a run asks it: `analysis.run.ask`, with plain arguments."""

import inspect

from analysis.analysis import Findings, Subject
from analysis.run import ask


def asked(kind, model, data, *options, **named):
    """What an analysis finds; nothing where it does not apply."""
    names = list(inspect.signature(kind).parameters)[1:]
    settings = {"_target_": f"{kind.__module__}.{kind.__name__}"}
    settings |= dict(zip(names, options, strict=False)) | named
    found = ask(Subject(model, data), {"asked": settings})
    return found[0] if found else Findings()
