"""A stand-in for the Hugging Face hub: the requests of its client's uploads and downloads.

`with serve_hub(cache) as hub:` points the client of this process to `hub.url`, with an empty cache,
as the user "owner", the only one that the hub knows. Files are sent within the commit: it lacks the
protocols of large files.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit

from gr_mvdr import files

OWNER = "hf_owner"
_MODEL = r"/api/models/(\w[\w.-]*/[\w.-]+)"


class Hub(ThreadingHTTPServer):
    """Models by name, as path → content."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.models: dict[str, dict[str, bytes]] = {}
        self.commits = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def sha(self) -> str:
        return f"{self.commits:040x}"


class _Request(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, content: Any = None, status: int = 200, **headers: Any) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, why: str, code: str = "") -> None:
        self.answer({"error": why}, status, X_Error_Message=why, X_Error_Code=code)

    @property
    def is_owner(self) -> bool:
        return self.headers["Authorization"] == f"Bearer {OWNER}"

    def handle_any(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        self.sent = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.headers["Transfer-Encoding"] == "chunked":
            while size := int(self.rfile.readline(), 16):
                self.sent += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        if path == "/":
            self.answer()
        elif path == "/api/repos/create":
            self.create(json.loads(self.sent))
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif place := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self.send_file(hub.models[place[1]][place[2]])
        elif place := re.fullmatch(rf"{_MODEL}(?:/(\w+))?(?:/.*)?", path):
            self.ask(place[1], place[2] or "revision")

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if not self.is_owner:
            return self.refuse(401, "Invalid username or password.")
        if asked["organization"] != "owner":
            return self.refuse(403, "You don't have the rights to create a model there")
        exists = name in self.server.models
        self.server.models.setdefault(name, {".gitattributes": b""})
        self.answer({"url": f"{self.server.url}/{name}"}, 409 if exists else 200)

    def ask(self, name: str, what: str) -> None:
        hub = self.server
        if name not in hub.models:
            missing = 404 if self.is_owner else 401
            return self.refuse(missing, "Repository not found", "RepoNotFound")
        content = hub.models[name]
        if what == "revision":
            siblings = [{"rfilename": path} for path in content]
            self.answer({"id": name, "sha": hub.sha, "siblings": siblings})
        elif what == "tree":
            self.answer(
                [
                    {"type": "file", "path": path, "size": len(data), "oid": _hash(data)}
                    for path, data in content.items()
                ]
            )
        elif what == "preupload":
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            asked = json.loads(self.sent)["files"]
            self.answer({"files": [{"path": one["path"], **mode} for one in asked]})
        elif what == "commit":
            self.commit(name, [json.loads(line) for line in self.sent.splitlines()])

    def commit(self, name: str, operations: list[dict[str, Any]]) -> None:
        if not self.is_owner:
            return self.refuse(403, "Forbidden")
        hub = self.server
        for operation in operations:
            kind, value = operation["key"], operation["value"]
            if kind == "file":
                hub.models[name][value["path"]] = base64.b64decode(value["content"])
            elif kind == "deletedFile":
                del hub.models[name][value["path"]]
        hub.commits += 1
        self.answer({"commitUrl": f"{hub.url}/{name}/commit/{hub.sha}", "commitOid": hub.sha})

    def send_file(self, content: bytes) -> None:
        self.answer(content, X_Repo_Commit=self.server.sha, ETag=f'"{_hash(content)}"')


def _hash(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def serve_hub(cache: Path) -> Iterator[Hub]:
    """Serves an empty hub until the block ends."""
    from huggingface_hub import constants

    with Hub() as hub:
        thread = Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        values = {"ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache)}
        values["HUGGINGFACE_CO_URL_TEMPLATE"] = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        values["HF_TOKEN_PATH"] = str(cache / "token")  # of who runs the tests
        with mock.patch.multiple(constants, **values), mock.patch.dict(os.environ, HF_TOKEN=OWNER):
            files.find_hub_failure.cache_clear()
            yield hub
        files.find_hub_failure.cache_clear()
        hub.shutdown()
        thread.join()
