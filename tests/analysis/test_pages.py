"""Pages in a real browser: headless Chromium opens them as files."""

import json

import pytest

from analysis.compare import compare
from analysis.questions.alignment_store import StoreDescription
from analysis.runs.report import write_report
from gr_mvdr.evaluation.ranking import write_qrels
from tests.analysis.test_compare import judge_gold, rank_gold
from tests.analysis.test_compare import write_run as write_metrics
from tests.runs import write_store

PAIRS = 6
CASES = "document.querySelector('.case-pane .alignment')?.dataset.drawn"


@pytest.fixture
def show(chromium):
    """Opens a page as a file; at the end it must have asked for nothing and reported no error."""
    opened, problems = [], []

    def open_page(path, width=1300, ready=None, place=""):
        page = chromium.new_page(viewport={"width": width, "height": 900})
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("request", lambda request: opened.append(request.url))
        page.goto(path.as_uri() + place)
        page.wait_for_function(ready or "true")
        return page

    yield open_page
    assert problems == []
    assert all(url.startswith(("file:", "data:image/png;base64,")) for url in opened)


def write_run(folder, system, explanation, ranks, metric="mrr@10", token="▁<w{}>"):
    """A run's folder: alignments of (q<n>, d<n>), and a ranking with d<n> at the given rank."""
    config = {"model": {"_target_": "models.t5_seal.T5SEAL"}}
    record = {"paradigm": "generative", "splits": ["test"]}
    write_metrics(folder, system, 1, {f"retrieve/{metric}": 0.5}, config, **record)
    queries = [f"q{n}" for n in range(len(explanation))]
    documents = [f"d{n}" for n in range(len(explanation))]
    description = StoreDescription(system, "generative", "almanac")
    write_store(folder / "alignments", description, explanation, token=token, special=[2])
    rank_gold(ranks, queries, documents).write(folder / "retrieve.trec", "run")
    write_qrels(
        {q: {d: 1} for q, d in zip(queries, documents, strict=True)}, folder / "retrieve.qrels"
    )
    return folder


def tokens(page, side, pane=0):
    panes = page.locator(".case-pane")
    return panes.nth(pane).locator(f'[aria-label="Tokens of the {side}"] li')


def test_a_table_with_intervals_fits_the_page(tmp_path, show):
    names = ["recall@1", "recall@10", "recall@100", "mrr@10", "ndcg@10"]
    names += ["recall_of_exact@10", "recall_of_exact@100"]
    for seed in (1, 2):
        metrics = {f"retrieve/{name}": 0.5 + seed / 100 for name in names}
        judge_gold(write_metrics(tmp_path / f"a{seed}", "MiniLM MaxSim", seed, metrics), [1, 2, 9])
    compare([tmp_path / "a1", tmp_path / "a2"], tmp_path / "out")
    table = show(tmp_path / "out/comparison.html").locator(".wide").first
    assert "[" in table.inner_text()
    assert table.evaluate("wide => wide.scrollWidth <= wide.clientWidth")


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"'&amp; שלום عالم 😀"


def keep_documents(run, text):
    """What `BestDocuments` keeps: of every query its own document, and one that is not relevant."""
    record = {}
    for number in range(PAIRS):
        shares = [{"text": text, "value": 2.5}, {"text": "", "value": -1.0}]
        row = dict(title=text, snippet=text, shares=shares)
        first = dict(id="x1", rank=1, score=9.0, gold=False)
        rows = [first, dict(id=f"d{number}", rank=2, score=-2.0, gold=True)]
        documents = [one | row for one in rows]
        record[f"q{number}"] = {"text": text, "documents": documents}
    (run / "best_documents.json").write_text(json.dumps(record))


def test_whatever_texts_say_is_shown_as_text(tmp_path, make_explanation, show):
    run = tmp_path / '<i>"&amp; #1?x=%41 😀'
    pairs = make_explanation(PAIRS, layers=1, heads=1, seed=4)
    token, metric = "▁" + HOSTILE + "{}", f"{HOSTILE}/mrr@10"
    write_run(run, HOSTILE, pairs, [1, 2, 0, 3, 5, 10], metric, token)
    keep_documents(run, HOSTILE)
    other = write_run(tmp_path / "b", "b", pairs, [1] * PAIRS, token="▁" + HOSTILE)
    write_report(run)
    compare([run, other], tmp_path / "out")
    page = show(tmp_path / "out/comparison.html", ready=CASES, place="#cases-1")
    page.locator("#runs-1 > summary").click()
    assert page.get_by_role("cell", name=HOSTILE).count()
    page.get_by_role("link", name="report.html").first.click()
    page.wait_for_url("**/report.html")
    for path in (run / "report.html", tmp_path / "out/comparison.html"):
        page = show(path, ready=CASES)
        page.get_by_role("button", name="Unfold all").click()
        shown = page.locator("body").inner_text()
        assert HOSTILE in shown and "&lt;" not in shown
        assert page.locator("script").count() == 2 and page.locator("img[onerror]").count() == 0
        texts = [page.locator(".case-list option").first, page.locator(".hit .snippet").first]
        texts += [page.locator(".hit b").first, page.locator(".hit .bar-name").first]
        assert [element.text_content() for element in texts] == [HOSTILE] * 4
        token = tokens(page, "query").first
        assert token.text_content().startswith("▁" + HOSTILE)
        token.hover()
        assert HOSTILE in page.get_by_role("status").first.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
