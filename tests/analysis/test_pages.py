"""Pages in a real browser: headless Chromium opens them as files."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
import torch

from analysis.alignment_store import (
    AlignmentStore,
    AlignmentWriter,
    StoreDescription,
    write_vocabulary,
)
from analysis.compare import compare
from analysis.tables.report import write_report
from analysis.viewer.directed_alignment import directed_alignment
from gr_mvdr.evaluation.ranking import Ranking, write_qrels
from gr_mvdr.relevance import Explanation

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if BROWSER is None:
    pytest.skip("no Chromium here", allow_module_level=True)
sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright

PAIRS = 6
CASES = "document.querySelector('.case-pane .alignment')?.dataset.drawn"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])


@pytest.fixture
def show(browser):
    """Opens a page as a file; at the end it must have asked for nothing and reported no error."""
    opened, problems = [], []

    def open_page(path, width=1300, ready=None, place=""):
        page = browser.new_page(viewport={"width": width, "height": 900})
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


def write_run(folder, system, paradigm, explanation, ranks, token="▁<w{}>"):
    """A run's folder: alignments of (q<n>, d<n>), and a ranking with d<n> at the given rank."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        "seed: 1\nmodel: {_target_: models.t5_seal.T5SEAL}\n"
        if paradigm == "generative"
        else "seed: 1\nmodel: {name: other}\n"
    )
    record = {"system": system, "paradigm": paradigm, "collection": "fruit", "seed": 1}
    (folder / "provenance.json").write_text(json.dumps(record | {"splits": ["test"]}))
    (folder / "metrics.json").write_text(json.dumps({"retrieve/mrr@10": 0.5}))
    queries = [f"q{n}" for n in range(len(explanation))]
    documents = [f"d{n}" for n in range(len(explanation))]
    with AlignmentWriter(
        folder / "alignments", StoreDescription(system, paradigm, "fruit")
    ) as writer:
        writer.add(explanation, queries, documents)
    store = AlignmentStore(folder / "alignments")
    write_vocabulary(store, lambda ids: [token.format(n) for n in ids], special=[2])
    found = {}
    for query, document, rank in zip(queries, documents, ranks, strict=True):
        others = {f"x{place}": -float(place) for place in range(1, 11)}
        found[query] = others | ({document: 0.5 - rank} if rank else {})
    Ranking(found).write(folder / "retrieve.trec", "run")
    write_qrels(
        {q: {d: 1} for q, d in zip(queries, documents, strict=True)}, folder / "retrieve.qrels"
    )
    return folder


@pytest.fixture
def runs(tmp_path, make_explanation):
    """A generative and a multi-vector run over the same texts; they part at the pair of q3."""
    generative = make_explanation(PAIRS, layers=2, heads=2, seed=4)
    first, last = generative.layers
    last.query_ids[0, 0] = last.document_ids[0, 1]
    for pairs in (first, last):
        pairs.query_ids[0, 0] = last.query_ids[0, 0]
    real = (last.document_mask[:, :, None] & last.query_mask[:, None, :])[:, None]
    drawn = torch.randn(last.alignment.shape, generator=torch.Generator().manual_seed(9))
    generative.layers[0] = replace(
        first, alignment=(2 * drawn).masked_fill(~real, -1e9).softmax(-1) * real
    )
    similarity = drawn.mean(1, keepdim=True) * real
    vectors = replace(last, similarity=similarity, alignment=(similarity > 0.5).float() * real)
    return [
        write_run(tmp_path / "seal", "t5_seal", "generative", generative, [1, 2, 0, 0, 5, 10]),
        write_run(
            tmp_path / "colbert",
            "t5_colbert",
            "multi_vector",
            Explanation([vectors]),
            [1, 2, 3, 1, 0, 9],
        ),
    ]


def open_case(page, query):
    """Opens the case of a query and waits until its alignments are drawn."""
    cases = json.loads(page.locator(".case-browser script").first.text_content())["cases"]
    number = next(n for n, case in enumerate(cases) if case["query"] == query)
    page.locator(".case-list").first.select_option(index=number)
    page.wait_for_function(CASES)
    return cases[number]


def tokens(page, side, pane=0):
    panes = page.locator(".case-pane")
    return panes.nth(pane).locator(f'[aria-label="Tokens of the {side}"] li')


def marked(page, side, name, pane=0):
    """The places of a text's tokens that have a class."""
    script = "(all, name) => all.flatMap((x, n) => (x.classList.contains(name) ? [n] : []))"
    return tokens(page, side, pane).evaluate_all(script, name)


