"""JSON responses, and refusals: one sentence for people, and a status for programs."""

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from dear.core.errors import DearError


class Json(JSONResponse):
    """Strict JSON: a number that is not finite raises, and a name that is not valid Unicode is escaped."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class RefusedError(DearError):
    """A request that is refused with `status`; any other `DearError` means 400."""

    def __init__(self, status: int, sentence: str, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.retry_after = status, retry_after


def busy() -> RefusedError:
    return RefusedError(503, "Too many images are waiting for an answer: try again in a moment.", retry_after=1)


def as_response(error: DearError) -> Json:
    status, headers = 400, {}
    if isinstance(error, RefusedError):
        status = error.status
        headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
    return Json({"error": " ".join(str(error).split())}, status, headers)


async def respond(_: Request, error: Exception) -> Json:
    """The exception handler for `DearError`."""
    assert isinstance(error, DearError)
    return as_response(error)
