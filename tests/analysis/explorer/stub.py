"""A session of two systems without a model: tokens are words, A joins equal ones."""

from pathlib import Path
from types import SimpleNamespace

import torch
from datasets import Dataset
from starlette.testclient import TestClient

from analysis.explorer.known_queries import KnownQueries, KnownQuery
from analysis.explorer.loading import LoadedSystem
from analysis.explorer.server import build_app
from analysis.explorer.session import Session

PORT = 8765
TEXTS = {"a": "apple pie <script>", "b": "pear and apple", "c": "a plum"}


class WordRetriever:
    """A score is the number of equal words."""

    def __init__(self, paradigm: str = "multi_vector"):
        self.paradigm, self.system = paradigm, SimpleNamespace(alignable=True)
        rows = {"id": [*TEXTS], "title": ["A", "B", ""], "text": [*TEXTS.values()]}
        self.documents = Dataset.from_dict(rows)

    def search(self, query: str, k: int = 10, among=None) -> list:
        hits = []
        for name in among or TEXTS:
            words = TEXTS[name].split()
            shares = [SimpleNamespace(text=w, value=float(words.count(w))) for w in query.split()]
            score = sum(share.value for share in shares)
            hits.append(SimpleNamespace(id=name, title=name, snippet=words[0], shares=shares))
            hits[-1].score = score
        hits.sort(key=lambda hit: -hit.score)
        for rank, hit in enumerate(hits, start=1):
            hit.rank = rank
        return hits[:k]

    def align(self, query: str, document, layer: int = -1) -> SimpleNamespace:
        text = TEXTS[document] if isinstance(document, str) else document["text"]
        words, asked = text.split(), query.split()
        same = torch.tensor([[float(d == q) for q in asked] for d in words])[None, None]
        score = same.sum((1, 2, 3))
        added = same[0, 0].sum(0).tolist()
        return SimpleNamespace(
            similarity=same,
            alignment=same,
            normaliser=torch.ones(1),
            relevance=score,
            score=score,
            query_tokens=asked,
            document_tokens=words,
            shares=[SimpleNamespace(text=w, value=v) for w, v in zip(asked, added, strict=True)],
        )


def stub_session() -> Session:
    known = KnownQuery("q1", "Apple pie", ("a",), ({"a": 1}, {}))
    other = KnownQuery("q2", "a plum", ("c",), ({"c": 2}, {"c": 2}))
    run = SimpleNamespace(path=Path("outputs/run"), setting="stub (test)")
    systems = [
        LoadedSystem("words", run, WordRetriever()),
        LoadedSystem("lexical", run, WordRetriever("lexical")),
    ]
    return Session(systems, KnownQueries([other, known]))


def client(session: Session | None = None, host: str = f"127.0.0.1:{PORT}") -> TestClient:
    """What a browser sends to the explorer, with its faults as answers, not as exceptions."""
    app = build_app(session or stub_session(), PORT)
    return TestClient(app, f"http://{host}", raise_server_exceptions=False)
