"""uvicorn's connection, with an end to patience: for a request's head, and for an answer that nobody takes."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0
TAKE_SECONDS = 60.0


class Connection(H11Protocol):
    """A client that says nothing, one letter a minute, or never reads, is let go."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # nonsense inside of a body that is already refused
            self.transport.abort()
        if self.conn.their_state is not h11.IDLE:  # its head is whole
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self._wait(HEAD_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait(TAKE_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
