"""Stands before everything else: who may ask, how long a request may be, and what every answer carries."""

import hmac
import time
import traceback
from collections.abc import Collection

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dear.server.admission import MAX_BODY
from dear.server.metrics import Metrics
from dear.server.responses import RefusedError, as_response

_HEADERS = [
    # The browser itself then refuses anything from elsewhere, and any script that is not ours.
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
_LINGER_SECONDS = 2.0


class Guard:
    """`names`: the hosts it answers to, None for any; `token`: what a request must bring, but for `public` paths."""

    def __init__(
        self, app: ASGIApp, names: Collection[str] | None, token: str | None, public: Collection[str], metrics: Metrics
    ) -> None:
        self._app, self._names, self._token, self._public, self._metrics = app, names, token, public, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = _Exchange(Headers(scope=scope), receive, send)
        began = time.monotonic()
        try:
            self._check(scope, exchange)
        except RefusedError as error:
            await as_response(error)(scope, exchange.receive, exchange.send)
        else:
            async with anyio.create_task_group() as group:
                if exchange.announced:
                    group.start_soon(exchange.watch, group.cancel_scope)
                await self._answer(scope, exchange)
                group.cancel_scope.cancel()
        known = scope["path"] if "endpoint" in scope else None  # set where Starlette found a route
        self._metrics.answered(scope["method"], known, exchange.status, time.monotonic() - began)

    async def _answer(self, scope: Scope, exchange: "_Exchange") -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            if exchange.status != 500:  # that one was told in the terminal already, and Starlette raises it again
                traceback.print_exc()

    def _check(self, scope: Scope, exchange: "_Exchange") -> None:
        headers = exchange.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        # Another site must not use this server through its visitor's browser, under its own name or under ours.
        ours = (None, f"http://{host}", f"https://{host}")
        if (self._names is not None and name not in self._names) or origin not in ours:
            raise RefusedError(403, "This server answers only to its own name and its own pages.")
        given = headers.get("authorization", "").removeprefix("Bearer ").encode()
        if self._token and scope["path"] not in self._public and not hmac.compare_digest(given, self._token.encode()):
            raise RefusedError(401, "This server wants its token: send the header 'Authorization: Bearer TOKEN'.")
        if "transfer-encoding" in headers:
            raise RefusedError(411, "The upload does not say how long it is.")
        if exchange.announced > MAX_BODY:
            raise RefusedError(413, f"The upload has more than {MAX_BODY // 10**6} MB: send less at once.")


class _Exchange:
    """A request and its answer. Where the answer comes before the upload was read, the rest of it is not the next
    request: the connection ends, but not before the other side had time to see the answer."""

    def __init__(self, headers: Headers, receive: Receive, send: Send) -> None:
        self.headers, self._receive, self._send = headers, receive, send
        self.status = 0
        length = headers.get("content-length", "0")
        self.announced = int(length) if len(length) < 20 else 10**20
        self._unread = self.announced > 0 or "transfer-encoding" in headers
        self._read = anyio.Event()
        self._wanted = "expect" not in headers  # with it, nothing is sent before we begin to read

    async def receive(self) -> Message:
        self._wanted = True
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._unread = False
            self._read.set()
        return message

    async def watch(self, work: anyio.CancelScope) -> None:
        """Ends the work when the other side is gone: nobody wants its result, and others wait."""
        await self._read.wait()
        await self._receive()  # behind the body there is only the end of the connection, or of the answer
        if not self.status:
            work.cancel()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            ending = [(b"connection", b"close")] if self._unread else []
            await self._send({**message, "headers": [*message.get("headers", []), *_HEADERS, *ending]})
        elif self._unread and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await self._send(message)

    async def _linger(self) -> None:
        """Reads and forgets: a connection that is closed on unread bytes is reset, and the answer is lost with it."""
        read = 0
        with anyio.move_on_after(_LINGER_SECONDS):
            while self._wanted and self._unread and read < MAX_BODY:
                read += len((await self.receive()).get("body", b""))
