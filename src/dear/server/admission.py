"""Limits on the work of all clients together: bytes of uploads, and images waiting for the model."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
from starlette.requests import Request

from dear.server.responses import RefusedError, busy

MAX_BODY = 64_000_000  # bytes of one request
BODY_SECONDS = 60.0
_MAX_BYTES, _MAX_IMAGES = 256_000_000, 256


class Admission:
    """Not thread-safe: use it from the event loop alone."""

    def __init__(
        self, images: int = _MAX_IMAGES, total_bytes: int = _MAX_BYTES, body_seconds: float = BODY_SECONDS
    ) -> None:
        self._max_images, self._max_bytes, self._body_seconds = images, total_bytes, body_seconds
        self.images = self._bytes = 0

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request, whose bytes count until the block ends. Read only if there is room for an image."""
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
        if self.images + images > self._max_images:
            raise busy()
        self.images += images
        try:
            yield
        finally:
            self.images -= images
