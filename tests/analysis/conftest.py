"""Synthetic alignments, and a small system with a token index, for the analysis tests."""

import json
import shutil

import pytest
import torch

from analysis.questions.alignment_store import StoreDescription
from analysis.questions.analysis import Subject, Texts
from analysis.questions.tokens import TokenKinds
from data_modules.module import RetrievalDataModule
from gr_mvdr.batch import pad
from gr_mvdr.relevance import DecoderPaths, Explanation, PairAlignment
from tests.data_modules.tiny import TOKENIZER, make_collection, words
from tests.runs import ROOT, write_store

PARTS = ("self_attention", "cross_attention", "feed_forward")


def make_pairs(n_pairs=5, heads=1, seed=0, paradigm="multi_vector", vocabulary=30, longest=9):
    """Random pairs of different lengths; generative ones have cross-attention as alignment."""
    generator = torch.Generator().manual_seed(seed)

    def texts():
        lengths = torch.randint(2, longest + 1, (n_pairs,), generator=generator).tolist()
        draw = lambda n: torch.randint(2, vocabulary, (n,), generator=generator).tolist()  # noqa: E731
        return pad([draw(length) for length in lengths])

    document_ids, document_mask = texts()
    query_ids, query_mask = texts()
    shape = n_pairs, heads, document_ids.shape[1], query_ids.shape[1]
    similarity = torch.randn(shape, generator=generator)
    real = (document_mask[:, :, None] & query_mask[:, None, :])[:, None]
    weights = torch.randn(shape, generator=generator).masked_fill(~real, -1e9).softmax(-1)
    if paradigm != "generative":
        weights = (similarity == similarity.masked_fill(~real, -1e9).amax(2, keepdim=True)).float()
    alignment, similarity = weights * real, similarity * real
    relevance = (similarity * alignment).sum((1, 2, 3))
    return PairAlignment(
        similarity=similarity,
        alignment=alignment,
        normaliser=torch.ones(n_pairs),
        relevance=relevance,
        score=relevance + 0.5,
        document_ids=document_ids,
        document_mask=document_mask,
        query_ids=query_ids,
        query_mask=query_mask,
    )


def make_explanation(n_pairs=5, layers=2, heads=3, seed=0, paradigm="generative", salience=False):
    """Random pairs with all that a store keeps of a system's paradigm."""
    if paradigm != "generative":
        pairs = make_pairs(n_pairs, seed=seed, paradigm=paradigm)
        return Explanation([pairs], pairwise=pairs.alignment.ceil() if salience else None)
    found = [make_pairs(n_pairs, heads, seed, paradigm) for _ in range(layers)]
    generator = torch.Generator().manual_seed(seed + 1)
    for number, pairs in enumerate(found):
        pairs.similarity = pairs.similarity * (1 + number)
        pairs.relevance = (pairs.similarity * pairs.alignment).sum((1, 2, 3))
    real = found[0].document_mask
    crossed = [(p.similarity * p.alignment).sum((1, 3)) for p in found]
    others = torch.randn(n_pairs, 1 + 2 * layers, real.shape[1], generator=generator)
    names = ["embedding", *(f"{part}_{n + 1}" for n in range(layers) for part in PARTS)]
    order = iter((others * real[:, None]).unbind(1))
    parts = [crossed[int(n[-1]) - 1] if n.startswith("cross") else next(order) for n in names]
    contributions = torch.stack(parts, 1)
    decoder = DecoderPaths(
        names=tuple(names),
        contributions=contributions,
        logits=contributions.sum(1),
        log_probs=-torch.rand(real.shape, generator=generator) * real,
        document_norms=torch.rand(n_pairs, layers, generator=generator),
        query_norms=torch.rand(n_pairs, layers, generator=generator),
        projection_norms=torch.rand(layers, heads, generator=generator),
    )
    return Explanation(found, decoder)


@pytest.fixture(scope="session")
def golden():
    """Pairs with the measures of their alignments, worked out by a reference."""
    file = ROOT.parent / "shared/golden/alignment_measures.json"
    if not file.exists():
        pytest.skip(f"{file} is not there")
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def chromium():
    """A headless browser."""
    names = "chromium", "chromium-browser", "google-chrome"
    if not (browser := next(filter(None, map(shutil.which, names)), None)):
        pytest.skip("no Chromium here")
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=30_000)
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=browser, args=["--no-sandbox"])


@pytest.fixture(name="make_explanation")
def _make_explanation():
    return make_explanation


@pytest.fixture
def store_of(tmp_path):
    """Writes an explanation as a store; query n goes with document n."""

    def write(explanation, paradigm, precision="float32", name="alignments"):
        description = StoreDescription("system", paradigm, "almanac", precision)
        return write_store(tmp_path / name, description, explanation)

    return write


@pytest.fixture
def measure():
    """Runs an analysis over a whole store; ids 0 to 29 grow in importance."""

    def run(measurement, store, size=64, special=(), idf=None):
        idf = torch.linspace(0, 10, 30) if idf is None else idf
        no = torch.zeros(len(idf), dtype=torch.bool)
        chosen = no.clone()
        chosen[list(special)] = True
        texts = Texts(idf, TokenKinds(chosen, no, no), lambda ids: [str(i) for i in ids])
        found, first = measurement(Subject(store=store, texts=texts)), 0
        for batch in store.explanations(size):
            found.update(batch, first)
            first += len(batch)
        return found.finish()

    return run


def tiny_collection():
    """Thirty documents; each of ten test queries has a word of its document's title in it."""
    pairs = [(f"q{n}", f"d{n}") for n in range(20)]
    return make_collection(
        documents=[words(n, 4 + n % 9) for n in range(30)],
        queries={f"q{n}": f"{words(100 + n, 2 + n % 3)} title{n}" for n in range(20)},
        titles=[f"title{n}" for n in range(30)],
        qrels={"train": pairs[:10], "test": pairs[10:]},
    )


class TinyData(RetrievalDataModule):
    def read(self):
        return tiny_collection()


@pytest.fixture
def tiny_data(cache):
    """A real data module over a tiny collection, with four BM25 candidates a query."""
    lengths = dict(query_length=8, document_length=10)
    return TinyData(test_split="test", tokenizer_options=TOKENIZER, candidates=4, **lengths)
