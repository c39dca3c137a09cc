"""A stand-in for the hub: the few calls that its client makes, on loopback, with files kept in memory."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Hub(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.calls: list[str] = []
        self.address = f"http://127.0.0.1:{self.server_port}"

    def commit(self, name: str) -> str:
        files = self.repositories[name]
        return hashlib.sha1(b"".join(file.encode() + files[file] for file in sorted(files))).hexdigest()


class _Call(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.calls.append(f"POST {self.path}")
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            self.server.repositories.setdefault(name, {})
            self.server.private[name] = bool(asked.get("private")) or asked.get("visibility") == "private"
            self._json({"url": f"{self.server.address}/{name}"})
        elif self.path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif re.fullmatch("/api/models/(.+?)/preupload/main", self.path):
            files = [{"path": f["path"], "uploadMode": "regular"} for f in json.loads(body)["files"]]
            self._json({"files": [{**file, "shouldIgnore": False, "oid": None} for file in files]})
        elif found := re.fullmatch("/api/models/(.+?)/commit/main", self.path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.repositories[found[1]][line["value"]["path"]] = content
            oid = self.server.commit(found[1])
            self._json(
                {"success": True, "commitOid": oid, "commitUrl": f"{self.server.address}/{found[1]}/commit/{oid}"}
            )
        else:
            self.send_error(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.calls.append(f"{self.command} {path}")
        if found := re.fullmatch("/api/models/([^/]+/[^/]+)(/revision/.+|/tree/.+)?", path):
            files = self.server.repositories.get(found[1])
            if files is None:
                self.send_error(404)
            elif (found[2] or "").startswith("/tree"):
                self._json([{"type": "file", "path": f, "size": len(c), "oid": "0" * 40} for f, c in files.items()])
            else:
                listed = [{"rfilename": file} for file in files]
                self._json({"id": found[1], "sha": self.server.commit(found[1]), "siblings": listed})
        elif found := re.fullmatch("/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            content = self.server.repositories[found[1]][found[3]]
            self._send(content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": found[2]})
        else:
            self.send_error(404)

    def _json(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[Hub]:
    from huggingface_hub import constants

    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.address)
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "a-token-for-the-stand-in")
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield server
        server.shutdown()
