"""The web server of the page: Python's own, a handful of fixed addresses, and no way to ask for a file by its path."""

import errno
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from dear.app.page import Request
from dear.app.safety import MAX_BYTES, TOO_MANY_BYTES
from dear.errors import DearError

LOCAL = ("127.0.0.1", "localhost")
Routes = Mapping[tuple[str, str], Callable[[Request], Any]]
_ASSETS = Path(__file__).parent / "assets"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    # The browser itself then refuses anything from elsewhere, and any script that is not ours.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """Bound to its port when it is made; answers once `routes` are set and `serve_forever` runs."""

    daemon_threads = True  # an open connection must not hold up the end

    def __init__(self, host: str, port: int) -> None:
        self.routes: Routes = {}
        self.local = host in LOCAL
        files = {f"/{file.name}": (_TYPES[file.suffix], file.read_bytes()) for file in _ASSETS.iterdir()}
        self.files = {**files, "/": files["/index.html"]}
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise DearError(f"Port {port} is in use: choose another with --port.") from None
            raise DearError(f"The page cannot be served on {host}, port {port}: {error.strerror or error}.") from None
        except OverflowError:
            raise DearError(f"{port} is not a port: choose one from 1024 to 65535 with --port.") from None

    @property
    def address(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closed its window is no error; all else is told where the page was started."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            traceback.print_exc()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds until a client that says nothing is let go

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path, _, query = self.path.partition("?")
        if not self._is_ours():
            self._send_json(403, {"error": "This page answers only to itself."})
        elif self.command == "GET" and path in self.server.files:
            self._send(200, *self.server.files[path])
        elif (self.command, path) in self.server.routes:
            self._send_json(*self._call(self.server.routes[self.command, path], query))
        else:
            self._send_json(404, {"error": "There is nothing at this address."})

    def _call(self, route: Callable[[Request], Any], query: str) -> tuple[int, Any]:
        try:
            return 200, route(Request(dict(parse_qsl(query)), self._body()))
        except DearError as error:
            return 400, {"error": " ".join(str(error).split())}
        except ConnectionError:
            raise
        except Exception:
            traceback.print_exc()
            return 500, {"error": "Something went wrong in dear; the terminal it runs in says what."}

    def _body(self) -> bytes:
        """What was sent, refused by its announced length before any of it is read."""
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or "Transfer-Encoding" in self.headers:
            raise DearError("The upload does not say how long it is.")
        if int(length) > MAX_BYTES:
            raise DearError(TOO_MANY_BYTES)
        return self.rfile.read(int(length))

    def _is_ours(self) -> bool:
        """Another site must not use this page through its visitor's browser, under its own name or under ours."""
        host = self.headers.get("Host", "")
        origin = self.headers.get("Origin")
        name = host.rpartition(":")[0] or host
        return (name in LOCAL or not self.server.local) and origin in (None, f"http://{host}")

    def _send_json(self, status: int, value: Any) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        if status != 200:
            self.close_connection = True  # what the client still sends is not read as another request
        self.send_response(status)
        for name, text in _HEADERS.items():
            self.send_header(name, text)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        return "dear"

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the terminal is for what went wrong."""
