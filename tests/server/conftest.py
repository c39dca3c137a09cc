"""Live servers; a small run that was really trained, and a gallery made with it."""

import http.client
import json
import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import dear
from dear.cli import main
from dear.clip import load_backbone
from dear.heads.head_role import HeadRole, Phrase
from dear.heads.role_map import RoleMap
from dear.server.api import Service
from dear.server.server import Address, make_app
from small_models import each_role


@pytest.fixture(scope="module", autouse=True)
def _no_thread_stays():
    """A process with threads left behind cannot be forked safely by a later test."""
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name == "model" or "serve" in thread.name]
    assert left == []


@pytest.fixture(scope="session")
def roles(model_folder) -> RoleMap:
    """Head (2, 0) comes with its evidence, all others with their role alone, as in the paper's table."""
    role_map = each_role(load_backbone(f"local-dir:{model_folder}"))
    phrases = (Phrase("a red <b>sign</b>", 0.5, "color"), Phrase("a square", 0.2, "shape"))
    known = HeadRole("core_attribute", "color", 0.69, (0.5, 0.5, 0.0, 0.0, 0.0), phrases)
    return replace(role_map, roles={**role_map.roles, (2, 0): known})


@pytest.fixture(scope="session")
def run(train_arguments, roles, tmp_path_factory) -> Path:
    """The run runs/colors; beside it lies a file that nobody may read."""
    top = tmp_path_factory.mktemp("app")
    (top / "runs").mkdir()
    (top / "runs" / "secret.txt").write_text("nobody may read this")
    roles.save(top / "roles.json")
    out = top / "runs" / "colors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dear.data.world.tasks.TEST", 2)  # pictures a class: to draw them all takes longer than training
        assert main(train_arguments(out, "--roles", str(top / "roles.json"), "--epochs", "2")) == 0
    return out


@pytest.fixture(scope="session")
def photos(run) -> Path:
    """Eight pictures in two folders, in flat colours."""
    folder = run.parent.parent / "photos"
    for number, shade in enumerate(range(20, 260, 30)):
        path = folder / ("warm" if number % 2 else "cold") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (shade, 60, 255 - shade)).save(path)
    return folder


@pytest.fixture(scope="session")
def predictor(run):
    return dear.load(run, device="cpu")


@pytest.fixture(scope="session")
def gallery_folder(run, photos, predictor) -> Path:
    pytest.importorskip("lancedb", reason="a gallery needs LanceDB: pip install 'dear-vlm[gallery]'")
    from dear.gallery import AdapterEncoder, Gallery

    folder = run.parent.parent / "gallery"
    encoder = AdapterEncoder(run, predictor)
    gallery = Gallery.create(folder, encoder)
    assert gallery.add(encoder, [photos], label_from_folder=True).added == 8
    return folder


@pytest.fixture
def gallery(gallery_folder):
    from dear.gallery import Gallery

    return Gallery.open(gallery_folder)


@pytest.fixture(scope="session")
def png_header():
    """A tiny PNG that declares any size: what a decompression bomb looks like from outside."""

    def make(width: int, height: int) -> bytes:
        def chunk(kind: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")

    return make


@dataclass(frozen=True)
class Client:
    port: int

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        if body is not None and not {"Content_Length", "Transfer_Encoding"} & headers.keys():
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def post(self, path: str, value: Any) -> tuple[int, Any]:
        status, text = self.ask("POST", path, json.dumps(value).encode(), Content_Type="application/json")
        return status, json.loads(text)

    def raw(self, data: bytes, end: bool = False) -> bytes:
        """All that comes back for these bytes until the connection is closed; b"" too if it is reset."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            try:
                connection.sendall(data)
                if end:
                    connection.shutdown(socket.SHUT_WR)
                return b"".join(iter(lambda: connection.recv(65536), b""))
            except ConnectionError:
                return b""


@contextmanager
def live(service: Service, **settings: Any) -> Iterator[Client]:
    """The service on a free port, on a real uvicorn."""
    with Address("127.0.0.1", 0) as address, service:
        app = make_app(service, address.hosts, **settings)
        thread = threading.Thread(target=address.serve, args=(app,), daemon=True)
        thread.start()
        try:
            yield Client(address.port)
        finally:
            address.stop()
            thread.join(30)


@pytest.fixture(scope="session")
def serve_live():
    return live
