"""uvicorn's connection with two deadlines: for the head of a request, and for a response that nobody reads."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0
READ_SECONDS = 60.0


class Connection(H11Protocol):
    """Drops a client that sends nothing, sends one letter per minute, or never reads."""

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
