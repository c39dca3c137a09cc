"""Limits on the work of all clients together (bytes of uploads, images waiting for the model), and refusals.

A refusal is one sentence for people, and a status for programs.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse

from dear.core.errors import DearError

MAX_BODY = 64_000_000  # bytes of one request
BODY_SECONDS = 60.0
_MAX_BYTES, _MAX_IMAGES = 256_000_000, 256


class Json(JSONResponse):
    """Strict JSON: a number that is not finite raises, and a name that is not valid Unicode is escaped."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class RefusedError(DearError):
    """A request that is refused with `status`; any other `DearError` means 400."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, headers


def busy() -> RefusedError:
    return RefusedError(503, "Too many images are waiting for an answer: try again in a moment.", {"Retry-After": "1"})


def as_response(error: DearError) -> Json:
    status, headers = (error.status, error.headers) if isinstance(error, RefusedError) else (400, None)
    return Json({"error": " ".join(str(error).split())}, status, headers)


async def respond(_: Request, error: Exception) -> Json:
    """The exception handler for `DearError`."""
    assert isinstance(error, DearError)
    return as_response(error)


class Admission:
    """Counts of what is being read and of what waits. Not thread-safe: for the event loop alone."""

    def __init__(
        self, images: int = _MAX_IMAGES, total_bytes: int = _MAX_BYTES, body_seconds: float = BODY_SECONDS
    ) -> None:
        self._max_images, self._max_bytes, self._body_seconds = images, total_bytes, body_seconds
        self.images = self._bytes = 0

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request, whose bytes count until the block ends. It is read only if an image has room."""
        if self.images >= self._max_images:
            raise busy()
        body = bytearray()
        try:
            try:
                with anyio.fail_after(self._body_seconds):
                    async for part in request.stream():
                        body += part
                        self._bytes += len(part)
                        if self._bytes > self._max_bytes:
                            raise busy()
            except TimeoutError:
                raise RefusedError(408, f"The upload took more than {self._body_seconds:g} seconds.") from None
            yield bytes(body)
        finally:
            self._bytes -= len(body)

    @contextmanager
    def room_for(self, images: int) -> Iterator[None]:
        """These images count as waiting until the block ends."""
        if self.images + images > self._max_images:
            raise busy()
        self.images += images
        try:
            yield
        finally:
            self.images -= images