def test_the_cases_of_a_report(runs, show):
    """Partners, matrix and switches follow the stored alignment, layer by layer."""
    path = write_report(runs[0], peers=[runs[1]])
    assert "http://" not in path.read_text() and "https://" not in path.read_text()
    page = show(path, ready=CASES, place="#cases")
    open_case(page, "q0")
    pair = AlignmentStore(runs[0] / "alignments").explain(0).layers
    names = page.locator(".case-pane").first.locator(".row-names span").all_text_contents()
    assert names and all(name.startswith("▁<w") for name in names)  # with its word mark

    def partners(weights):
        low, high = weights.min(), weights.max()
        return ((weights - low) / (high - low) >= 0.25).nonzero().flatten().tolist()

    drawn = set()
    for name, layer, head in (
        ("alignment", 1, 0),
        ("alignment", 0, 1),
        ("query_to_document", 0, 0),
    ):
        for switch, place in (("layer", layer), ("head", head)):
            select = page.locator(f'[data-switch="{switch}"]').first
            if select.is_visible():
                select.select_option(index=place)
        page.locator('[data-switch="shown"]').first.select_option(value=name)
        heads = pair[layer].alignment[0]
        weights = heads[head - 1] if head else heads.mean(0)
        if name != "alignment":
            weights = directed_alignment(pair[layer], "generative", name)[0]
        tokens(page, "query").first.hover()
        assert marked(page, "document", "partner") == partners(weights[:, 0])
        tokens(page, "document").first.hover()
        assert marked(page, "query", "partner") == partners(weights[0])
        drawn.add(page.evaluate("document.querySelector('.case-pane canvas').toDataURL()"))
    assert len(drawn) == 3
    tokens(page, "query").nth(1).focus()
    assert marked(page, "query", "chosen") == [1]
    tokens(page, "query").nth(1).blur()
    page.mouse.move(0, 0)
    assert marked(page, "document", "partner") == []
    tokens(page, "query").first.click()  # a tap keeps the token while switches change
    kept = marked(page, "query", "chosen")
    page.locator('[data-switch="layer"]').first.select_option(index=1)
    assert kept == marked(page, "query", "chosen") == [0]
    status = page.get_by_role("status").first.inner_text()
    assert "Strongest partners" in status and "Equal tokens in the document: 1" in status


def test_the_cases_of_a_comparison(runs, tmp_path, show):
    compare(runs, tmp_path / "out")
    page = show(tmp_path / "out/comparison.html", ready=CASES, place="#cases-1")
    shown = "all => all.map((select) => select.selectedOptions[0].text)"
    selects = page.locator('select[aria-label="System"]')
    assert (
        page.locator(".case-list optgroup").first.get_attribute("label") == "The systems disagree"
    )
    facts = page.locator(".case-pane p.small").all_inner_texts()
    assert selects.evaluate_all(shown) == ["t5_colbert", "t5_seal"]
    assert "document 1;" in facts[0] and "none: it was not retrieved" in facts[1]
    tokens(page, "query").first.hover()
    assert [marked(page, "query", "chosen", n) for n in (0, 1)] == [[0], [0]]  # of the same text
    selects.first.select_option("t5_seal")
    page.locator(".case-list").select_option(index=3)  # what a reader has chosen stays
    assert selects.evaluate_all(shown)[0] == "t5_seal"
    (row,) = csv.DictReader((tmp_path / "out/comparison_agreement.csv").open())
    assert row["pairs"] == "6" and 0 < float(row["query_to_document/overlap"]) < 1


def test_a_page_folds(runs, tmp_path, show):
    page = show(write_report(runs[0]))
    folds = "[...document.querySelectorAll('details.fold')].map((fold) => fold.open)"
    assert not any(page.evaluate(folds))  # a page begins with its cases, which do not fold
    assert page.locator("#cases").is_visible()
    assert page.locator("h1").is_visible() and not page.get_by_text("provenance").first.is_visible()
    page.locator("#made > summary").focus()
    page.keyboard.press("Enter")
    assert page.get_by_role("heading", name="Provenance").is_visible()
    page.evaluate("location.hash = '#words'")
    page.wait_for_selector(".words dt")
    assert page.locator("#words").get_attribute("open") is not None
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert all(page.evaluate(folds))
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert sum(page.evaluate(folds)) == 2
    page.emulate_media(media="print")
    page.wait_for_function(f"{folds}.every(Boolean)")
    page.emulate_media(media="screen")
    page.get_by_role("button", name="Unfold all").click()
    assert all(page.evaluate(folds))
    compare(runs, tmp_path)
    linked = show(tmp_path / "comparison.html", place="#metrics-1-1")
    assert linked.locator("#metrics-1-1 table").first.is_visible()


