"""A server on this machine that truncates, changes, stalls and fails."""

import hashlib
import http.server
import re
import time
from dataclasses import replace

from dear.data.known.sources import Archive


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; `faults` are taken one per request for content: a status, "short", "stall" or "drop"."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: list[int | str] = []
        self.asked: list[str] = []
        self.ranges = True

    def handle_error(self, request, client_address) -> None:
        """A client that gave up is no news."""

    def archive(self, name: str, data: bytes, **changes) -> Archive:
        self.files["/" + name] = data
        url = f"http://127.0.0.1:{self.server_port}/{name}"
        return replace(Archive(url, "today", 1, len(data), "sha256:" + hashlib.sha256(data).hexdigest()), **changes)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(head=True)

    def do_GET(self) -> None:
        self._answer()

    def _answer(self, head: bool = False) -> None:
        data = self.server.files.get(self.path.partition("?")[0])
        fault = 404 if data is None else self.server.faults.pop(0) if self.server.faults and not head else None
        if isinstance(fault, int):
            self.send_error(fault)
            return
        asked = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "") if self.server.ranges else None
        start, end = (int(asked[1]), min(int(asked[2]), len(data) - 1)) if asked else (0, len(data) - 1)
        if not head:
            self.server.asked.append(self.headers.get("Range") or "all")
        self.send_response(206 if asked else 200)
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
        self.send_header("Content-Length", str(end - start + 1))
        self.end_headers()
        if head:
            return
        if fault == "stall":
            time.sleep(1.5)
        part = data[start : end + 1]
        self.wfile.write(part[: len(part) // 2] if fault in ("short", "drop") else part)
