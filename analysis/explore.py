"""Explores finished runs on a local page: ``python -m analysis.explore runs=outputs/demo``.

The page is served only to browsers on this machine. This file holds the access checks and the
request parsing; `analysis.viewer.session` holds the verbs.
"""

if __name__ == "__main__":  # before the heavy imports: command-line errors appear at once
    from conf.command import run_command

    run_command("explore", "analysis.explore:main")
    raise SystemExit

import json
import socket
import webbrowser
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import uvicorn
from omegaconf import DictConfig
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from analysis.runs.run_folder import named_folders
from analysis.viewer.pair import to_json
from analysis.viewer.session import NotThere, Session, open_session
from gr_mvdr.files import describe_error
from gr_mvdr.options import check_options, inspect_signature, make_printable

ADDRESS, PORT, MORE_PORTS = "127.0.0.1", 8765, 50
BODY = 2**20  # bytes of a request, enough for two long documents
STATIC = Path(__file__).parent / "viewer/static"
HEADERS = MappingProxyType(
    {
        "content-security-policy": "default-src 'self'; img-src 'self' data:; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "cross-origin-resource-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
    }
)
VERBS = (
    *("about", "queries", "document", "search", "align", "explain"),
    *("nearest", "continuations"),
)


def build_app(session: Session, port: int) -> ASGIApp:
    """Serves the page's files, and the session's verbs as POST `/api/VERB`.

    A verb takes its arguments as a JSON object and returns JSON. Every error is
    {"error": "one line"}, with status 404 for an unknown name and 400 for a wrong argument.

    Args:
        port: the port of the server; requests for another host or port are refused.
    """
    routes = [
        *(Route(f"/api/{v}", _endpoint(getattr(session, v)), methods=["POST"]) for v in VERBS),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    # A browser that hangs up reads no answer; without a handler uvicorn would print a traceback.
    known = (HTTPException, ValueError, NotImplementedError, ClientDisconnect, Exception)
    return Guard(Starlette(routes=routes, exception_handlers=dict.fromkeys(known, _refuse)), port)


class Guard:
    """Passes on only requests from the explorer's own page, and sets the headers of every response.

    A script of another site may send requests to 127.0.0.1, or that site's name may resolve to
    127.0.0.1 (DNS rebinding). The former has a foreign `Origin`, the latter a foreign `Host`.
    """

    def __init__(self, app: ASGIApp, port: int):
        self.app, self.hosts = app, {f"{ADDRESS}:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                fixed = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *fixed]
            await send(message)

        fault = self._find_fault(scope) if scope["type"] == "http" else None
        await (_error(fault, 403) if fault else self.app)(scope, receive, send_marked)

    def _find_fault(self, scope: Scope) -> str | None:
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value.lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            return f"Host: must be {' or '.join(sorted(self.hosts))}"
        origins = {value.lower() for name, value in headers if name == b"origin"}
        if origins - {f"http://{host}" for host in self.hosts}:
            return "Origin: must be the explorer's own page"
        return None


def _endpoint(verb: Callable[..., Any]) -> Callable[[Request], Awaitable[Response]]:
    signature = inspect_signature(verb)

    async def endpoint(request: Request) -> Response:
        arguments = await _read(request)
        check_options(verb.__name__, signature, arguments, given=())
        # Retrievers are thread-safe, so a slow search in a thread does not delay other requests.
        told = await run_in_threadpool(verb, **arguments)
        return Response(to_json(told), media_type="application/json")

    return endpoint


async def _read(request: Request) -> dict[str, Any]:
    """Parses the JSON object that a request carries; numbers must be finite and text UTF-8."""
    # A form of another site cannot send this type: browsers would ask the server first (CORS).
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "Content-Type: must be application/json")
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > BODY:
            raise HTTPException(413, f"the request must be ≤ {BODY:,} bytes")
    try:
        found = json.loads(content.decode())
        # NaN is not JSON, and no tokeniser can read half of a surrogate pair.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the request must be JSON ({describe_error(error)})") from None
    if not isinstance(found, dict):
        raise ValueError("the request must be a JSON object")
    return found


def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _error(error.detail, error.status_code)
    if isinstance(error, ValueError | NotImplementedError | ClientDisconnect):
        return _error(describe_error(error), 404 if isinstance(error, NotThere) else 400)
    return _error(f"{describe_error(error)} (the terminal shows where)", 500)


def _error(line: str, status: int) -> Response:
    text = to_json({"error": make_printable(" ".join(line.split()))})
    return Response(text, status, media_type="application/json")


def open_port(port: int | None) -> socket.socket:
    """Opens a socket that listens on 127.0.0.1 only, which no other machine can reach.

    Args:
        port: None = 8765, or the next free port.

    Raises:
        ValueError: the port is in use.
    """
    for number in [port] if port else range(PORT, PORT + MORE_PORTS):
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((ADDRESS, number))
            listening.listen()
            return listening
        except OSError:
            listening.close()
    used = port or f"{PORT} to {PORT + MORE_PORTS - 1}"
    raise ValueError(f"port={used}: in use, must be a free port of {ADDRESS}")


def serve(session: Session, listening: socket.socket, browse: bool = False) -> None:
    """Serves a session until Ctrl-C.

    Args:
        listening: the socket of `open_port`.
        browse: open the page in the user's browser.
    """
    port = listening.getsockname()[1]
    address = f"http://{ADDRESS}:{port}/"
    print(f"explorer: {address} (this machine only; Ctrl-C ends it)", flush=True)
    if browse:
        webbrowser.open(address)
    app = build_app(session, port)
    settings = uvicorn.Config(
        app, log_level="warning", lifespan="off", server_header=False, access_log=False, ws="none"
    )
    uvicorn.Server(settings).run(sockets=[listening])


def main(config: DictConfig) -> None:
    """Loads the runs, then serves them on 127.0.0.1 until Ctrl-C."""
    if not (runs := named_folders(config.runs)):
        raise ValueError("runs=[]: must be folders of finished runs, such as runs=outputs/…")
    try:
        with open_port(config.port) as listening:  # fails at once, before the models are loaded
            serve(open_session(runs, config.trust), listening, config.open)
    except KeyboardInterrupt:
        pass
    print("explorer: ended")
