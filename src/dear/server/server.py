"""The whole app behind the guard, and its address, on uvicorn."""

import errno
import ipaddress
import signal
import socket
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp

from dear.core.errors import DearError
from dear.core.version import __version__
from dear.server.api import Api, Service
from dear.server.guard import Connection, Guard
from dear.server.limits import Json, respond

_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_DOCS, _OPENAPI = ("/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css"), "/openapi.json"
_PUBLIC = ("/healthz", _OPENAPI, *_DOCS)
_DESCRIPTION = (
    "An adapted CLIP: the class of an image and the vote of each component, similar images, and features. "
    "Errors are JSON objects with one sentence, error."
)
_WAITING_CONNECTIONS = 1024


def make_app(
    service: Service, hosts: Sequence[str] | None, token: str | None = None, more: Sequence[Route] = ()
) -> ASGIApp:
    """The API of the service, and its documentation, behind a guard.

    `hosts`: the names it answers to, None for any; `more`: routes besides the API's, outside of its description.
    """
    app = FastAPI(
        title="dear",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=_OPENAPI,
        docs_url=None,
        redoc_url=None,
        routes=[*_docs_routes(), *more],
        redirect_slashes=False,
        separate_input_output_schemas=False,
        generate_unique_id_function=lambda route: route.name,
        exception_handlers={
            DearError: respond,
            HTTPException: _http_error,
            RequestValidationError: _invalid,
            ClientDisconnect: _client_left,
            Exception: _server_error,
        },
    )
    app.openapi_version = "3.0.3"  # the newest that Swagger UI 4 shows
    app.include_router(Api(service, secured=token is not None).router)
    return Guard(app, hosts, token, _PUBLIC, service.metrics)


def static_file(path: str, file: Path) -> Route:
    """A file at one address, read when it is first asked for. No address can name another file."""

    @cache
    def content() -> bytes:
        return file.read_bytes()

    def answer(_: Request) -> Response:
        return Response(content(), media_type=_MEDIA_TYPES[file.suffix])

    return Route(path, answer)


def _docs_routes() -> list[Route]:
    """Swagger UI from its own package, so that the page works without the internet."""
    import swagger_ui_bundle

    own, swagger = Path(__file__).parent / "assets", Path(swagger_ui_bundle.swagger_ui_path)
    files = [own / "docs.html", own / "start.js", swagger / "swagger-ui-bundle.js", swagger / "swagger-ui.css"]
    return [static_file(path, file) for path, file in zip(_DOCS, files, strict=True)]


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {404: "There is nothing at this address.", 405: "This address takes another method."}
    return Json({"error": sentences.get(error.status_code, error.detail)}, error.status_code, error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    """FastAPI's own check of typed parameters, in the form of all our refusals."""
    assert isinstance(error, RequestValidationError)
    place, name = error.errors()[0]["loc"][:2]
    return await respond(request, DearError(f"The {place} value {name} is missing or of the wrong type."))


async def _client_left(_: Request, __: Exception) -> Response:
    return Response(status_code=400)  # nobody is there to read it


async def _server_error(_: Request, error: Exception) -> Response:
    traceback.print_exception(error)
    return Json({"error": "Something went wrong in dear; the terminal it runs in says what."}, 500)


class Address:
    """A bound port: connections wait there until `serve` answers them."""

    def __init__(self, host: str, port: int) -> None:
        if not host.strip():
            raise DearError("--host is empty: leave it out for this machine alone, or write 0.0.0.0 for every network.")
        if not 0 <= port <= 65535:
            raise DearError(f"{port} is not a port: choose one from 1024 to 65535 with --port.")
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.create_server(address[:2], family=family, backlog=_WAITING_CONNECTIONS)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise DearError(f"Port {port} is in use: choose another with --port.") from None
            raise DearError(f"Nothing can be served on {host}, port {port}: {error.strerror or error}.") from None
        except ValueError:
            raise DearError(f"{host!r} is not the name of a host: leave --host out for this machine alone.") from None
        bound, self.port = self._socket.getsockname()[:2]
        self.local = ipaddress.ip_address(bound).is_loopback
        # On this machine alone, a name that somebody else made to point here is not ours.
        self.hosts = ("127.0.0.1", "localhost", "[::1]", _in_url(bound)) if self.local else None
        self.url = f"http://{_in_url(bound)}:{self.port}"

    def __enter__(self) -> "Address":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def serve(self, app: ASGIApp) -> None:
        """Answers until Ctrl-C or SIGTERM; requests that were begun are finished first."""
        config = uvicorn.Config(
            app,
            # Both are named, so that other installed packages do not change the server.
            http=Connection,
            loop="asyncio",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="critical",  # the terminal is for errors in dear, and the guard prints these
            server_header=False,
            proxy_headers=False,
            backlog=_WAITING_CONNECTIONS,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=30,
        )
        self._server = uvicorn.Server(config)
        with suppress(KeyboardInterrupt), _stopped_is_done():
            self._server.run([self._socket])

    def stop(self) -> None:
        """Ends `serve`; called from another thread."""
        self._server.should_exit = True


@contextmanager
def _stopped_is_done() -> Iterator[None]:
    """Drops the SIGTERM that uvicorn raises again after it has stopped: to stop when told is a success."""
    if threading.current_thread() is not threading.main_thread():  # the only one that gets signals
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
