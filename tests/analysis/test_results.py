"""Blocks of docs/results.md: tables, where they come from, and the command that makes them."""

import json

import pytest

from tests.analysis.test_claims import made
from tests.runs import command

BEFORE, AFTER = "# Results\n\nWords.\n\n", "\n\nMore | words.\n"
OTHER = "<!-- results: other -->\nkept\n<!-- end -->\n"


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "results.md"
    path.write_text(f"{BEFORE}<!-- results: table8 -->\nold\n<!-- end -->{AFTER}{OTHER}")
    return path


@pytest.fixture
def runs(tmp_path):
    """T5-ColBERT over two seeds, and BM25, which finds less; two commits, one machine."""
    kinds = (("T5-ColBERT", 1, 0.75, 3600), ("T5-ColBERT", 2, 0.85, 7200), ("BM25", 1, 0.5, 0))
    for number, (system, seed, mrr, seconds) in enumerate(kinds):
        metrics = {"retrieve/mrr@10": mrr, "rerank/mrr@10": 0.25, "rerank/form/mrr@10": 0.25}
        metrics |= {"cost/train_seconds": seconds, "cost/query_ms_p50": 3}
        folder = made(
            tmp_path / "runs" / str(number),
            system,
            seed,
            metrics=metrics,
            retrieve=1 if seconds else 2,
        )
        file = folder / "provenance.json"
        about = {"git": f"abc{number % 2}", "hardware": {"processor": "A | CPU", "cores": 2}}
        file.write_text(json.dumps(json.loads(file.read_text()) | about))
    return tmp_path / "runs"


def test_a_block_holds_its_command_its_tables_and_their_origin(document, runs, capsys):
    typed = ["block=table8", f"runs=[{runs}]", f"document={document}", "metrics=[mrr@10]"]
    assert command("-m", "analysis.results", *typed) == 0
    text = document.read_text()
    assert text.startswith(BEFORE) and text.endswith(AFTER + OTHER)
    block = text.partition("<!-- results: table8 -->\n")[2].partition("<!-- end -->")[0]
    assert f"python -m analysis.results block=table8 'runs=[{runs}]'" in block
    assert "| system | retrieve MRR@10 | rerank MRR@10 | cost training |" in block
    assert "| T5-ColBERT | **0.800 ± 0.071 \\*** |" in block and "#" not in block
    assert "| T5-ColBERT − BM25 | +0.500 (p < 0.001) \\* |" in block
    assert "3 runs, seeds 1, 2. Commit: abc0, abc1. Machine: A \\| CPU, 2 cores." in block
    assert "Training: 0 to 7,200 s a run, 3.0 h in all." in block
    assert "0.800 ± 0.071" in capsys.readouterr().out
    assert command("-m", "analysis.results", *typed) == 0 and document.read_text() == text


def test_papers_tables_and_claims_are_blocks_too(document, runs):
    typed = ["block=table8", f"runs=[{runs}]", f"document={document}"]
    assert command("-m", "analysis.results", *typed, "paper=table8") == 0
    assert "| T5-ColBERT | 61.1 | 88.4 | 70.7 |" in document.read_text()
    assert command("-m", "analysis.results", *typed, "claims=true") == 0
    text = document.read_text()
    assert "| MVDR finds more than BM25 | **confirmed +0.500** |" in text
    assert "61.1" not in text and "Commit: abc0" in text
    assert "| MVDR finds more than GR" not in text
    assert "Not judged, runs are missing: MVDR (q→d) reranks better than MVDR (q←d); " in text


def test_a_block_that_is_not_there_is_named(document, runs):
    text = document.read_text()
    typed = [f"runs=[{runs}]", f"document={document}"]
    said = command("-m", "analysis.results", "block=table9", *typed)
    assert said == (f"error: {document}: has no place for <!-- results: table9 --> … <!-- end -->")
    assert "block=null: must be a name" in command("-m", "analysis.results", *typed)
    assert document.read_text() == text
