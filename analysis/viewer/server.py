"""The explorer over HTTP, for this machine's browser alone: what is let in, and how it is read."""

import json
import math
import socket
import traceback
import webbrowser
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from analysis.viewer.session import NotThere, Picture, Session
from gr_mvdr.files import describe_error
from gr_mvdr.options import check_options, inspect_signature, make_printable

ADDRESS, PORT, MORE_PORTS = "127.0.0.1", 8765, 50
BODY = 2**20  # bytes of a request: two long documents
DIGITS = 6  # significant ones of a number in an answer
STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
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
READ = ("about", "queries", "document")  # verbs of the session that are asked by GET, with a query
ASKED = ("search", "align", "explain", "nearest", "continuations", "compare", "figure", "patch")


def build_app(session: Session, port: int) -> Starlette:
    """The page, its files, and a session's verbs as `/api/VERB`.

    A verb takes its arguments as a JSON object (POST) or as the address's query (GET) and returns
    JSON; numbers have six digits. Every error is {"error": "one line"}, with status 404 for what is
    not there and 400 for what cannot be done.

    Args:
        port: where it is served; requests for another host are refused.
    """
    routes = [
        Route("/", _send_file("explorer.html")),
        Route("/static/{name}", _send_static),
        *(Route(f"/api/{verb}", _asked(getattr(session, verb), _read_query)) for verb in READ),
        *(
            Route(f"/api/{verb}", _asked(getattr(session, verb), _read_body), methods=["POST"])
            for verb in ASKED
        ),
    ]
    # A browser that hangs up reads no answer; without one uvicorn would print a traceback.
    known = (HTTPException, ValueError, NotImplementedError, ClientDisconnect)
    errors = dict.fromkeys(known, _refuse)
    return Starlette(
        routes=routes, exception_handlers=errors, middleware=[Middleware(Guard, port=port)]
    )


class Guard:
    """Lets in what this machine's own page asks, and marks what goes out.

    Another site's script may send requests to 127.0.0.1, and its name may lead there (DNS
    rebinding): the first has a foreign `Origin`, the second a foreign `Host`.
    """

    def __init__(self, app: ASGIApp, port: int):
        self.app, self.hosts = app, {f"{ADDRESS}:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                fixed = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *fixed]
            await send(message)

        refused = self._find_fault(scope)
        app = _error(refused, 403) if refused else self.app
        await app(scope, receive, marked)

    def _find_fault(self, scope: Scope) -> str | None:
        found: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            found.setdefault(name.lower(), []).append(value.decode("latin-1"))
        hosts = found.get(b"host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return f"Host: must be {' or '.join(sorted(self.hosts))}"
        allowed = {f"http://{host}" for host in self.hosts}
        if any(origin.lower() not in allowed for origin in found.get(b"origin", [])):
            return "Origin: must be the explorer's own page"
        return None


def _asked(
    verb: Callable[..., Any], read: Callable[[Request], Awaitable[dict[str, Any]]]
) -> Callable[[Request], Awaitable[Response]]:
    signature = inspect_signature(verb)

    async def endpoint(request: Request) -> Response:
        arguments = await read(request)
        if read is _read_query:  # an address knows text only
            arguments = {
                name: _as_number(text) if int in _kinds(signature.types.get(name)) else text
                for name, text in arguments.items()
            }
        check_options(verb.__name__, signature, arguments, given=())
        # Retrievers are thread-safe: a slow search holds up no other request.
        try:
            found = await run_in_threadpool(verb, **arguments)
        except (ValueError, NotImplementedError):
            raise
        except Exception as error:  # a fault of the code
            traceback.print_exception(error)
            return _error(f"{describe_error(error)} (the terminal shows where)", 500)
        if isinstance(found, Picture):
            kept = {"content-disposition": f'attachment; filename="{found.name}"'}
            return Response(found.content, media_type=found.media_type, headers=kept)
        return _json(found)

    return endpoint


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) or (hint,)


def _as_number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


async def _read_query(request: Request) -> dict[str, Any]:
    return _printable(dict(request.query_params))


async def _read_body(request: Request) -> dict[str, Any]:
    """The JSON object that a request carries; numbers are finite, text is text."""
    # A form of another site can send anything but this type without being asked for its origin.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "Content-Type: must be application/json")
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > BODY:
            raise HTTPException(413, f"the request must be ≤ {BODY:,} bytes")
    try:
        found = json.loads(content.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the request must be JSON ({describe_error(error)})") from None
    if not isinstance(found, dict):
        raise ValueError("the request must be a JSON object")
    return _printable(found)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _printable(found: dict[str, Any]) -> dict[str, Any]:
    try:  # half of a surrogate pair is no letter, and no tokeniser can read it
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("the request must be text in UTF-8") from None
    return found


def _send_file(name: str) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        return _static(name)

    return endpoint


def _send_static(request: Request) -> Response:
    return _static(request.path_params["name"])


def _static(name: str) -> Response:
    """One of the page's files: what is in the list is sent, so that no name can lead elsewhere."""
    files = {file.name: file for file in STATIC.glob("*") if file.suffix in TYPES}
    if name not in files:
        raise HTTPException(404, "no such file")
    return Response(files[name].read_bytes(), media_type=TYPES[files[name].suffix])


def _json(content: Any, status: int = 200) -> Response:
    text = json.dumps(_rounded(content), allow_nan=False)
    return Response(text, status, media_type="application/json")


def _rounded(value: Any) -> Any:
    """Numbers with few digits; what is not finite is null, as JSON has no word for it."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [*map(_rounded, value)] if isinstance(value, list | tuple) else value


def _error(line: str, status: int) -> Response:
    return _json({"error": make_printable(" ".join(line.split()))}, status)


def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _error(error.detail, error.status_code)
    return _error(describe_error(error), 404 if isinstance(error, NotThere) else 400)


def open_port(port: int | None) -> socket.socket:
    """A socket that listens on 127.0.0.1, and on no address that another machine can reach.

    Args:
        port: None = 8765, or the next one that is free.

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
        listening: of `open_port`. browse: open the page in the user's browser.
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
