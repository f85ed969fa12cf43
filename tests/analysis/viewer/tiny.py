"""A session of three tiny untrained systems over four documents, made in a moment."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from starlette.testclient import TestClient

from analysis.explore import build_app
from analysis.viewer.session import KnownQuery, LoadedSystem, Session
from gr_mvdr.texts import TextReader
from gr_mvdr.tokenizers import build_word_tokenizer
from models.base import System
from models.bm25 import BM25
from models.docid import Docid
from models.multi_vector import MultiVector
from models.retriever import Retriever
from models.t5_seal import T5SEAL

PORT = 8765
SHAPE = dict(vocab_size=60, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
BACKBONE = dict(name=None, dropout_rate=0.0, attention="eager", shape=SHAPE)
OPTIMIZER = dict(learning_rate=1e-3, weight_decay=0.0, schedule="constant")
DOCUMENTS = [
    {"id": "a", "title": "Apple", "text": "an apple pie with <script>alert(1)</script>"},
    {"id": "b", "title": "Pear", "text": "a pear and an apple in a basket"},
    {"id": "c", "title": "", "text": "a plum is no apple & no pear"},
    {"id": "d", "title": "Quince", "text": "nothing but a quince 🍐"},
]
QUERIES = ["apple pie", "a pear", "no plum is a pear"]


def make_bm25() -> System:
    return BM25()


def make_multi_vector(backbone: dict[str, Any] = BACKBONE, **changes: Any) -> System:
    return MultiVector(
        backbone,
        dimension=8,
        query_length=8,
        document_length=12,
        alignment={"_target_": "gr_mvdr.alignment.MaxSim"},
        loss={"_target_": "gr_mvdr.losses.InBatchCrossEntropy"},
        search=dict(mode="exact"),
        optimizer=OPTIMIZER,
        **changes,
    )


def make_seal(backbone: dict[str, Any] = BACKBONE) -> System:
    evidence = dict(alpha=2.0, beta=0.8, smoothing=0.1, max_occurrences_1=1500)
    lengths = dict(query_length=8, document_length=12, key_length=4, beam_size=3)
    return T5SEAL(backbone, evidence=evidence, optimizer=OPTIMIZER, **lengths)


def make_docid() -> System:
    lengths = dict(query_length=8, document_length=12, beam_size=4)
    scheme = {"_target_": "gr_mvdr.identifiers.docids.NaiveDocids"}
    return Docid(BACKBONE, identifiers=scheme, optimizer=OPTIMIZER, **lengths)


def make_retriever(system: System, label: str, folder: Path | None = None) -> Retriever:
    """A retriever of the documents above; folder: where a docid system keeps its identifiers."""
    texts = [f"{row['title']} | {row['text']}" for row in DOCUMENTS]
    reader = TextReader(build_word_tokenizer([*texts, *QUERIES]))
    documents = reader.documents(DOCUMENTS)
    if folder is not None:
        system.prepare(documents, range(len(documents)), folder)
    system.eval().index(documents)
    return Retriever(system, reader, documents, label)


def make_session(folder: Path | None = None) -> Session:
    """BM25, a multi-vector system, T5-SEAL; with a folder a docid system, too."""
    torch.manual_seed(0)
    made = {"BM25": make_bm25(), "ColBERT": make_multi_vector(), "SEAL": make_seal()}
    found = {label: make_retriever(system, label) for label, system in made.items()}
    if folder is not None:
        found["DSI"] = make_retriever(make_docid(), "DSI", folder)
    run = SimpleNamespace(path=Path("outputs/run"), setting="fruits (test)")
    systems = [LoadedSystem(label, run, retriever) for label, retriever in found.items()]
    nowhere = [{}] * (len(systems) - 1)
    known = [
        KnownQuery("q2", "a plum", ["c"], [{"c": 2}] * len(systems)),
        KnownQuery("q1", "Apple pie", ["a", "c"], [{"a": 1, "c": 7}, *nowhere]),
        KnownQuery("q0", "quince", ["d"], [{"d": 4}, *nowhere]),
    ]
    return Session(systems, known)


def client(session: Session, host: str = f"127.0.0.1:{PORT}") -> TestClient:
    """What a browser sends to the explorer; faults are answers, as they are to a browser."""
    return TestClient(build_app(session, PORT), f"http://{host}", raise_server_exceptions=False)
