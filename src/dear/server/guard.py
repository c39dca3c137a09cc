"""The first to see a connection and a request.

`Connection` is uvicorn's with deadlines for slow clients. `Guard` checks the host, token and length of a request, and
adds security headers to every response.
"""

import asyncio
import hmac
import time
import traceback
from collections.abc import Collection
from typing import Any

import anyio
import h11
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dear.server.limits import MAX_BODY, RefusedError, as_response
from dear.server.metrics import Metrics

_HEADERS = [
    # Makes the browser refuse anything from other sites, and any script inside a page.
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
HEAD_SECONDS = 20.0
READ_SECONDS = 60.0
_LINGER_SECONDS = 2.0


class Connection(H11Protocol):
    """A connection with two deadlines: for the head of a request, and for a response that nobody reads.

    Drops a client that sends nothing, sends one letter per minute, or never reads.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._set_deadline(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # not HTTP, in a body that was already refused
            self.transport.abort()
        if self.conn.their_state is not h11.IDLE:  # the head is complete
            self._clear_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self._set_deadline(HEAD_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_deadline(READ_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._clear_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Guard:
    """An app behind its checks.

    `hosts`: the names it answers to, None for any; `token`: required of every request, except for `public` paths.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str] | None, token: str | None, public: Collection[str], metrics: Metrics
    ) -> None:
        self._app, self._hosts, self._token, self._public, self._metrics = app, hosts, token, public, metrics

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
                if exchange.body_length:
                    group.start_soon(exchange.watch, group.cancel_scope)
                await self._answer(scope, exchange)
                group.cancel_scope.cancel()
        path = scope["path"] if "endpoint" in scope else None  # set where Starlette found a route
        self._metrics.answered(scope["method"], path, exchange.status, time.monotonic() - began)

    async def _answer(self, scope: Scope, exchange: "_Exchange") -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            if exchange.status != 500:  # a 500 was printed already, and Starlette raises it again
                traceback.print_exc()

    def _check(self, scope: Scope, exchange: "_Exchange") -> None:
        headers = exchange.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        # Another site must not use this server through the browser of its visitor, by its own name or by ours.
        own_pages = (None, f"http://{host}", f"https://{host}")
        if (self._hosts is not None and name not in self._hosts) or origin not in own_pages:
            raise RefusedError(403, "This server answers only to its own name and its own pages.")
        token = headers.get("authorization", "").removeprefix("Bearer ").encode()
        if self._token and scope["path"] not in self._public and not hmac.compare_digest(token, self._token.encode()):
            sentence = "This server needs its token: send the header 'Authorization: Bearer TOKEN'."
            raise RefusedError(401, sentence, {"WWW-Authenticate": "Bearer"})
        if "transfer-encoding" in headers:
            raise RefusedError(411, "The upload does not say how long it is.")
        if exchange.body_length > MAX_BODY:
            raise RefusedError(413, f"The upload has more than {MAX_BODY // 10**6} MB: send less at once.")


class _Exchange:
    """A request and its response.

    If the response comes before the whole upload was read, the rest of the upload must not be taken for the next
    request: the connection is closed, after the client had time to see the response.
    """

    def __init__(self, headers: Headers, receive: Receive, send: Send) -> None:
        self.headers, self._receive, self._send = headers, receive, send
        self.status = 0
        length = headers.get("content-length", "0")
        self.body_length = int(length) if len(length) < 20 else 10**20
        self._unread = self.body_length > 0 or "transfer-encoding" in headers
        self._read_all = anyio.Event()
        self._sending = "expect" not in headers  # with it, the client waits until we begin to read

    async def receive(self) -> Message:
        self._sending = True
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._unread = False
            self._read_all.set()
        return message

    async def watch(self, work: anyio.CancelScope) -> None:
        """Cancels the work when the client has left: nobody needs its result, and others wait."""
        await self._read_all.wait()
        await self._receive()  # after the body there is only the end of the connection, or of the response
        if not self.status:
            work.cancel()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            close = [(b"connection", b"close")] if self._unread else []
            await self._send({**message, "headers": [*message.get("headers", []), *_HEADERS, *close]})
        elif self._unread and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await self._send(message)

    async def _linger(self) -> None:
        """Reads and discards: a connection closed on unread bytes is reset, and the response is lost with it."""
        count = 0
        with anyio.move_on_after(_LINGER_SECONDS):
            while self._sending and self._unread and count < MAX_BODY:
                count += len((await self.receive()).get("body", b""))
