"""The explorer's page in headless Chromium, against the real server."""

import re
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import uvicorn

from analysis.explore import STATIC, build_app, open_port
from analysis.viewer.session import KnownQuery, Session
from tests.analysis.viewer.test_session import matrices
from tests.analysis.viewer.tiny import load_systems

# Texts that a page must show as they are: markup, quotes, letters from right to left, emoji.
HOSTILE = {
    "script": ("<script>alert(1)</script>", "a 'text' & \"quotes\" <img src=x onerror=alert(1)>"),
    "rtl": ("שלום עולם", "זה טקסט בעברית שנכתב מימין לשמאל"),
    "emoji": ("😀 smile", "an emoji 🎉 and a </textarea><b>bold</b> word"),
    'id"quote': ("a quote in its id", "an id with a quote is found as others are"),
}
FRUITS = ("apple", "pear", "fig", "plum")
TEXTS = HOSTILE | {f: (f, f"The {f} is a fruit, number {n}.") for n, f in enumerate(FRUITS)}
QUERIES = {
    "what is an apple?": "apple",
    "<b>who</b> eats 'pears' & figs? 😀": "pear",
    "טקסט בעברית": "rtl",
    "alert <script>alert(2)</script>": "script",
}


def make_session():
    """Three untrained systems over hostile texts; T5-SEAL is said to find no gold document."""
    rows = [
        {"id": n, "title": title, "text": text, "fields": {"source": "<i>book</i>"}}
        for n, (title, text) in TEXTS.items()
    ]
    systems = load_systems("fruits <b>", rows=rows, queries=QUERIES)
    known = [
        KnownQuery(f"q{n}", text, [gold], [{gold: 1}, {gold: 2}, {}])
        for n, (text, gold) in enumerate(QUERIES.items())
    ]
    return Session(systems, known)


