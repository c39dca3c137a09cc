"""Requests that come together: who is answered with whom, who has to wait, who is told to go."""

import json
import socket
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dear.server.api import Service
from dear.server.limits import Admission
from dear.server.model_thread import MOST_IMAGES, ModelThread
from mean_color import Colors, b64


def test_requests_that_wait_together_go_through_the_model_together(serve_live) -> None:
    engine, released = Colors(), threading.Event()
    service = Service(engine, "colors")
    with serve_live(service) as client, ThreadPoolExecutor(20) as pool:
        began = threading.Event()
        service.model.call(lambda: (began.set(), released.wait(60)))
        began.wait(60)
        colors = ["red", "lime", "blue"] * 6
        requests = [{"images": [b64(color)], "topk": place % 3 + 1} for place, color in enumerate(colors)]
        answers = [pool.submit(client.post, "/v1/predict", values) for values in requests]
        until(lambda: service.admission.images == len(colors) and len(service.model._waiting) == len(colors))
        released.set()
        results = [answer.result(60)[1]["answers"][0] for answer in answers]
        assert engine.batches == [18]
        assert [one["choice"] for one in results] == ["red", "green", "blue"] * 6  # everybody got their own
        assert [len(one["top"]) for one in results] == [1, 2, 3] * 6
        metrics = client.ask("GET", "/metrics")[1]
        assert 'dear_batch_images_bucket{le="32.0"} 1.0' in metrics
        assert 'dear_requests_total{method="POST",path="/v1/predict",status="200"} 18.0' in metrics
        assert "dear_waiting_images 0.0" in metrics


def test_more_than_fits_is_told_when_to_come_back_and_the_rest_is_answered(serve_live) -> None:
    released, service = threading.Event(), Service(Colors(), "colors", admission=Admission(images=2))
    with serve_live(service) as client, ThreadPoolExecutor(20) as pool:
        service.model.call(lambda: released.wait(60))
        first = [pool.submit(client.post, "/v1/predict", {"images": [b64("red")]}) for _ in range(2)]
        until(lambda: service.admission.images == 2)
        body = json.dumps({"images": [b64("red")]}).encode()
        response = client.raw(
            b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        )  # fmt: skip
        assert response.startswith(b"HTTP/1.1 503")
        assert b"\r\nretry-after: 1\r\n" in response
        assert client.ask("GET", "/healthz")[0] == 200  # which never waits
        released.set()
        assert [answer.result(60)[0] for answer in first] == [200, 200]
        assert client.post("/v1/predict", {"images": [b64("red")] * 3})[0] == 503  # would never fit
        assert client.post("/v1/predict", {"images": [b64("red")] * 2})[0] == 200


def test_an_answer_that_does_not_come_in_time_is_given_up(serve_live, monkeypatch) -> None:
    monkeypatch.setattr("dear.server.api._ANSWER_SECONDS", 0.05)
    engine, released = Colors(), threading.Event()
    service = Service(engine, "colors")
    with serve_live(service) as client:
        service.model.call(lambda: released.wait(60))
        assert client.post("/v1/predict", {"images": [b64("red")]})[0] == 503
        released.set()
        until(lambda: not service.model._waiting)
        assert (engine.batches, service.admission.images) == ([], 0)  # nobody waits for it any more


def test_those_who_leave_give_up_their_places(serve_live) -> None:
    engine, released = Colors(), threading.Event()
    service = Service(engine, "colors")
    with serve_live(service) as client:
        service.model.call(lambda: released.wait(60))
        body = json.dumps({"images": [b64("red")]}).encode()
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.sendall(b"POST /v1/predict HTTP/1.1\r\n" + head.encode() + body)
            until(lambda: service.admission.images == 1 and len(service.model._waiting) == 1)
        until(lambda: service.admission.images == 0)
        released.set()
        assert client.post("/v1/predict", {"images": [b64("blue")]})[0] == 200
        assert engine.batches == [1]  # nothing was done for the one who left


def test_a_model_that_fails_fails_for_those_who_asked_and_goes_on(serve_live, capfd) -> None:
    engine = Colors()
    service = Service(engine, "colors")
    with serve_live(service) as client:
        engine.forward = lambda pixels: 1 / 0
        status, response = client.post("/v1/predict", {"images": [b64("red")]})
        assert status == 500
        assert "ZeroDivision" not in response["error"]
        assert "ZeroDivisionError" in capfd.readouterr().err
        engine.forward = lambda pixels: np.full((len(pixels), 2, 3), np.nan)
        assert client.post("/v1/embed", {"images": [b64("red")]})[0] == 500  # NaN is not JSON
        del engine.forward
        assert client.post("/v1/predict", {"images": [b64("red")]})[0] == 200


def test_only_those_with_the_token_are_answered(serve_live) -> None:
    with serve_live(Service(Colors(), "colors"), token="0123456789abcdef") as client:
        for header in ("", "Bearer x", "Bearer 0123456789abcdeF", "Bearer 0123456789abcdef0", "Bearer \xe9"):
            wrong = {"Authorization": header}
            assert client.ask("GET", "/v1/about", **wrong)[0] == 401
            assert client.ask("POST", "/v1/predict", bytes(100_000), **wrong)[0] == 401
            assert client.ask("GET", "/metrics", **wrong)[0] == 401
        assert client.ask("GET", "/v1/about")[0] == 401
        assert client.ask("GET", "/v1/about", Authorization="Bearer 0123456789abcdef")[0] == 200
        assert client.ask("GET", "/healthz")[0] == client.ask("GET", "/docs")[0] == 200


def until(condition) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=30))
def test_every_batch_is_split_back_to_those_who_asked(counts: list[int]) -> None:
    engine, released = Colors(), threading.Event()
    images = [[np.full((3, 1, 1), 100 * place + i, np.float32) for i in range(n)] for place, n in enumerate(counts)]
    with closing(ModelThread(engine)) as model:
        model.call(lambda: released.wait(60))
        futures = [model.features(pixels) for pixels in images]
        released.set()
        for pixels, result in zip(images, futures, strict=True):
            assert np.array_equal(result.result(60)[:, 0, 0], [one[0, 0, 0] for one in pixels])
    assert sum(engine.batches) == sum(counts)
    assert max(engine.batches) <= MOST_IMAGES
    assert len(engine.batches) <= 1 + sum(counts) // (MOST_IMAGES - 4)  # as few as their sizes allow


def test_closed_it_finishes_what_runs_and_cancels_the_rest() -> None:
    released, model = threading.Event(), ModelThread(Colors())
    began = threading.Event()
    runs = model.call(lambda: (began.set(), released.wait(60)))
    began.wait(60)
    waits = model.features([np.zeros((3, 1, 1))])
    closer = threading.Thread(target=model.close)
    closer.start()
    with pytest.raises(CancelledError):
        waits.result(60)
    released.set()
    closer.join(60)
    assert runs.result(60)[1]
    assert not model.alive
    assert model.call(lambda: 1).cancelled()
