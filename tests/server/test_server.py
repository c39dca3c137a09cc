"""The page's server: what it answers, to whom, and that no request reads a file."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.routing import Route

from dear.cli import main
from dear.server.api import Service
from dear.server.page.views import Page


@pytest.fixture(scope="module")
def client(run, gallery_folder, serve_live):
    service = Service.open(run, gallery_folder)
    broken = Route("/api/broken", lambda _: 1 / 0)
    with serve_live(service, more=[*Page(run, service).routes, broken]) as client:
        yield client


@pytest.fixture
def ask(client):
    return client.ask


def test_the_page_and_its_parts_are_served_with_a_policy_of_nothing_from_outside(client, ask) -> None:
    assert ask("GET", "/") == ask("GET", "/index.html")
    for name in ("/", "/main.js", "/style.css", "/icon.svg", "/docs", "/docs/start.js"):
        response = client.raw(f"GET {name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head, _, body = response.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"default-src 'self'" in head
        assert b"http://" not in body.replace(b"http://www.w3.org", b"")  # names of SVG, never fetched


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd", "//etc/passwd", "/../../../../etc/passwd", "/assets/../page.py", "/%2e%2e/page.py", "/page.py",
        "/..%2f..%2fpage.py", "/file=/etc/passwd", "/gradio_api/file=/etc/passwd", "/api/../../secret.txt", "/api/",
        "/main.js/..", "/main.js%00", "/secret.txt", "/../secret.txt", "file:///etc/passwd", "http://127.0.0.1/etc/passwd",
    ],
)  # fmt: skip
def test_no_path_reads_a_file(ask, path: str) -> None:
    status, text = ask("GET", path)
    assert status == 404
    assert json.loads(text) == {"error": "There is nothing at this address."}


def test_no_value_reads_a_file_outside_of_the_gallery(ask, run, photos) -> None:
    secret, source = run.parent / "secret.txt", photos / "warm" / "7.png"
    outside = photos.parent / "outside.png"
    outside.write_bytes(source.read_bytes())
    inside_by_detour = photos / "warm" / ".." / ".." / "outside.png"
    for path in (secret, outside, inside_by_detour, "/etc/passwd", "x' OR '1'='1", "world:signs/test/00001"):
        status, text = ask("POST", f"/api/search?like={quote(str(path))}", b"")
        assert status == 400
        assert "The gallery has no image" in text
    status, text = ask("POST", f"/api/search?like={quote(str(source))}&by=color", b"")
    assert status == 200
    assert json.loads(text)["hits"][0]["path"] == str(source)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/api/search", "Choose an image or write a sentence"),
        ("/api/search?text=a&by=smell", "no component 'smell'"),
        ("/api/search?text=a&by=color=nan", "must be a number from 0 to"),
        ("/api/search?text=a&by=color=0", "All weights are zero"),
        ("/api/classify", "The file is empty"),
        ("/api/classify?example=99", "There is no example 99"),
        ("/api/classify?example=-1", "There is no example -1"),
        ("/api/classify?example=one", "whole number"),
    ],
)
def test_bad_requests_get_one_sentence(ask, path: str, sentence: str) -> None:
    status, text = ask("POST", path, b"")
    assert status == 400
    assert sentence in json.loads(text)["error"]


def test_uploads_are_refused_by_their_announced_length_and_bombs_by_their_header(ask, png_header) -> None:
    status, text = ask("POST", "/api/classify", b"", Content_Length="99000000000")
    assert (status, json.loads(text)["error"]) == (413, "The upload has more than 64 MB: send less at once.")
    status, text = ask("POST", "/api/classify", bytes(20_000_001))
    assert (status, json.loads(text)["error"]) == (400, "The file has more than 20 MB: make the image smaller.")
    assert ask("POST", "/api/classify", b"", Content_Length="9", Transfer_Encoding="chunked")[0] in (400, 411)
    status, text = ask("POST", "/api/classify", b"0\r\n\r\n", Transfer_Encoding="chunked")
    assert (status, json.loads(text)["error"]) == (411, "The upload does not say how long it is.")
    status, text = ask("POST", "/api/search", png_header(60_000, 60_000))
    assert "more than 40 million pixels" in text


def test_other_sites_get_nothing(ask, client) -> None:
    here = f"127.0.0.1:{client.port}"
    assert ask("GET", "/api/about", Host="evil.example")[0] == 403  # a name that was made to point here
    assert ask("GET", "/api/about", Host=here, Origin="http://evil.example")[0] == 403
    assert ask("GET", "/api/about", Host=here, Origin=f"http://{here}")[0] == 200
    assert ask("GET", "/api/about", Host=f"localhost:{client.port}")[0] == 200


def test_what_goes_wrong_is_told_in_the_terminal_and_not_on_the_page(ask, capfd) -> None:
    status, text = ask("GET", "/api/broken")
    assert status == 500
    assert "Traceback" not in text
    assert "ZeroDivisionError" not in text
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_what_is_found_is_told_without_the_folders_above(ask, run) -> None:
    about = json.loads(ask("GET", "/api/about")[1])
    assert about["run"] == run.name
    assert about["gallery"] == {"name": "gallery", "images": 8, "components": about["components"]}
    assert len(about["examples"]) == 8
    assert str(run.parent) not in json.dumps(about)


def test_a_port_in_use_and_other_bad_input_is_one_sentence(run, capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["app", str(run), "--port", str(taken.getsockname()[1])]) == 2
    assert "is in use: choose another with --port." in capsys.readouterr().err
    for argv in (
        ["app", "nowhere"],
        ["app", str(run), "--port", "99999"],
        ["app", str(run), "--host", "no.such.host"],
        ["app", str(run), "--host", ""],
        ["serve", str(run), "--host", " "],
        ["serve", str(run), "--token-file", "no"],
    ):
        assert main([*argv, *([] if "--port" in argv else ["--port", "0"])]) == 2
        err = capsys.readouterr().err
        assert err.startswith("dear: ")
        assert err.count("\n") == 1


_SERVER = """
from dear.server.api import Service
from dear.server.server import Address, make_app
from mean_color import Colors

with Address("127.0.0.1", 0) as address, Service(Colors(), "colors") as service:
    print(address.port, flush=True)
    address.serve(make_app(service, address.hosts))
print("stopped", flush=True)
"""


def test_to_stop_when_told_is_a_success() -> None:
    """A supervisor sees a graceful stop and exit code 0 after SIGTERM."""
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        port = int(server.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:  # answered: it is serving
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in connection.recv(100)
        server.send_signal(signal.SIGTERM)
        assert server.stdout.read() == "stopped\n"
        assert server.wait(60) == 0