@contextmanager
def served(session):
    """The address at which a session is served."""
    listening = open_port(0)
    port = listening.getsockname()[1]
    settings = uvicorn.Config(
        build_app(session, port), log_level="warning", lifespan="off", ws="none"
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def address():
    with served(make_session()) as found:
        yield found


@contextmanager
def opened(chromium, start, errors_expected=False):
    """A page that must end without console errors, dialogs or requests to another address."""
    context = chromium.new_context(viewport={"width": 1300, "height": 900})
    page = context.new_page()
    page.set_default_timeout(30_000)
    problems, asked = [], []
    page.on("console", lambda said: said.type == "error" and problems.append(said.text))
    page.on("pageerror", lambda error: problems.append(f"{error}"))
    page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(start)
    yield page
    context.close()
    assert errors_expected or problems == []
    hosts = {urlsplit(url).hostname for url in asked if not url.startswith(("data:", "blob:"))}
    assert hosts == {"127.0.0.1"}


@pytest.fixture
def page(chromium, address):
    with opened(chromium, address) as page:
        yield page


def visible(page, selector):
    return page.locator(selector).locator("visible=true")


def field(page, label):
    """The control that assistive software calls by this name."""
    text, search, choice = (
        page.get_by_role(role, name=label, exact=True)
        for role in ("textbox", "searchbox", "combobox")
    )
    return text.or_(search).or_(choice).locator("visible=true")


def expect(locator):
    from playwright.sync_api import expect

    return expect(locator)


def open_known(page, query):
    known = visible(page, ".query-list button").filter(has_text=query)
    known.click()
    # Until its results are there, the page shows those of the query before.
    expect(known).to_have_attribute("aria-current", "true")
    expect(visible(page, ".column")).to_have_count(3)


def open_hit(page, system, place=0):
    visible(page, f'[aria-label="Results of {system}"] .hit > div:first-child .link').nth(
        place
    ).click()
    expect(visible(page, ".pair-view .alignment[data-drawn]")).to_have_count(1)


def aligned_pair(page):
    """Of the shown pair, what the server says."""
    return page.evaluate(
        """async () => {
        const state = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
        const body = { system: Number(state.system), query: state.q, document: { id: state.doc } };
        const reply = await fetch("api/align", { method: "POST", body: JSON.stringify(body),
          headers: { "Content-Type": "application/json" } });
        return reply.json();
        }"""
    )


# Three clicks at most: what a click is counts, typing does not ----------------------------------


def test_a_free_pair_is_aligned_after_one_click(page):
    page.get_by_role("button", name="Align two texts").click()
    field(page, "Query").fill("a red apple")
    field(page, "Document").fill("apples are red or green")
    expect(visible(page, ".cells canvas")).to_have_count(1)
    assert visible(page, '[aria-label="Tokens of the query"] li').count() >= 3


def test_a_miss_is_explained_after_one_click(page):
    """The page opens with the first known query's answer."""
    expect(visible(page, ".column")).to_have_count(3)
    assert visible(page, '.query-list [aria-current="true"]').count() == 1
    page.get_by_role("button", name=re.compile(r"^T5-SEAL: .* – why\?$")).first.click()
    expect(visible(page, ".reason .panel-body")).to_contain_text(re.compile(r"\w+ \w+"))
    expect(visible(page, ".steps tbody tr").first).to_be_visible()
    expect(visible(page, ".generated tbody tr").first).to_be_visible()
    said = visible(page, ".reason").inner_text() + visible(page, ".lost-line").inner_text()
    assert "▁" not in said and not re.search(r"\de-\d", said)
    assert "not among the first" in said


# What a pair shows ------------------------------------------------------------------------------


def test_tokens_are_linked_in_both_directions(page):
    open_known(page, "what is an apple?")
    open_hit(page, "T5-ColBERT")
    alignment = matrices(aligned_pair(page), "alignment")[0, 0]
    expected = [column.nonzero().flatten().tolist() for column in alignment.T]
    assert len({tuple(rows) for rows in expected}) > 1
    for column, rows in enumerate(expected):
        visible(page, '[aria-label="Tokens of the query"] li').nth(column).hover()
        assert partners(page, "document") == rows
    row = expected[0][0]
    visible(page, '[aria-label="Tokens of the document"] li').nth(row).hover()
    assert partners(page, "query") == alignment[row].nonzero().flatten().tolist()


def partners(page, side):
    return page.evaluate(
        """(label) => [...document.querySelectorAll(`.pair-view [aria-label="${label}"] li`)]
        .flatMap((item, place) => (item.classList.contains("partner") ? [place] : []))""",
        f"Tokens of the {side}",
    )


def test_every_matrix_layer_and_head_is_drawn_as_it_was_told(page):
    """The numbers that a cell names are those of the server, whatever is chosen."""
    open_known(page, "what is an apple?")
    open_hit(page, "T5-SEAL")
    drawn, pair, seen = visible(page, ".alignment"), aligned_pair(page), set()
    assert drawn.get_attribute("data-drawn") == "alignment 1 all"  # its own A of the last layer
    for name, layer, head in (
        ("alignment", 1, None), ("similarity", 1, None), ("product", 0, None),
        ("query_to_document", 0, None), ("document_to_query", 1, None), ("alignment", 0, 1),
    ):  # fmt: skip
        field(page, "Shown").select_option(name)
        field(page, "Layer").select_option(index=layer)
        if head is not None:
            field(page, "Head").select_option(index=1 + head)
        place = 0 if head is None else 1 + head
        page.mouse.move(0, 0)
        visible(page, ".cells").hover(position={"x": 24, "y": 8})  # the first row, second column
        value = matrices(pair, name)[layer, place, 0, 1].item()
        label = {"similarity": "S", "alignment": "A", "product": "S·A"}.get(name, "shown")
        told = visible(page, ".alignment .partners").inner_text()
        said = re.search(rf"[:,] {label} (\S+?)(,|$)", told)
        assert float(said[1].replace("−", "-")) == pytest.approx(value, abs=1e-3), name
        seen.add(page.evaluate('document.querySelector(".pair-view canvas").toDataURL()'))
    assert len(seen) == 5  # its own A of the last layer is its direction
    page.reload()  # all of that is in the address
    expect(drawn).to_have_attribute("data-drawn", "alignment 0 1")


def test_edits_change_score_and_alignment(page):
    open_known(page, "what is an apple?")
    open_hit(page, "T5-ColBERT")
    for tab in ("Why this rank", "Alignment and shares"):  # the score before edits is kept
        page.get_by_role("button", name=tab, exact=True).click()
    field(page, "Query").fill("what is an apple or a pear?")
    expect(visible(page, ".score")).to_contain_text("by your edits")
    text = field(page, "Document").input_value()
    field(page, "Document").fill("something else entirely")
    page.get_by_role("button", name="Back to the document's own text").click()
    expect(field(page, "Document")).to_have_value(text)
    assert "edited" not in page.url


def test_two_documents_are_compared(page):
    open_known(page, "what is an apple?")
    open_hit(page, "T5-ColBERT", 1)
    page.get_by_role("button", name="Compare with another text").click()
    expect(visible(page, ".differences")).to_have_count(1)
    numbers = [
        float(cell.replace("−", "-").replace("+", ""))
        for cell in visible(page, ".differences .sum td").all_inner_texts()[1:4]
    ]
    assert numbers[0] - numbers[1] == pytest.approx(numbers[2], abs=2e-3)
    field(page, "Query B").fill("who eats an apple?")
    expect(visible(page, ".differences")).to_contain_text("eats")
    field(page, "Take a result for the query as document B").select_option("emoji")
    expect(field(page, "Title B")).to_have_value("😀 smile")


# Of the whole collection ------------------------------------------------------------------------


def test_a_query_token_has_nearest_tokens_in_the_collection(page):
    open_known(page, "what is an apple?")
    open_hit(page, "T5-ColBERT")
    visible(page, '[aria-label="Tokens of the query"] li').first.click()
    expect(visible(page, ".nearest tbody tr").first).to_be_visible()
    visible(page, ".nearest tbody button").first.click()
    expect(visible(page, ".pair-view h2")).to_contain_text("T5-ColBERT and document")


def test_continuations_are_walked_token_by_token(page):
    open_known(page, "what is an apple?")
    open_hit(page, "T5-SEAL")
    page.get_by_role("button", name="Continuations").click()
    step = visible(page, ".continuation-table tbody tr:not(.forbidden) .name:first-child button")
    first = step.first.inner_text()
    step.first.click()
    expect(visible(page, ".path li")).to_have_count(2)
    page.reload()
    expect(visible(page, ".path li").last).to_have_text(first)
    page.go_back()
    expect(visible(page, ".path li")).to_have_count(1)


# Links, files, errors ---------------------------------------------------------------------------


def test_a_link_reopens_the_view_and_back_leads_back(page, chromium):
    open_known(page, "who")
    query = field(page, "Query").input_value()
    open_hit(page, "BM25")
    link, heading = page.url, visible(page, "h2").inner_text()
    page.go_back()
    expect(visible(page, ".column")).to_have_count(3)
    page.go_forward()
    expect(visible(page, "h2")).to_have_text(heading)
    with opened(chromium, link) as other:
        expect(visible(other, "h2")).to_have_text(heading)
        expect(field(other, "Query")).to_have_value(query)


def test_errors_are_a_line_of_text(chromium, address):
    with opened(chromium, f"{address}#view=pair&system=1&q=a&doc=nope", True) as page:
        expect(visible(page, ".status.error").first).to_contain_text("nope")
        page.route("**/api/**", lambda route: route.abort())
        page.locator("[data-view=search]").click()
        field(page, "Query").fill("anyone there?")
        page.keyboard.press("Enter")
        expect(visible(page, ".results .error")).to_contain_text("still running?")


# Texts of any kind, people of any kind ----------------------------------------------------------


def test_hostile_texts_are_shown_as_text(page):
    open_known(page, "alert")
    expect(field(page, "Query")).to_have_value("alert <script>alert(2)</script>")
    titles = visible(page, ".hit > div:first-child bdi").all_inner_texts()
    assert {title for title, _ in HOSTILE.values()} <= set(titles)
    for name in ("script", "rtl", "emoji"):
        title, text = HOSTILE[name]
        place = visible(page, '[aria-label="Results of T5-ColBERT"] .hit > div:first-child .link')
        place.filter(has_text=title).click()
        expect(field(page, "Title")).to_have_value(title)
        expect(field(page, "Document")).to_have_value(text)
        expect(visible(page, ".cells canvas")).to_have_count(1)
        expect(visible(page, ".reason")).not_to_be_empty()
        page.go_back()
    assert page.locator("main :is(script, img, bdi *, .snippet *)").count() == 0
    expect(page.get_by_text("source: <i>book</i>").first).to_be_visible()


def test_the_glossary_has_every_term_of_the_page(page):
    about = page.evaluate(
        """async () => (await fetch("api/about", { method: "POST", body: "{}",
          headers: { "Content-Type": "application/json" } })).json()"""
    )
    source = "".join(file.read_text() for file in STATIC.glob("*.js"))
    named = re.findall(r'term\("([^"]+)"(?:, "([^"]+)")?\)', source)
    terms = {(name or label).lower() for label, name in named} | {"document token"}
    for system in about["systems"]:
        terms |= {system["shares_of"], system["paradigm"]} - {"n-gram"}
    assert len(named) > 10 and terms <= {name.lower() for name in about["glossary"]}
