"""Pages in a real browser: headless Chromium opens them as files."""

import csv
import json
import re
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
CASES = "pane()?.dataset.drawn"
HELPERS = """
const pause = () => new Promise((go) => setTimeout(go, 10));
const until = async (test) => { for (let n = 0; n < 300 && !test(); n += 1) await pause(); };
const pane = (n) => document.querySelectorAll(".case-pane")[n ?? 0];
const tokens = (side, n) => pane(n).querySelector(`[aria-label="${side} tokens"]`).children;
const checksum = () => {
  const canvas = pane().querySelector("canvas");
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return data.reduce((sum, value) => (31 * sum + value) % 1000000007, 0);
};
const marked = (side, name, n) => [...tokens(side, n)]
  .filter((item) => item.classList.contains(name))
  .map((item) => Number(item.dataset.number));
const hover = (item) => item.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
const switched = async (name, value) => {
  const select = pane().querySelector(`[data-switch="${name}"]`);
  const before = pane().dataset.drawn;
  select.value = value;
  select.dispatchEvent(new Event("change"));
  await until(() => pane().dataset.drawn !== before);
  return checksum();
};
const open = async (number) => {
  delete pane().dataset.drawn;
  document.querySelectorAll(".case-groups button")[number].click();
  await until(() => pane().dataset.drawn);
};
"""


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
        page.evaluate(f"async () => {{ {HELPERS} await until(() => {ready or 'true'}); }}")
        return page

    yield open_page
    assert problems == []
    assert all(url.startswith(("file:", "data:image/png;base64,")) for url in opened)


def browse(page, script):
    """What a script in the page returns."""
    return page.evaluate(f"async () => {{ {HELPERS} {script} }}")


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


def data_of(page):
    return json.loads(
        re.search(r'<script type="application/json">(.*?)</script>', page.read_text())[1]
    )


def expected_partners(run, number, direction, side, index, head=None):
    """Tokens of the other side: coloured, equal, strongest; from the stored alignment alone."""
    store = AlignmentStore(run / "alignments")
    pair = store[number]
    if head is not None:
        pair = replace(
            pair,
            similarity=pair.similarity[:, head : head + 1],
            alignment=pair.alignment[:, head : head + 1],
        )
    directed = lambda: directed_alignment(pair, store.description.paradigm, direction)  # noqa: E731
    weights = pair.alignment[0, 0] if direction == "own" else directed()[0]
    low, high = weights.min(), weights.max()
    levels = (255 * (weights - low) / (high - low)).round()
    line = levels[:, index] if side == "query" else levels[index]
    own, other = pair.query_ids[0], pair.document_ids[0]
    if side == "document":
        own, other = other, own
    strength = (line - line.min()) / (line.max() - line.min())
    partners = (strength >= 0.25).nonzero().flatten().tolist()
    return (
        partners,
        (other == own[index]).nonzero().flatten().tolist(),
        (strength == 1).nonzero().flatten().tolist(),
    )


def test_the_cases_of_a_report(runs, show):
    page = write_report(runs[0], peers=[runs[1]])
    assert "http://" not in page.read_text() and "https://" not in page.read_text()
    cases = data_of(page)["cases"]
    number = next(n for n, case in enumerate(cases) if case["query"] == "q0")
    script = f"""
    await open({number});
    const direction = pane().querySelector('[data-switch="direction"]').value;
    const found = {{ start: checksum(), direction }};
    const look = (side, index, other) => {{
      hover(tokens(side)[index]);
      return [marked(other, "partner"), marked(other, "same"), marked(other, "strongest")];
    }};
    found.names = [...pane().querySelectorAll(".case-rows span")].map((name) => name.textContent);
    found.document = look("Document", 0, "Query");
    found.query = look("Query", 0, "Document");
    found.status = pane().querySelector('[role="status"]').textContent;
    tokens("Query")[1].focus();
    found.focused = marked("Query", "chosen");
    tokens("Query")[1].blur();
    found.left = marked("Document", "partner");
    tokens("Query")[0].click();
    found.pinned = marked("Document", "partner");
    found.layer = await switched("layer", 0);
    found.layer_partners = marked("Document", "partner");
    found.head = await switched("head", 2);
    await switched("layer", 1);
    found.head_partners = look("Query", 1, "Document");
    await switched("head", 0);
    found.again = checksum();
    found.turned = await switched("direction", "query_to_document");
    found.turned_query = look("Query", 0, "Document");
    found.system = await switched("system", 1);
    found.system_query = look("Query", 0, "Document");
    found.other = await switched("direction", "query_to_document");
    found.other_query = look("Query", 1, "Document");
    return found;
    """
    found = browse(show(page, ready=CASES, place="#cases"), script)
    seal, colbert = runs
    place = "document_to_query"
    assert found["direction"] == place
    assert all(name.startswith("▁<w") for name in found["names"])  # with its word mark

    def assert_marks(marks, *where):
        partners, same, strongest = expected_partners(*where)
        assert marks == [partners, same, strongest]

    assert_marks(found["document"], seal, 0, place, "document", 0)
    assert_marks(found["query"], seal, 0, place, "query", 0)
    assert found["query"][1] and "equal (underlined)" in found["status"]
    assert found["focused"] == [1] and found["left"] == []
    assert found["pinned"] == found["query"][0]  # a tap keeps the token while switches change
    assert found["layer_partners"] and found["layer_partners"] != found["pinned"]
    assert_marks(found["head_partners"], seal, 0, place, "query", 1, 1)
    assert_marks(found["turned_query"], seal, 0, "query_to_document", "query", 0)
    assert_marks(found["system_query"], colbert, 0, "own", "query", 0)  # hard, as it aligns
    assert_marks(found["other_query"], colbert, 0, "query_to_document", "query", 1)
    pictures = [found[name] for name in ("start", "layer", "head", "turned", "system", "other")]
    assert len(set(pictures)) == 6 and found["again"] == found["start"]


