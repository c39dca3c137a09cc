"""Slow, rude and faulty clients: each is dropped or told why, and the next one is answered."""

import re
import socket
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dear.server.api import Service
from dear.server.limits import Admission

HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class NoModel:
    """An engine for requests that never reach the model."""

    runtime, backbone, classes, components = "PyTorch", "none", ("a",), ("cls",)
    inferences = ("fusion",)
    pixels = None


@pytest.fixture(scope="module")
def client(serve_live):
    service = Service(NoModel(), "none", admission=Admission(body_seconds=0.3))
    with serve_live(service) as client:
        yield client
        assert service.admission.images == service.admission._bytes == 0


@pytest.fixture(autouse=True)
def _it_goes_on(client, capfd):
    """After each of them the server answers others, and has printed nothing."""
    yield
    assert client.ask("GET", "/healthz")[0] == 200
    assert capfd.readouterr().err == ""


def statuses(response: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.1 (\d{3}) ", response)


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_any_bytes_are_answered_with_a_refusal_or_not_at_all(client, data: bytes) -> None:
    assert set(statuses(client.raw(data, end=True))) <= {b"400"}


NAMES = ["Content-Length", "Transfer-Encoding", "Host", "Origin", "Expect", "Connection", "Upgrade", "X"]
VALUES = ["0", "5", "-1", "+5", "9" * 5000, "chunked", "100-continue", "close", "websocket", "localhost", ""]


@settings(max_examples=60)
@given(
    st.sampled_from(["GET", "POST", "HEAD", "PUT", "OPTIONS", "TRACE", "BREW"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES)),
    st.binary(max_size=20),
)
def test_any_request_is_answered_once(client, method, path, headers, body) -> None:
    lines = [f"{method} /{path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall("\r\n".join(lines).encode() + body)
        connection.settimeout(60)
        response = connection.recv(65536)
    assert not response or statuses(response)[0] in b"100 400 403 404 405 408 411 413 415".split()


@pytest.mark.parametrize("length", ["9" * 5000, "99000000000", "1" + "0" * 400, "-1", "5, 6", "0x10", "1e3", "٣"])
def test_no_length_is_believed(client, length: str) -> None:
    response = client.raw(HEAD + f"Content-Length: {length}\r\n\r\n".encode())
    assert statuses(response)[0] in {b"400", b"413"}


def test_a_body_where_none_belongs_is_not_the_next_request(client) -> None:
    hidden = b"GET /v1/about HTTP/1.1\r\nHost: localhost\r\n\r\n"
    response = client.raw(
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(hidden) + hidden + hidden
    )
    assert statuses(response)[:1] == [b"200"]
    assert b'"classes"' not in response


def test_requests_one_behind_the_other_are_answered_in_order(client) -> None:
    get = b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
    response = client.raw(
        get % (b"/healthz", b"") + get % (b"/nothing", b"") + get % (b"/healthz", b"Connection: close\r\n")
    )
    assert statuses(response) == [b"200", b"404", b"200"]


def test_a_refusal_arrives_although_the_upload_goes_on(client) -> None:
    """A connection that is closed on unread bytes is reset, and the client never sees why."""
    for path, headers in (("/nothing", {}), ("/v1/predict", {"Origin": "http://evil.example"}), ("/healthz", {})):
        for _ in range(5):
            assert client.ask("POST", path, bytes(8_000_000), **headers)[0] in (403, 404, 405)


def test_a_client_that_asks_first_is_refused_before_it_sends(client) -> None:
    response = client.raw(HEAD + b"Content-Length: 99000000\r\nExpect: 100-continue\r\n\r\n")
    assert statuses(response) == [b"413"]
    response = client.raw(HEAD + b"Content-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n{}")
    assert statuses(response)[0] == b"100"


def test_a_slow_body_has_a_deadline(client) -> None:
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        response, began = b"", time.monotonic()
        connection.settimeout(0.05)
        while not response:
            connection.sendall(b" ")  # always a little, so that it is never silent
            try:
                response = connection.recv(65536)
            except TimeoutError:
                assert time.monotonic() - began < 60
    assert statuses(response) == [b"408"]


@pytest.mark.parametrize("head", [b"", b"GET /hea", b"GET /healthz HTTP/1.1\r\nHost: local"])
def test_a_slow_head_has_a_deadline(client, monkeypatch, head: bytes) -> None:
    monkeypatch.setattr("dear.server.guard.HEAD_SECONDS", 0.2)
    assert client.raw(head) == b""


def test_an_answer_that_nobody_takes_is_given_up(client, monkeypatch) -> None:
    monkeypatch.setattr("dear.server.guard.READ_SECONDS", 0.2)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", client.port))
        connection.settimeout(60)
        request = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(request * 20)
        time.sleep(1.5)
        received = 0
        with suppress(ConnectionError):
            while part := connection.recv(2**20):
                received += len(part)
    assert received < 20 * 1_000_000
