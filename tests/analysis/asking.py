"""One analysis asked as a run asks it (`analysis.run.ask`), and alignments made by hand."""

import inspect

import torch

from analysis.analysis import Findings, Subject
from analysis.run import ask
from gr_mvdr.relevance import PairAlignment


def asked(kind, model, data, *options, **named):
    """What an analysis finds; nothing where it does not apply."""
    names = list(inspect.signature(kind).parameters)[1:]
    settings = {"_target_": f"{kind.__module__}.{kind.__name__}"}
    settings |= dict(zip(names, options, strict=False)) | named
    found = ask(Subject(model, data), {"asked": settings})
    return found[0] if found else Findings()


def aligned(alignment, document_ids, query_ids, similarity=None, masks=None):
    """Pairs with the alignment (B, H, M, N) and token ids; without masks every token is real."""
    ones = torch.ones(len(alignment))
    similarity = alignment if similarity is None else similarity
    real = masks or [torch.ones_like(ids, dtype=torch.bool) for ids in (document_ids, query_ids)]
    sides = document_ids, real[0], query_ids, real[1]
    return PairAlignment(similarity, alignment, ones, ones, ones, *sides)
