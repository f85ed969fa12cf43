"""One analysis asked as a run asks it (`analysis.run.ask`), and alignments made by hand."""

import inspect
from types import SimpleNamespace

import torch

from analysis.questions.analysis import Findings, Subject
from analysis.run import ask
from gr_mvdr.alignment import MaxSim
from gr_mvdr.passages import Passages
from gr_mvdr.relevance import PairAlignment, Scoring
from gr_mvdr.template import TextTemplate
from gr_mvdr.token_index.search import Query
from gr_mvdr.token_vectors import TokenVectors, stack
from tests.searches import build_index


def data_of(**parts):
    """As much of a data module as an analysis reads; it is its own evaluation."""
    known = dict(test_splits=["test"], template=TextTemplate(), drop_identical=False, passages=None)
    collection = SimpleNamespace(name="almanac", documents=parts.get("documents"))
    data = SimpleNamespace(collection=collection, **known | parts)
    data.evaluation = data
    return data


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


def text_of(vectors, ids=None):
    """A text of these (M, d) vectors; without ids its tokens are all the token 0."""
    ids = torch.zeros(len(vectors), dtype=torch.int64) if ids is None else torch.tensor(ids)
    return TokenVectors(vectors, torch.ones(len(vectors), dtype=torch.bool), ids)


class Indexed:
    """A multi-vector system whose documents and queries have given vectors, by their ids."""

    paradigm, scoring, passages = "multi_vector", Scoring(MaxSim()), Passages()

    def __init__(self, folder, documents, queries):
        packed, self.queries = stack([*documents.values()]).pack(), queries
        self.searcher = build_index(folder / "index", documents, lambda ids: [packed])

    def eval(self):
        return self

    def cut_document(self, tokens):
        return tokens

    @torch.inference_mode()
    def encoded_queries(self, table):
        """Tensors of inference, as an encoder's are."""
        return [Query(name, stack([self.queries[name]]).unpad(0)) for name in table["id"]]