def test_a_word_is_explained_one_hover_away(runs, show):
    page = show(write_report(runs[0]))
    term, tip = page.locator('[data-term="MRR@k"]').first, page.get_by_role("tooltip")
    term.hover()
    assert tip.inner_text().startswith("Mean reciprocal rank")
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    page.locator('[data-term="retrieve"]').first.focus()
    assert tip.inner_text().startswith("Search: the best documents")
    page.locator("#words > summary").focus()
    assert not tip.is_visible()
    page.evaluate("document.querySelector('#words').open = true")
    known = page.locator(".words dt").all_text_contents()
    marked = page.locator(".term").evaluate_all("all => all.map((term) => term.dataset.term)")
    assert marked and {m.lower() for m in marked} <= {k.lower() for k in known}


@pytest.mark.parametrize("width", [1300, 800])
def test_pages_are_as_wide_as_the_window(runs, tmp_path, show, width):
    compare(runs, tmp_path)
    for path in (write_report(runs[0], peers=[runs[1]]), tmp_path / "comparison.html"):
        page = show(path, width, CASES)
        page.get_by_role("button", name="Unfold all").click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_runs_are_links(runs, tmp_path, show):
    compare(runs, tmp_path / "out")
    for run in runs:
        write_report(run)
    page = show(tmp_path / "out/comparison.html")
    page.get_by_role("link", name="t5_seal").first.click()
    page.wait_for_url("**/seal/report.html")
    page.locator("#made > summary").click()
    page.get_by_role("link", name="provenance.json").click()
    page.wait_for_url("**/seal/provenance.json")


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"'&amp; שלום عالم 😀"


def keep_documents(run, text):
    """What `BestDocuments` keeps: of every query its own document, and one that is not relevant."""
    record = {}
    for number in range(PAIRS):
        row = dict(title=text, snippet=text, shares=[[text, 2.5], ["", -1.0]], others=[4, 0.25])
        first = dict(id="x1", rank=1, score=9.0, grade=0)
        rows = [first, dict(id=f"d{number}", rank=2, score=-2.0, grade=1)]
        documents = [one | row for one in rows]
        record[f"q{number}"] = {"text": text, "documents": documents}
    (run / "best_documents.json").write_text(json.dumps(record))


def test_whatever_texts_say_is_shown_as_text(tmp_path, make_explanation, show):
    run = tmp_path / '<i>"&amp; #1?x=%41 😀'
    pairs = make_explanation(PAIRS, layers=1, heads=1, seed=4)
    write_run(run, HOSTILE, "generative", pairs, [1, 2, 0, 3, 5, 10], token="▁" + HOSTILE + "{}")
    (run / "metrics.json").write_text(json.dumps({f"retrieve/{HOSTILE}/mrr@10": 0.5}))
    keep_documents(run, HOSTILE)
    other = write_run(tmp_path / "b", "b", "generative", pairs, [1] * PAIRS, token="▁" + HOSTILE)
    compare([run, other], tmp_path / "out")
    write_report(run, peers=[other])
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


def test_a_case_shows_what_was_retrieved_first_and_why(runs, show):
    keep_documents(runs[0], "a text")
    page = show(write_report(runs[0]), ready=CASES, place="#cases")
    case = open_case(page, "q1")
    first, second = page.locator(".hit").all()
    assert first.locator(".gold-mark").count() == 0 and second.locator(".gold-mark").count() == 1
    score = Ranking.read(runs[0] / "retrieve.trec").scores("q1")["d1"]
    assert f"d1, score {score:.3f}".replace("-", "−") in second.inner_text()
    bars = second.locator(".bars li").all_inner_texts()
    assert [bar.split("\n")[0] for bar in bars] == ["a text", "␣", "all others"]
    assert second.locator(".gains").count() == 0  # kept by an earlier version
    assert page.locator("h1").count() and case["text"] == "a text"


def test_a_page_opens_with_its_worst_case(runs, show):
    """The first screen shows a picture, and where the system fails."""
    page = show(write_report(runs[0]), ready=CASES)
    options = page.locator(".case-list optgroup").first
    assert options.get_attribute("label") == "The document is ranked worst"
    assert "none: it was not retrieved" in page.locator(".case-pane").inner_text()
    assert page.locator(".case-pane canvas").is_visible()
