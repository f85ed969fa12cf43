"""A session of three tiny untrained systems over four documents, made in a moment."""

from pathlib import Path
from types import SimpleNamespace

import torch
from starlette.testclient import TestClient

from analysis.explore import build_app
from analysis.viewer.session import KnownQuery, LoadedSystem, Session
from gr_mvdr.texts import TextReader
from gr_mvdr.tokenizers import build_word_tokenizer
from models.base import System
from models.bm25 import BM25
from models.docid import Docid
from models.retriever import Retriever
from tests.models.conftest import BACKBONE, NAIVE, OPTIMIZER, make_multi_vector, make_seal

PORT = 8765
DOCUMENTS = [
    {"id": "a", "title": "Apple", "text": "an apple pie with <script>alert(1)</script>"},
    {"id": "b", "title": "Pear", "text": "a pear and an apple in a basket"},
    {"id": "c", "title": "", "text": "a plum is no apple & no pear"},
    {"id": "d", "title": "Quince", "text": "nothing but a quince 🍐"},
]
QUERIES = ["apple pie", "a pear", "no plum is a pear"]


def make_docid() -> System:
    lengths = dict(query_length=8, document_length=12, beam_size=4)
    return Docid(BACKBONE, identifiers=NAIVE, optimizer=OPTIMIZER, **lengths)


def make_retriever(
    system: System, label: str, folder: Path | None = None, rows=DOCUMENTS, queries=QUERIES
) -> Retriever:
    """A retriever of the documents above; folder: where a docid system keeps its identifiers."""
    texts = [f"{row['title']} | {row['text']}" for row in rows]
    reader = TextReader(build_word_tokenizer([*queries, *texts]))
    documents = reader.documents(rows)
    if folder is not None:
        system.prepare(documents, range(len(documents)), folder)
    system.eval().index(documents)
    return Retriever(system, reader, documents, label)


def load_systems(setting: str, folder: Path | None = None, **texts) -> list[LoadedSystem]:
    """BM25, a multi-vector system, T5-SEAL; with a folder a docid system, too."""
    torch.manual_seed(0)
    made = {"BM25": BM25(), "T5-ColBERT": make_multi_vector(), "T5-SEAL": make_seal()}
    found = {label: make_retriever(system, label, **texts) for label, system in made.items()}
    if folder is not None:
        found["DSI"] = make_retriever(make_docid(), "DSI", folder)
    run = SimpleNamespace(path=Path("outputs/run"), setting=setting)
    return [LoadedSystem(label, run, retriever) for label, retriever in found.items()]


def make_session(folder: Path) -> Session:
    systems = load_systems("fruits (test)", folder)
    nowhere = [{}] * (len(systems) - 1)
    known = [
        KnownQuery("q2", "a plum", ["c"], [{"c": 2}] * len(systems)),
        KnownQuery("q1", "Apple pie", ["a", "c"], [{"a": 1, "c": 7}, *nowhere]),
        KnownQuery("q0", "quince", ["d"], [{"d": 4}, *nowhere]),
    ]
    return Session(systems, known)


def client(session: Session) -> TestClient:
    """What a browser sends to the explorer; faults are answers, as they are to a browser."""
    address = f"http://127.0.0.1:{PORT}"
    return TestClient(build_app(session, PORT), address, raise_server_exceptions=False)
