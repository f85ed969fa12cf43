"""The explorer's page in headless Chromium, against the real server."""

import re
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import torch
import uvicorn

from analysis.viewer.known_queries import KnownQueries, KnownQuery
from analysis.viewer.loading import LoadedSystem
from analysis.viewer.server import STATIC, build_app, open_port
from analysis.viewer.session import Session, open_session
from gr_mvdr.texts import TextReader
from gr_mvdr.tokenizers import build_word_tokenizer
from models.retriever import Retriever
from tests.analysis.viewer.tiny import make_bm25, make_multi_vector, make_seal
from tests.runs import TINY

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")

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
SYSTEMS = ("BM25", "T5-ColBERT", "T5-SEAL")


def make_session():
    """Three untrained systems over hostile texts; T5-SEAL is said to find no gold document."""
    torch.manual_seed(0)
    rows = [{"id": n, "title": title, "text": text} for n, (title, text) in TEXTS.items()]
    words = [*QUERIES, *(f"{title} | {text}" for title, text in TEXTS.values())]
    run, systems = SimpleNamespace(path=Path("outputs/run"), setting="fruits <b>"), []
    for label, system in zip(SYSTEMS, (make_bm25(), make_multi_vector(), make_seal()), strict=True):
        reader = TextReader(build_word_tokenizer(words))
        documents = reader.documents(rows)
        system.eval().index(documents)
        systems.append(LoadedSystem(label, run, Retriever(system, reader, documents, label)))
    known = [
        KnownQuery(f"q{n}", text, (gold,), ({gold: 1}, {gold: 2}, {}))
        for n, (text, gold) in enumerate(QUERIES.items())
    ]
    return Session(systems, KnownQueries(known))


