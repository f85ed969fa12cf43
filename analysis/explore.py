"""Explores finished runs on a local page: ``python -m analysis.explore runs=outputs/demo``.

The page is served only to browsers on this machine. This file holds the access checks and the
request parsing; `analysis.viewer.session` holds the verbs.
"""

if __name__ == "__main__":  # before the heavy imports: command-line errors appear at once
    from conf.command import run_command

    run_command("explore", "analysis.explore:main")
    raise SystemExit

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import uvicorn
from omegaconf import DictConfig
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from analysis.runs.run_folder import named_folders
from analysis.viewer.pairs import to_json
from analysis.viewer.session import Session, open_session
from gr_mvdr.files import describe_error
from gr_mvdr.options import check_options, inspect_signature, make_printable

ADDRESS = "127.0.0.1"
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


def build_app(session: Session, port: int) -> Starlette:
    """Serves the page's files, and the session's verbs as POST `/api/VERB`.

    A verb takes its arguments as a JSON object and returns JSON. Every error is
    {"error": "one line"}, with status 400 for a wrong argument.

    A script of another site may send requests to 127.0.0.1, or that site's name may resolve to
    127.0.0.1 (DNS rebinding). The former has a foreign `Origin`, the latter a foreign `Host`: both
    are refused.

    Args:
        port: the port of the server.
    """
    hosts = f"{ADDRESS}:{port}", f"localhost:{port}"
    origins = [f"http://{host}" for host in hosts]

    async def guard(request: Request, answer: RequestResponseEndpoint) -> Response:
        if request.headers.get("host") not in hosts:
            response = _error(f"Host: must be {' or '.join(hosts)}", 403)
        elif request.headers.get("origin", origins[0]) not in origins:
            response = _error("Origin: must be the explorer's own page", 403)
        else:
            response = await answer(request)
        response.headers.update(HEADERS)
        return response

    routes = [
        *(Route(f"/api/{v}", _endpoint(getattr(session, v)), methods=["POST"]) for v in VERBS),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    known = (HTTPException, ValueError, NotImplementedError, Exception)
    guarded = [Middleware(BaseHTTPMiddleware, dispatch=guard)]
    handlers = dict.fromkeys(known, _refuse)
    return Starlette(routes=routes, middleware=guarded, exception_handlers=handlers)


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
    """Parses the JSON object that a request carries."""
    # A form of another site cannot send this type: browsers would ask the server first (CORS).
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "Content-Type: must be application/json")
    try:
        return dict(await request.json())
    except (ValueError, TypeError) as error:
        raise ValueError(f"the request must be a JSON object ({describe_error(error)})") from None


def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _error(error.detail, error.status_code)
    if isinstance(error, ValueError | NotImplementedError):
        return _error(describe_error(error), 400)
    return _error(f"{describe_error(error)} (the terminal shows where)", 500)


def _error(line: str, status: int) -> Response:
    text = to_json({"error": make_printable(" ".join(line.split()))})
    return Response(text, status, media_type="application/json")


def open_port(port: int) -> socket.socket:
    """Opens a socket that listens on 127.0.0.1 only, which no other machine can reach.

    Raises:
        ValueError: the port is in use.
    """
    try:
        return socket.create_server((ADDRESS, port))
    except OSError:
        raise ValueError(f"port={port}: in use, must be a free port of {ADDRESS}") from None


def serve(session: Session, listening: socket.socket) -> None:
    """Serves a session until Ctrl-C, through the socket of `open_port`."""
    port = listening.getsockname()[1]
    print(f"explorer: http://{ADDRESS}:{port}/ (this machine only; Ctrl-C ends it)", flush=True)
    app = build_app(session, port)
    settings = uvicorn.Config(
        app, log_level="warning", lifespan="off", server_header=False, access_log=False, ws="none"
    )
    uvicorn.Server(settings).run(sockets=[listening])


def main(config: DictConfig) -> None:
    """Loads the runs, then serves them on 127.0.0.1 until Ctrl-C."""
    try:
        with open_port(config.port) as listening:  # fails at once, before the models are loaded
            serve(open_session(named_folders(config.runs), config.trust), listening)
    except KeyboardInterrupt:
        pass
    print("explorer: ended")