def test_the_cases_of_a_comparison(runs, tmp_path, show):
    compare(runs, tmp_path / "out")
    page = tmp_path / "out/comparison.html"
    script = """
    hover(tokens("Query")[0]);
    const all = (selector) => [...document.querySelectorAll(selector)];
    return {
      systems: all('[data-switch="system"]').map((select) => select.selectedOptions[0].text),
      rows: all(".case-facts tbody tr").map((row) => row.innerText),
      chosen: [0, 1].map((n) => marked("Query", "chosen", n)),
      groups: all(".case-groups h4").map((heading) => heading.textContent),
    };
    """
    found = browse(show(page, ready="pane(1)?.dataset.drawn", place="#cases-1"), script)
    assert found["systems"] == ["t5_colbert", "t5_seal"]
    assert [row.split("\t")[:4] for row in found["rows"]] == [
        ["t5_colbert", "multi vector", "1", "1.000"],
        ["t5_seal", "generative", "not found", "0"],
    ]
    assert found["chosen"] == [[0], [0]]  # both read the same text
    (row,) = csv.DictReader((tmp_path / "out/comparison_agreement.csv").open())
    assert row["pairs"] == "6" and 0 < float(row["query_to_document/overlap"]) < 1
    assert "t5_colbert, t5_seal</td><td>6</td>" in page.read_text()
    assert found["groups"] == ["The systems disagree", "Best", "Worst"]  # the first is open


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
    assert marked and set(marked) <= set(known)


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


def test_the_panes_are_the_two_systems_that_disagree_most(runs, tmp_path, show, make_explanation):
    pairs = make_explanation(PAIRS, paradigm="multi_vector", seed=4)
    runs.append(write_run(tmp_path / "xtr", "xtr", "multi_vector", pairs, [1] * PAIRS))
    compare(runs, tmp_path)
    page = show(tmp_path / "comparison.html", ready=CASES, place="#cases-1")
    shown = "all => all.map((select) => select.selectedOptions[0].text)"
    systems = {}
    for button in page.locator(".case-groups button").all():
        button.click()
        query = page.locator(".case-title + p").inner_text().split()[1]
        systems[query] = page.locator('[data-switch="system"]').evaluate_all(shown)
    # Reciprocal ranks of q3: SEAL 0, the others 1; of q4: SEAL 0.2, ColBERT 0, XTR 1.
    assert systems["q3,"] == ["t5_colbert", "t5_seal"] and systems["q4,"] == ["t5_colbert", "xtr"]
    page.locator('[data-switch="system"]').first.select_option("t5_seal")
    page.locator(".case-groups button").last.click()  # what a reader has chosen stays
    assert page.locator('[data-switch="system"]').evaluate_all(shown)[0] == "t5_seal"


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
        assert page.locator("script").count() == 3 and page.locator("img[onerror]").count() == 0
        titles = [page.locator(".case-title"), page.locator(".case-groups button").first]
        titles += [page.locator(f".case-found {part}").first for part in ("b", ".case-snippet")]
        titles.append(page.locator(".case-shares bdi").first)
        assert [element.text_content() for element in titles] == [HOSTILE] * 5
        token = page.locator('[aria-label="Query tokens"] li').first
        assert token.text_content().startswith("▁" + HOSTILE)
        token.hover()
        assert HOSTILE in page.get_by_role("status").first.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_case_shows_what_was_found_first_and_why(runs, tmp_path, show):
    keep_documents(runs[0], "a text")
    page = show(write_report(runs[0]), ready=CASES, place="#cases")
    first, second = page.locator(".case-found li:has(.case-hit)").all()
    assert "relevant" not in first.inner_text() and "evidence -1.000" in first.inner_text()
    number = int(page.locator(".case-title + p").inner_text().split(",")[0][7:])
    score = Ranking.read(runs[0] / "retrieve.trec").scores(f"q{number}").get(f"d{number}", -2.0)
    assert f"relevant: this case d{number}, evidence {score:.3f}" in " ".join(
        second.inner_text().split()
    )
    shares = second.locator(".case-shares li").all_inner_texts()
    assert shares == ["a text 2.500", "␣ -1.000", "4 more: 0.250"]
    assert "n-gram keys, with their weights" in page.locator(".case-found").inner_text()
    row = page.locator(".case-facts tbody tr").inner_text()
    assert "evidence" in row and "leak-free score" in row
    page.locator('[data-switch="direction"]').select_option("product")
    page.wait_for_function("document.querySelector('.case-pane').dataset.drawn.includes('product')")
    assert "similarity times alignment" in page.locator(".case-legend").inner_text()
