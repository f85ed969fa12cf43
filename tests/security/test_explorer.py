"""The explorer against other sites' pages, foreign names, and requests that no page would send."""

import json
import socket

import anyio
import pytest

from analysis.viewer.server import BODY, HEADERS, open_port
from tests.analysis.viewer import tiny
from tests.analysis.viewer.tiny import PORT, make_session

SEARCH = {"query": "apple"}
_made: list = []


def client(**options):
    """A browser on the tiny session, which is made once."""
    _made[:] = _made or [make_session()]
    return tiny.client(_made[0], **options)


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"LOCALHOST:{PORT}"])
def test_this_machines_names_are_let_in(host):
    assert client(host=host).get("/api/about").status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1:80", "127.0.0.1", f"127.0.0.1:{PORT}.evil",
     f"[::1]:{PORT}", ""],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/api/about", "/static/explorer.js", "/nowhere"])
def test_a_foreign_host_is_refused(host, path):
    found = client().get(path, headers={"Host": host})
    assert found.status_code == 403 and found.json()["error"].startswith("Host: must be")


def test_two_hosts_are_refused():
    names = [("Host", f"127.0.0.1:{PORT}"), ("Host", "evil.example")]
    assert client().get("/api/about", headers=names).status_code == 403


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:9999",
     f"http://127.0.0.1:{PORT}@evil.example"],
)  # fmt: skip
def test_another_sites_script_is_refused(origin):
    found = client().post("/api/search", json=SEARCH, headers={"Origin": origin})
    assert found.status_code == 403 and found.json()["error"].startswith("Origin")
    assert "access-control-allow-origin" not in found.headers


def test_the_pages_own_script_and_a_program_are_let_in():
    own = {"Origin": f"http://127.0.0.1:{PORT}"}
    assert client().post("/api/search", json=SEARCH, headers=own).status_code == 200
    assert client().post("/api/search", json=SEARCH).status_code == 200


