"""How much is taken on at once: bytes of uploads, and images on their way to the model. The rest must wait."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
from starlette.requests import Request

from dear.server.responses import RefusedError, busy

MAX_BODY = 64_000_000  # bytes of one request
BODY_SECONDS = 60.0
_BYTES, _IMAGES = 256_000_000, 256


class Admission:
    """Counts for the event loop alone: use it from there."""

    def __init__(self, images: int = _IMAGES, total_bytes: int = _BYTES, body_seconds: float = BODY_SECONDS) -> None:
        self._most_images, self._most_bytes, self._body_seconds = images, total_bytes, body_seconds
        self.images = self._bytes = 0

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """What was sent; its bytes count until the block ends. Nothing is read that could not be worked on."""
        if self.images >= self._most_images:
            raise busy()
        body = bytearray()
        try:
            try:
                with anyio.fail_after(self._body_seconds):
                    async for part in request.stream():
                        body += part
                        self._bytes += len(part)
                        if self._bytes > self._most_bytes:
                            raise busy()
            except TimeoutError:
                raise RefusedError(408, f"The upload took more than {self._body_seconds:g} seconds.") from None
            yield bytes(body)
        finally:
            self._bytes -= len(body)

    @contextmanager
    def room_for(self, images: int) -> Iterator[None]:
        if self.images + images > self._most_images:
            raise busy()
        self.images += images
        try:
            yield
        finally:
            self.images -= images