@contextmanager
def served(session):
    """The address at which a session is served."""
    listening = open_port(None)
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


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def opened(chromium, start, errors_expected=False, width=1300):
    """A page that must end without console errors, dialogs or requests to another address."""
    context = chromium.new_context(viewport={"width": width, "height": 900}, accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
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
    visible(page, ".query-list button").filter(has_text=query).click()
    expect(visible(page, ".column")).to_have_count(3)


def open_hit(page, system, place=0):
    visible(page, f'[aria-label="Results of {system}"] .hit-title').nth(place).click()
    expect(visible(page, ".pair-view .total").first).to_contain_text("equal")


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
    expect(visible(page, ".total").first).to_contain_text("equal")
    assert visible(page, '[aria-label="Tokens of the query"] li').count() >= 3
    expect(visible(page, ".cells canvas")).to_have_count(1)


def test_a_new_query_is_searched_with_one_click(page):
    field(page, "Query").fill("which fruit is green?")
    page.get_by_role("search").get_by_role("button", name="Search").click()
    expect(visible(page, ".column")).to_have_count(3)
    assert visible(page, ".hit").count() > 3
    expect(visible(page, ".gold-line")).to_have_count(0)  # no known query


def test_a_miss_is_explained_after_two_clicks(page):
    check_explanation(page)
    assert "Not found" in visible(page, ".facts").inner_text()


def check_explanation(page):
    visible(page, ".query-list button").first.click()
    page.get_by_role("button", name=re.compile(r"^T5-SEAL: .* – why\?$")).first.click()
    expect(visible(page, ".reason .panel-body")).to_contain_text(re.compile(r"\w+ \w+"))
    expect(visible(page, ".steps tbody tr").first).to_be_visible()
    expect(visible(page, ".generated tbody tr").first).to_be_visible()


@pytest.mark.slow
def test_trained_runs_take_no_more_clicks(finished_run, chromium):
    runs = [finished_run(model, *TINY) for model in ("bm25", "t5_colbert", "t5_seal")]
    with served(open_session(runs)) as found:
        for flow in (
            test_a_free_pair_is_aligned_after_one_click,
            test_a_new_query_is_searched_with_one_click,
            check_explanation,
        ):
            with opened(chromium, found) as page:
                flow(page)


# What a pair shows ------------------------------------------------------------------------------


def test_tokens_are_linked_in_both_directions(page):
    open_known(page, "what is an apple?")
    open_hit(page, "T5-ColBERT")
    alignment = aligned_pair(page)["alignment"]
    columns = zip(*alignment, strict=True)
    expected = [[i for i, weight in enumerate(column) if weight > 0] for column in columns]
    assert len({tuple(rows) for rows in expected}) > 1
    for column, rows in enumerate(expected):
        visible(page, '[aria-label="Tokens of the query"] li').nth(column).hover()
        assert partners(page, "document") == rows
    row = expected[0][0]
    visible(page, '[aria-label="Tokens of the document"] li').nth(row).hover()
    assert partners(page, "query") == [j for j, weight in enumerate(alignment[row]) if weight > 0]


def partners(page, side):
    return page.evaluate(
        """(label) => [...document.querySelectorAll(`.pair-view [aria-label="${label}"] li`)]
        .flatMap((item, place) => (item.classList.contains("partner") ? [place] : []))""",
        f"Tokens of the {side}",
    )


def test_shares_are_shown_with_their_sum_and_the_score(page):
    open_known(page, "what is an apple?")
    for system in SYSTEMS:
        open_hit(page, system)
        pair = aligned_pair(page)
        assert pair["shares_sum"] == pytest.approx(pair["score"], rel=1e-4, abs=1e-4)
        shown = [visible(page, f".total {kind}").first.inner_text() for kind in (".sum", ".whole")]
        for text in shown:
            assert float(text.replace("−", "-")) == pytest.approx(pair["score"], abs=2e-3)
        page.go_back()


def test_the_matrix_has_layers_directions_and_heads(page):
    open_known(page, "what is an apple?")
    open_hit(page, "T5-SEAL")
    drawn = visible(page, ".alignment")
    seen = [picture(page)]
    assert drawn.get_attribute("data-drawn").split()[1:3] == ["alignment", "own"]  # its own A first
    for name in ("S", "S·A"):
        visible(page, ".segments").get_by_role("button", name=name, exact=True).click()
        seen.append(picture(page))
    visible(page, ".segments").get_by_role("button", name="A", exact=True).click()
    field(page, "Direction").select_option("query_to_document")
    seen.append(picture(page))
    field(page, "Direction").select_option("own")
    field(page, "Head").select_option(label="2")
    expect(drawn).to_have_attribute("data-drawn", re.compile(r" 1$"))
    seen.append(picture(page))
    assert len(set(seen)) == len(seen)
    page.reload()  # all of that is in the address
    expect(drawn).to_have_attribute("data-drawn", re.compile(r"alignment own \S+ 1$"))
    assert picture(page) == seen[-1]


def picture(page):
    return page.evaluate('document.querySelector(".pair-view canvas").toDataURL()')


def test_edits_change_score_and_alignment(page):
    open_known(page, "what is an apple?")
    open_hit(page, "T5-ColBERT")
    field(page, "Query").fill("what is an apple or a pear?")
    expect(visible(page, ".score")).to_contain_text("by your edits")
    text = field(page, "Document").input_value()
    field(page, "Document").fill("something else entirely")
    page.get_by_role("button", name="Back to the document's own text").click()
    expect(field(page, "Document")).to_have_value(text)
    assert "edited" not in page.url


def test_an_edit_names_the_tokens_that_it_changed(page):
    open_known(page, "what is an apple?")
    open_hit(page, "T5-ColBERT")
    expect(page.locator(".changes")).to_be_empty()
    field(page, "Query").fill("what is an apple pear pear?")
    expect(visible(page, ".changes")).to_have_text("Tokens of the query: new pear, pear. ")
    field(page, "Query").fill("what is a pear?")
    expect(visible(page, ".changes")).to_contain_text("gone an, apple.")
    page.reload()
    expect(visible(page, ".changes")).to_contain_text("gone an, apple.")
    page.get_by_role("button", name="BM25", exact=True).click()  # another system names them, too
    expect(visible(page, "h2")).to_contain_text("BM25")
    expect(visible(page, ".changes")).to_contain_text("gone an, apple.")
    field(page, "Query").fill("what is an apple?")
    expect(page.locator(".changes")).to_be_empty()


def test_a_token_is_shown_with_its_word_mark(page):
    """Else tokens look equal that are not: "▁debug" and "debug" never match."""
    tokens = ["▁debug", "debug", "Ġdebug", "##debug", "▁"]

    def answer(route):
        told = route.fetch().json()
        for side in ("query", "document"):
            own = told[f"{side}_tokens"]
            told[f"{side}_tokens"] = [tokens[n % len(tokens)] for n in range(len(own))]
        route.fulfill(json=told)

    page.route("**/api/align", answer)
    open_known(page, "what is an apple?")
    open_hit(page, "T5-ColBERT")
    for shown in (".row-names span", ".column-names span", '[aria-label="Tokens of the query"] li'):
        texts = visible(page, shown).all_text_contents()[: len(tokens)]
        assert texts and texts == tokens[: len(texts)]
    visible(page, '[aria-label="Tokens of the query"] li').nth(1).hover()
    expect(visible(page, ".alignment .partners")).to_contain_text("“debug” with")


def test_two_documents_are_compared(page):
    open_known(page, "what is an apple?")
    open_hit(page, "T5-ColBERT", 1)
    page.get_by_role("button", name="Compare with another text").click()
    expect(visible(page, ".differences")).to_have_count(1)
    numbers = [
        float(cell.replace("−", "-").replace("+", ""))
        for cell in visible(page, ".differences tfoot td").all_inner_texts()[:3]
    ]
    assert numbers[0] - numbers[1] == pytest.approx(numbers[2], abs=2e-3)
    field(page, "Query B").fill("who eats an apple?")
    expect(visible(page, ".differences")).to_contain_text("eats")
    field(page, "Take a result for the query as document B").select_option("emoji")
    expect(field(page, "Title B")).to_have_value("😀 smile")


def test_a_query_is_patched_after_three_clicks(page):
    open_known(page, "what is an apple?")
    open_hit(page, "T5-SEAL")
    page.get_by_role("button", name="Patching").click()
    expect(visible(page, ".heatmap")).to_have_count(4)  # two stacks, tokens and heads
    other = field(page, "The other query: yours with a word exchanged")
    assert other.input_value() not in ("", "what is an apple?")
    visible(page, ".cells").first.hover()
    expect(visible(page, ".partners").first).to_contain_text("restores")
    other.fill("who is <b>an</b> <script>alert(1)</script> apple?")
    page.wait_for_url(re.compile("other="))
    page.reload()  # the other query is in the address
    expect(visible(page, ".heatmap")).to_have_count(4)
    assert "<script>" in other.input_value()
    assert page.locator("main :is(script, img, b b, bdi *)").count() == 0
    page.get_by_role("button", name="BM25", exact=True).click()
    expect(visible(page, "[data-tab=patching]")).to_have_count(0)


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
    expect(visible(page, ".path li").last).to_have_text(first)
    page.reload()
    expect(visible(page, ".path li").last).to_have_text(first)
    page.go_back()
    expect(visible(page, ".path li")).to_have_count(1)


def test_of_two_queries_with_one_text_the_opened_one_shows_its_gold(chromium):
    text, nowhere = "what is an apple?", ({},) * len(SYSTEMS)
    twins = [
        KnownQuery("q1", text, ("apple",), nowhere),
        KnownQuery("q2", text, ("pear",), nowhere),
    ]
    session = make_session()
    twins = Session(session.systems, KnownQueries(twins))
    with served(twins) as address, opened(chromium, address) as page:

        def shows(gold):
            expect(visible(page, ".gold-line strong + bdi")).to_have_text(gold)

        for query, gold in (("q1", "apple"), ("q2", "pear")):
            visible(page, ".query-list button").filter(has_text=query).click()
            shows(gold)
            marked = visible(page, '.query-list [aria-current="true"]')
            expect(marked).to_contain_text(query)
        open_hit(page, "T5-ColBERT")
        visible(page, ".back").click()
        shows("pear")
        page.reload()
        shows("pear")
        visible(page, ".query-list button").first.click()
        shows("apple")
        page.go_back()
        shows("pear")
        page.goto(f"{address}#view=search&q={text}")  # typed: which of the two is not said
        page.reload()
        visible(page, ".namesakes button").filter(has_text="q2").click()
        shows("pear")


# Links, files, errors ---------------------------------------------------------------------------


def test_a_link_reopens_the_view_and_back_leads_back(page, chromium):
    open_known(page, "who")
    query = field(page, "Query").input_value()
    open_hit(page, "BM25")
    page.get_by_role("button", name="Copy link").click()
    expect(visible(page, ".copy")).to_contain_text("Copied")
    link, heading = page.url, visible(page, "h2").inner_text()
    assert page.evaluate("navigator.clipboard.readText()") == link
    page.go_back()
    expect(visible(page, ".column")).to_have_count(3)
    page.go_forward()
    expect(visible(page, "h2")).to_have_text(heading)
    with opened(chromium, link) as other:
        expect(visible(other, "h2")).to_have_text(heading)
        expect(field(other, "Query")).to_have_value(query)


@pytest.mark.parametrize(("format", "begins"), [("PNG", b"\x89PNG"), ("PDF", b"%PDF")])
def test_the_view_is_saved_as_a_picture(page, format, begins):
    open_known(page, "what is an apple?")
    open_hit(page, "T5-ColBERT")
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save {format}").click()
    assert download.value.path().read_bytes().startswith(begins)


def test_errors_are_a_line_of_text(chromium, address):
    with opened(chromium, f"{address}#view=pair&system=1&q=a&doc=nope", True) as page:
        expect(visible(page, ".status.error").first).to_contain_text("nope")
        page.route("**/api/**", lambda route: route.abort())
        page.get_by_role("button", name="Search", exact=True).first.click()
        field(page, "Query").fill("anyone there?")
        page.keyboard.press("Enter")
        expect(visible(page, ".results .error")).to_contain_text("still running?")


# Texts of any kind, people of any kind ----------------------------------------------------------


def test_hostile_texts_are_shown_as_text(page):
    open_known(page, "alert")
    expect(field(page, "Query")).to_have_value("alert <script>alert(2)</script>")
    titles = visible(page, ".hit-title bdi").all_inner_texts()
    assert {title for title, _ in HOSTILE.values()} <= set(titles)
    for name in ("script", "rtl", "emoji"):
        title, text = HOSTILE[name]
        place = visible(page, '[aria-label="Results of T5-ColBERT"] .hit-title')
        place.filter(has_text=title).click()
        expect(field(page, "Title")).to_have_value(title)
        expect(field(page, "Document")).to_have_value(text)
        expect(visible(page, ".total").first).to_contain_text("equal")
        expect(visible(page, ".reason")).not_to_be_empty()
        page.go_back()
    assert page.locator("main :is(script, img, bdi *, .snippet *)").count() == 0


def test_terms_are_explained_one_hover_away(page):
    open_known(page, "what is an apple?")
    visible(page, ".hits .term").first.hover()
    expect(visible(page, '[role="tooltip"]')).to_have_count(1)
    page.mouse.move(0, 0)
    expect(visible(page, '[role="tooltip"]')).to_have_count(0)
    visible(page, ".hits .term").first.focus()
    expect(visible(page, '[role="tooltip"]')).to_have_count(1)


def test_the_glossary_has_every_term_of_the_page(page):
    about = page.evaluate("fetch('api/about').then((reply) => reply.json())")
    source = "".join(file.read_text() for file in STATIC.glob("*.js"))
    named = re.findall(r'term\("([^"]+)"(?:, "([^"]+)")?\)', source)
    terms = {(name or label).lower() for label, name in named} | {"document token"}
    for system in about["systems"]:
        terms |= {system["shares_of"], system["paradigm"].replace(" ", "-")}
    assert len(named) > 10 and terms <= {name.lower() for name in about["glossary"]}


def test_the_keyboard_does_what_the_mouse_does(page):
    field(page, "Query").fill("what is an apple?")
    page.keyboard.press("Enter")
    expect(visible(page, ".column")).to_have_count(3)
    visible(page, ".hit-title").first.focus()
    page.keyboard.press("Enter")
    first = visible(page, '[aria-label="Tokens of the query"] li').first
    first.focus()
    expect(first).to_have_class(re.compile("chosen"))
    page.keyboard.press("ArrowRight")
    second = visible(page, '[aria-label="Tokens of the query"] li').nth(1)
    expect(second).to_be_focused()
    expect(second).to_have_class(re.compile("chosen"))
    unnamed = page.evaluate(
        """[...document.querySelectorAll("main :is(input, select, textarea)")]
        .filter((it) => !it.labels.length && !it.getAttribute("aria-label")).length"""
    )
    assert unnamed == 0


@pytest.mark.slow
def test_narrow_windows_need_no_scrolling_sideways(chromium, address):
    pair = "system=2&q=what+is+an+apple%3F&doc=apple"
    for view in (
        "search&q=what+is+an+apple%3F",
        f"pair&{pair}",
        f"pair&tab=why&{pair}",
        f"pair&tab=patching&{pair}",
        f"compare&{pair}",
    ):
        with opened(chromium, f"{address}#view={view}", width=800) as page:
            expect(visible(page, "[aria-busy]")).to_have_count(0)
            assert page.evaluate("document.documentElement.scrollWidth") <= 800
