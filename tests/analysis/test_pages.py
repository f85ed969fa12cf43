"""Pages in a real browser: headless Chromium opens them as files."""

import csv
import html
import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import torch

from analysis.compare import compare
from analysis.directed_alignment import directed_alignment
from analysis.report.report import write_report
from analysis.store.alignment_store import AlignmentStore, StoreDescription, write_vocabulary
from analysis.store.alignment_writer import AlignmentWriter
from gr_mvdr.evaluation.ranking import Ranking, write_qrels
from gr_mvdr.relevance import Explanation

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")

PAIRS = 6
LISTENER = """<script>
window.problems = [];
window.addEventListener("error", (event) => problems.push(event.message));
window.addEventListener("unhandledrejection", (event) => problems.push(`${event.reason}`));
console.error = (...words) => problems.push(words.join(" "));
</script>"""
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


def browse(page, script, tmp_path):
    """What a script in the page answers, and the errors that the page reported."""
    text = page.read_text().replace("<head>", f"<head>{LISTENER}")
    run = f"""<script>(async () => {{ {HELPERS}
    const answer = (found) => {{ document.body.dataset.result = JSON.stringify(found); }};
    try {{
      await until(() => pane()?.dataset.drawn);
      answer([await (async () => {{ {script} }})(), problems]);
    }} catch (error) {{
      answer([null, [`${{error.stack}}`]]);
    }}
    }})();</script></body>"""
    copy = tmp_path / "tested.html"
    copy.write_text(text.replace("</body>", run))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    options += [f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom", copy.as_uri()]
    done = subprocess.run([BROWSER, *options], capture_output=True, text=True, timeout=120)
    found = re.search(r'data-result="([^"]*)"', done.stdout)
    assert found, f"the script did not end: {done.stderr[-2000:]}"
    result, problems = json.loads(html.unescape(found[1]))
    assert problems == []
    return result


def write_run(folder, system, paradigm, explanation, ranks):
    """A run's folder: alignments of (q<n>, d<n>), and a ranking with d<n> at the given rank."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"seed: 1\nmodel: {{name: {system}}}\n")
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
    write_vocabulary(store, lambda ids: [f"▁<w{n}>" for n in ids], special=[2])
    found = {}
    for query, document, rank in zip(queries, documents, ranks, strict=True):
        others = {f"x{place}": -float(place) for place in range(1, 11)}
        found[query] = others | ({document: 0.5 - rank} if rank else {})
    Ranking(found).write(folder / "retrieve.trec", system)
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


@needs_browser
def test_a_report_in_a_browser(runs, tmp_path):
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
    found.own = await switched("direction", "own");
    found.own_query = look("Query", 1, "Document");
    return found;
    """
    found = browse(page, script, tmp_path)
    seal, colbert = runs
    place = "document_to_query"
    assert found["direction"] == place

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
    assert_marks(found["system_query"], colbert, 0, "query_to_document", "query", 0)
    assert_marks(found["own_query"], colbert, 0, "own", "query", 1)
    pictures = [found[name] for name in ("start", "layer", "head", "turned", "system", "own")]
    assert len(set(pictures)) == 6 and found["again"] == found["start"]


@needs_browser
def test_a_comparison_in_a_browser(runs, tmp_path):
    compare(runs, tmp_path / "out")
    page = tmp_path / "out/comparison.html"
    script = """
    await until(() => pane(1)?.dataset.drawn);
    hover(tokens("Query")[0]);
    const all = (selector) => [...document.querySelectorAll(selector)];
    return {
      systems: all('[data-switch="system"]').map((select) => select.selectedOptions[0].text),
      rows: all(".case-facts tbody tr").map((row) => row.innerText),
      chosen: [0, 1].map((n) => marked("Query", "chosen", n)),
      groups: all(".case-groups h4").map((heading) => heading.textContent),
    };
    """
    found = browse(page, script, tmp_path)
    assert found["systems"] == ["t5_colbert", "t5_seal"]
    assert [row.split("\t")[:4] for row in found["rows"]] == [
        ["t5_colbert", "multi vector", "1", "1.000"],
        ["t5_seal", "generative", "1", "1.000"],
    ]
    assert found["chosen"] == [[0], [0]]  # both read the same text
    (row,) = csv.DictReader((tmp_path / "out/comparison_agreement.csv").open())
    assert row["pairs"] == "6" and 0 < float(row["query_to_document/overlap"]) < 1
    assert "t5_colbert, t5_seal</td><td>6</td>" in page.read_text()
    assert found["groups"][-1] == "Generative and multi-vector disagree"
