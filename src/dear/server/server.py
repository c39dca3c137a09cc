"""From a service to an address: everything that is served, behind the guard, on uvicorn."""

import errno
import ipaddress
import json
import socket
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dear.core.errors import DearError
from dear.core.version import __version__
from dear.server.api import Api, Service
from dear.server.connection import Connection
from dear.server.guard import Guard
from dear.server.responses import Json, respond

_ASSETS = Path(__file__).parent / "assets"
_TYPES = {
    ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json",
    ".svg": "image/svg+xml",
}  # fmt: skip
_SWAGGER = ("swagger-ui.css", "swagger-ui-bundle.js")
_PUBLIC = ("/healthz", "/docs", "/docs/docs.js", "/openapi.json", *(f"/docs/{name}" for name in _SWAGGER))
_WAITING_CONNECTIONS = 1024


def make_app(
    service: Service, names: Sequence[str] | None, token: str | None = None, more: Sequence[Route] = ()
) -> ASGIApp:
    """`names`: the hosts it answers to, None for any; `more`: what is served besides the API."""
    routes = [*Api(service).routes, *_docs(), *more]
    handlers = {DearError: respond, HTTPException: _nothing_there, ClientDisconnect: _gone, Exception: _went_wrong}
    app = Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]
    app.router.redirect_slashes = False
    return Guard(app, names, token, _PUBLIC, service.metrics)


def fixed(path: str, file: Path) -> Route:
    """A file at one address, read when it is first asked for. No address can name another."""

    @cache
    def content() -> bytes:
        return file.read_bytes()

    def answer(_: Request) -> Response:
        return Response(content(), media_type=_TYPES[file.suffix])

    return Route(path, answer)


def _docs() -> list[Route]:
    """Swagger UI from its own package, so that the page works without the internet."""
    import swagger_ui_bundle

    swagger = Path(swagger_ui_bundle.swagger_ui_path)
    about = json.loads((_ASSETS / "openapi.json").read_text(encoding="utf-8"))
    about["info"]["version"] = __version__
    return [
        Route("/openapi.json", lambda _: Json(about)),
        fixed("/docs", _ASSETS / "docs.html"),
        fixed("/docs/docs.js", _ASSETS / "docs.js"),
        *(fixed(f"/docs/{name}", swagger / name) for name in _SWAGGER),
    ]


async def _nothing_there(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = {404: "There is nothing at this address.", 405: "This address takes another method."}
    answer = sentence.get(error.status_code, error.detail)
    return Json({"error": answer}, error.status_code, error.headers)


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=400)  # nobody is there to read it


async def _went_wrong(_: Request, error: Exception) -> Response:
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
        self.names = ("127.0.0.1", "localhost", "[::1]", _in_url(bound)) if self.local else None
        self.url = f"http://{_in_url(bound)}:{self.port}"

    def __enter__(self) -> "Address":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def serve(self, app: ASGIApp) -> None:
        """Until Ctrl-C or SIGTERM; what was begun is finished first."""
        self._server = uvicorn.Server(self._config(app))
        with suppress(KeyboardInterrupt):
            self._server.run([self._socket])

    def stop(self) -> None:
        """From another thread."""
        self._server.should_exit = True

    @staticmethod
    def _config(app: ASGIApp) -> uvicorn.Config:
        return uvicorn.Config(
            app,
            # Named, so that it is the same server wherever other packages are installed.
            http=Connection,
            loop="asyncio",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="critical",  # the terminal is for what went wrong in dear, and the guard tells that
            server_header=False,
            proxy_headers=False,
            backlog=_WAITING_CONNECTIONS,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=30,
        )


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