def test_a_form_of_another_site_is_refused():
    """A form needs no permission of the browser, but it cannot send this type."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        headers = {"Content-Type": kind}
        found = client().post("/api/search", content=json.dumps(SEARCH), headers=headers)
        assert found.status_code == 415, kind


@pytest.mark.parametrize(
    "path",
    ["/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py",
     "/static/%2e%2e%2f%2e%2e%2f__init__.py", "/static//etc/passwd", "/static/%2fetc%2fpasswd",
     "/static/..%5cserver.py", "/static/", "/static/.", "/static/explorer.js%00", "/server.py"],
)  # fmt: skip
def test_no_name_leads_out_of_the_pages_files(path):
    found = client().get(path)
    assert found.status_code == 404 and list(found.json()) == ["error"]


def test_every_answer_forbids_other_addresses():
    asked = [client().get(path) for path in ("/", "/api/about", "/static/no.js", "/api/document")]
    asked.append(client().get("/", headers={"Host": "evil.example"}))
    asked.append(client().post("/api/search", content="{", headers={"Host": "evil.example"}))
    for found in asked:
        assert HEADERS.items() <= dict(found.headers).items()
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'self';") and "unsafe" not in policy


def test_a_huge_body_is_refused_before_it_is_read():
    read = 0

    def body():
        nonlocal read
        for _ in range(100):
            read += 1
            yield b" " * (BODY // 4)

    found = client().post(
        "/api/search", content=body(), headers={"Content-Type": "application/json"}
    )
    assert found.status_code == 413 and "≤ 1,048,576 bytes" in found.json()["error"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '"query"', "[" * 100_000, '{"query": "a", "k": NaN}', b"\xff\xfe{}",
     '{"query": "\\ud800"}', '{"query": "a", "k": 1e999}', "{'query': 1}",
     '{"query": "a", "k": ' + "9" * 5000 + "}"],
    ids=range(12),
)  # fmt: skip
def test_what_is_no_request_is_refused_by_one_line(content):
    headers = {"Content-Type": "application/json"}
    found = client().post("/api/search", content=content, headers=headers)
    assert found.status_code == 400, found.text
    assert list(found.json()) == ["error"] and "\n" not in found.json()["error"]


@pytest.mark.parametrize(
    ("verb", "asked", "line"),
    [
        ("search", {}, "search.query=…: must be given"),
        ("search", {"query": 5}, "search.query=5: must be text"),
        ("search", {"query": ["a"]}, "search.query=[a]: must be text"),
        ("search", {"query": None}, "search.query=null: must be text"),
        ("search", {"query": "a", "k": "3"}, "search.k=3: must be a whole number"),
        ("search", {"query": "a", "k": True}, "search.k=true: must be a whole number"),
        ("search", {"query": "a", "k": 1.5}, "search.k=1.5: must be a whole number"),
        ("search", {"query": "a", "k": 0}, "k=0: must be ≥ 1 and ≤ 1,000"),
        ("search", {"query": "a", "k": 10**9}, "k=1000000000: must be ≥ 1 and ≤ 1,000"),
        ("search", {"query": "a", "more": 1}, "search.more=1: must be one of among, k, known, qu"),
        ("search", {"query": "a", "among": "a"}, "search.among=a: must be a list or null"),
        ("search", {"query": "a", "among": [1]}, "among: must be a list of 1 to 10,000 texts"),
        ("search", {"query": "a", "among": []}, "among: must be a list of 1 to 10,000 texts"),
        ("search", {"query": "a", "among": ["a" * 20_001] * 1}, "document=aaaaa"),
        ("align", {"system": 9, "query": "a", "document": {"id": "a"}}, "system=9: must be ≥ 0"),
        ("align", {"system": -1, "query": "a", "document": {"id": "a"}}, "system=-1: must be"),
        ("align", {"system": 0, "query": "a", "document": {"id": "no"}}, "document=no: must be"),
        ("align", {"system": 0, "query": "a", "document": {"id": ["a"]}}, "document.id=[a]: must"),
        ("align", {"system": 0, "query": "a", "document": {}}, "document: must have id, or text"),
        ("align", {"system": 0, "query": "a", "document": {"id": "a", "text": ""}}, "document: "),
        ("align", {"system": 0, "query": "a", "document": {"text": " "}}, "document.text='': must"),
        ("align", {"system": 0, "query": "a", "document": "a"}, "align.document=a: must"),
        ("align", {"system": 0, "query": "a", "document": {"id": "a"}, "head": 7}, "head=7: must"),
        ("align", {"system": 0, "query": " ", "document": {"id": "a"}}, "query=' ': must be a"),
        ("align", {"system": 0, "query": "a", "document": {"id": "a"}, "layer": 1}, "layer=1: mu"),
        ("explain", {"system": 0, "query": "a", "document": "no"}, "document=no: must be an id"),
        ("compare", {"system": 0, "queries": [], "documents": []}, "queries: must be a list of 1"),
        ("compare", {"system": 0, "queries": ["a", "b"], "documents": [{}] * 3}, "documents: must"),
        ("compare", {"system": 0, "queries": ["a"], "documents": ["x"]}, "document: must have"),
        ("continuations", {"system": 0, "query": "a"}, "system=0: must be generative, BM25 is"),
        ("patch", {"system": 0, "query": "a", "document": {"id": "a"}}, "system=0: BM25 enc"),
        ("patch", {"system": 1, "query": " ", "document": {"id": "a"}}, "query=' ': must be a"),
        ("patch", {"system": 1, "query": "a", "document": {"id": "no"}}, "document=no: must be"),
        (
            "patch",
            {"system": 1, "query": "apple", "document": {"id": "a"}, "perturbed": "apple"},
            "perturbed: must be read as other tokens than the query",
        ),
        ("patch", {"system": 1, "query": "a", "document": {"id": "a"}, "perturbed": 1}, "patch."),
        ("nearest", {"system": 0, "query": "a", "token": 0}, "system=0: must be multi vector"),
        (
            "figure",
            {"system": 0, "query": "a", "document": {"id": "a"}, "format": "svg"},
            "figure.format=svg: must be png or pdf",
        ),
    ],
)  # fmt: skip
def test_wrong_types_and_values_are_one_line_each(verb, asked, line):
    found = client().post(f"/api/{verb}", json=asked)
    assert found.status_code in (400, 404), found.text
    assert found.json()["error"].startswith(line) and len(found.json()["error"]) < 400


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/api/document?id=no", 404),
        ("/api/document", 400),
        ("/api/queries?limit=x", 400),
        ("/api/queries?limit=0", 400),
        ("/api/queries?order=size", 400),
        ("/api/search", 405),
        ("/api/_system", 404),
        ("/api/systems", 404),
    ],
)
def test_addresses_are_checked(address, status):
    found = client().get(address)
    assert found.status_code == status and list(found.json()) == ["error"]


def test_a_fault_of_the_code_is_a_line_and_a_traceback_in_the_terminal(capsys, monkeypatch):
    found = client()
    monkeypatch.setattr(_made[0], "known", None)
    found = found.post("/api/search", json=SEARCH)
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.status_code == 500 and "the terminal shows where" in found.json()["error"]
    assert "AttributeError" in capsys.readouterr().err


def test_it_listens_on_this_machine_only_and_says_when_a_port_is_taken():
    with open_port(None) as first:
        address, port = first.getsockname()
        assert address == "127.0.0.1"
        with pytest.raises(ValueError, match=f"port={port}: in use, must be a free port"):
            open_port(port)
        with open_port(None) as second:
            assert second.getsockname()[1] > port
        with socket.create_connection((address, port), timeout=5):
            pass


def test_a_client_that_hangs_up_ends_its_request_alone():
    """Within the body that it sends: uvicorn would print the traceback of any error."""
    sent, told = [], iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive():
        return next(told, {"type": "http.disconnect"})

    async def send(message):
        sent.append(message)

    headers = {"host": f"127.0.0.1:{PORT}", "content-type": "application/json"}
    scope = {
        "type": "http", "method": "POST", "path": "/api/search", "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    anyio.run(client().app, scope, receive, send)
    assert sent[0]["status"] == 400
