"""The explorer against other sites' pages, foreign names, and requests that no page would send."""

import json
import socket

import pytest
from starlette.testclient import TestClient

from analysis.explore import HEADERS, open_port
from tests.analysis.viewer.tiny import PORT

SEARCH = {"query": "apple"}
PAIR = {"system": 0, "query": "a", "document": {"id": "a"}}


def test_pages_of_other_sites_are_refused(browser):
    """By host, by origin, and by the types that a form can send unasked."""
    for host in (f"evil.example:{PORT}", "127.0.0.1:80", f"127.0.0.1:{PORT}.evil", ""):
        for path in ("/", "/viewer.js", "/nowhere"):
            reply = browser.get(path, headers={"Host": host})
            assert reply.status_code == 403 and reply.json()["error"].startswith("Host: must be")
    own = f"http://127.0.0.1:{PORT}"
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999", f"{own}@evil.example"):
        reply = browser.post("/api/search", json=SEARCH, headers={"Origin": origin})
        assert reply.status_code == 403 and reply.json()["error"].startswith("Origin")
        assert "access-control-allow-origin" not in reply.headers
    assert browser.post("/api/search", json=SEARCH, headers={"Origin": own}).status_code == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        headers = {"Content-Type": kind}
        reply = browser.post("/api/search", content=json.dumps(SEARCH), headers=headers)
        assert reply.status_code == 415, kind


@pytest.mark.parametrize(
    "path",
    ["/../session.py", "/..%2fsession.py", "/%2e%2e/session.py", "//etc/passwd", "/%2fetc%2fpasswd",
     "/..%5csession.py", "/explorer.js%00", "/session.py", "/api/_system", "/api/search"],
)  # fmt: skip
def test_no_name_leads_out_of_the_pages_files(browser, path):
    reply = browser.get(path)
    assert reply.status_code in (400, 404, 405) and list(reply.json()) == ["error"]


def test_every_answer_forbids_other_addresses(browser):
    replies = [browser.get(path) for path in ("/", "/viewer.js", "/no.js")]
    replies.append(browser.get("/", headers={"Host": "evil.example"}))
    replies.append(browser.post("/api/search", json=SEARCH))
    replies.append(browser.post("/api/search", content="{"))
    for reply in replies:
        assert HEADERS.items() <= dict(reply.headers).items()
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'self';") and "unsafe" not in policy


def test_what_is_no_request_is_refused_by_one_line(browser):
    headers = {"Content-Type": "application/json"}
    for content in ("", "{", "[1]", '{"query": "a", "k": NaN}', b"\xff\xfe{}"):
        reply = browser.post("/api/search", content=content, headers=headers)
        assert reply.status_code == 400, reply.text
        assert list(reply.json()) == ["error"] and "\n" not in reply.json()["error"]


@pytest.mark.parametrize(
    ("verb", "asked", "line"),
    [
        ("search", {}, "search.query=…: must be given"),
        ("search", {"query": ["a"]}, "search.query=[a]: must be text"),
        ("search", {"query": "a", "more": 1}, "search.more=1: must be one of k, query"),
        ("align", PAIR | {"system": 9}, "system=9: must be ≥ 0"),
        ("align", PAIR | {"document": {"id": "no"}}, "document=no: no such id"),
        ("align", PAIR | {"document": {"text": " "}}, "document=0: must have a text"),
        ("continuations", {"system": 0, "query": "a"}, "BM25: its search generates no identifiers"),
    ],
)
def test_wrong_types_and_values_are_one_line_each(browser, verb, asked, line):
    reply = browser.post(f"/api/{verb}", json=asked)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"].startswith(line) and len(reply.json()["error"]) < 400


def test_a_fault_of_the_code_is_a_line(browser, session, monkeypatch):
    monkeypatch.setattr(session, "known_queries", None)
    reply = browser.post("/api/search", json=SEARCH)
    assert reply.status_code == 500 and "the terminal shows where" in reply.json()["error"]
    with pytest.raises(AttributeError):  # it goes on to uvicorn, which prints it
        TestClient(browser.app, browser.base_url).post("/api/search", json=SEARCH)


def test_it_listens_on_this_machine_only_and_says_when_a_port_is_taken():
    with open_port(0) as first:
        address, port = first.getsockname()
        assert address == "127.0.0.1"
        with pytest.raises(ValueError, match=f"port={port}: in use, must be a free port"):
            open_port(port)
        with socket.create_connection((address, port), timeout=5):
            pass
