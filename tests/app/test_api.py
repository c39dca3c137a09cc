"""The API over a real connection, with a model that is quick to foretell: its features are the mean colour."""

import base64
import io
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dear.answer import Answer, Vote
from dear.errors import DearError
from dear.serve.admission import Admission
from dear.serve.api import Service
from dear.serve.uploads import parse_upload

CLASSES = ("red", "green", "blue")


class Colors:
    """Answers by the mean of red, green and blue; remembers the sizes of its batches."""

    runtime, backbone, classes, components = "PyTorch", "local-dir:/secret/colors", CLASSES, ("cls", "color")
    inferences = ("fusion", "decoupled")

    def __init__(self) -> None:
        self.batches: list[int] = []

    def pixels(self, image):
        return np.asarray(image, np.float32).transpose(2, 0, 1) / 255

    def look(self, pixels):
        self.batches.append(len(pixels))
        means = np.stack([one.mean((1, 2)) for one in pixels])
        return np.stack([means, means], axis=1)

    def features(self, seen):
        return seen

    def answers(self, features, topk, inference):
        def answer(row):
            order = np.argsort(-row)[:topk]
            top = tuple((CLASSES[i], float(row[i])) for i in order)
            return Answer(*top[0], top, (Vote("cls", 1.0, *top[0], float(row[order[0]])),))

        return [answer(row[0]) for row in features]

    def encode_text(self, sentences):
        return np.array([[len(sentence), 0.0, 0.0] for sentence in sentences])


def png(color: str, size=(4, 4)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, "PNG")
    return out.getvalue()


def b64(color: str) -> str:
    return base64.b64encode(png(color)).decode()


def form(*parts: tuple[str, bytes], boundary: str = "xyz") -> tuple[bytes, str]:
    """Files are parts called image."""
    body = b""
    for name, value in parts:
        file = '; filename="a.png"' if name == "image" else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        body += head.encode() + value + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


@pytest.fixture(scope="module")
def service():
    return Service(Colors(), "colors")


@pytest.fixture(scope="module")
def client(service, serve_live):
    with serve_live(service) as made:
        yield made


@pytest.fixture(scope="module")
def openapi(client):
    return json.loads(client.ask("GET", "/openapi.json")[1])


@pytest.fixture
def fits(openapi):
    """An answer is what the description promises for it."""

    def check(path: str, status: int, value) -> None:
        (described,) = openapi["paths"][path].values()
        found = described["responses"]["4XX" if 400 <= status < 500 else str(status)]
        if "$ref" in found:
            found = openapi["components"]["responses"][found["$ref"].rpartition("/")[2]]
        schema = json.loads(json.dumps({**openapi, **found["content"]["application/json"]["schema"]}))
        if path == "/v1/about" and value["gallery"] is None:
            del schema["properties"]["gallery"]["type"]  # nullable is OpenAPI's word, not JSON Schema's
        jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)

    return check


# --- answers ---------------------------------------------------------------------------------------------------


def test_one_image_or_many_as_a_form_or_as_json(client, fits) -> None:
    body, kind = form(("image", png("blue")), ("image", png("red")), ("topk", b"2"), ("votes", b"false"))
    status, text = client.ask("POST", "/v1/predict", body, Content_Type=kind)
    assert status == 200
    answers = json.loads(text)["answers"]
    assert answers[0] == {"choice": "blue", "probability": 1.0, "top": [["blue", 1.0], ["red", 0.0]]}
    assert [one["choice"] for one in answers] == ["blue", "red"]
    status, found = client.post("/v1/predict", {"images": [b64("lime"), b64("red")], "topk": 1})
    assert [one["choice"] for one in found["answers"]] == ["green", "red"]
    assert found["answers"][0]["votes"][0]["component"] == "cls"
    fits("/v1/predict", status, found)
    assert client.post("/v1/predict", {"image": base64.encodebytes(png("red")).decode()})[0] == 200  # in lines


def test_features_of_images_and_of_texts(client, fits) -> None:
    status, found = client.post("/v1/embed", {"images": [b64("red")], "texts": ["abc"]})
    assert found == {"images": [{"cls": [1.0, 0.0, 0.0], "color": [1.0, 0.0, 0.0]}], "texts": [[3.0, 0.0, 0.0]]}
    fits("/v1/embed", status, found)


def test_it_says_what_it_is_without_the_folders_of_the_machine(client, fits) -> None:
    status, text = client.ask("GET", "/v1/about")
    assert "secret" not in text
    assert json.loads(text)["classes"] == list(CLASSES)
    fits("/v1/about", status, json.loads(text))
    status, text = client.ask("GET", "/healthz")
    fits("/healthz", status, json.loads(text))


def test_search_finds_by_image_and_by_text(run, gallery_folder, photos, serve_live, fits) -> None:
    with serve_live(Service.open(run, gallery_folder)) as client:
        path = photos / "warm" / "7.png"
        body, kind = form(("image", path.read_bytes()), ("by", b"color=0.7,shape=0.3"), ("k", b"3"))
        status, text = client.ask("POST", "/v1/search", body, Content_Type=kind)
        hits = json.loads(text)["hits"]
        assert (len(hits), hits[0]["path"]) == (3, str(path))
        fits("/v1/search", status, json.loads(text))
        status, found = client.post("/v1/search", {"text": "a warm thing", "label": "COLD"})
        assert {hit["label"] for hit in found["hits"]} == {"cold"}
        assert client.post("/v1/search", {"text": "a", "label": "') OR 1=1 --"})[1] == {"hits": []}
        for wrong in ({}, {"text": " "}, {"text": "a", "image": b64("red")}, {"text": "a", "by": "smell"}):
            assert client.post("/v1/search", wrong)[0] == 400


def test_every_address_is_described_and_every_description_has_an_address(client, openapi) -> None:
    for path, methods in openapi["paths"].items():
        (method,) = methods
        status = client.ask(method.upper(), path, b"" if method == "post" else None)[0]
        assert status == {"post": 415, "get": 200}[method] or (path, status) == ("/v1/search", 400), path
    assert client.ask("PUT", "/v1/predict")[0] == 405
    assert client.ask("GET", "/v1/nothing")[0] == 404
    assert client.ask("GET", "/docs/swagger-ui-bundle.js")[0] == 200


# --- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({}, "no image"),
        ({"images": []}, "no image"),
        ({"images": ["?"]}, "base64"),
        ({"images": [3]}, "base64"),
        ({"images": [b64("red"), "aGVsbG8="]}, "Image 2 of 2: This file"),
        ({"images": [b64("red")] * 33}, "at most 32 images"),
        ({"images": [b64("red")], "topk": 0}, "topk must be a whole number"),
        ({"images": [b64("red")], "topk": True}, "topk must be a whole number"),
        ({"images": [b64("red")], "topk": 1.5}, "topk must be a whole number"),
        ({"images": [b64("red")], "topk": "9" * 5000}, "topk must be a whole number"),
        ({"images": [b64("red")], "votes": "perhaps"}, "votes must be true or false"),
        ({"images": [b64("red")], "inference": ["fusion"]}, "inference must be one of"),
        ({"images": [b64("red")], "top_k": 3}, "no setting 'top_k'"),
        ([], "JSON object"),
    ],
)
def test_bad_requests_get_one_sentence(client, fits, value, sentence) -> None:
    status, found = client.post("/v1/predict", value)
    assert status == 400
    assert sentence in found["error"]
    fits("/v1/predict", status, found)


def test_other_kinds_of_bodies_are_refused(client, fits) -> None:
    for kind, body, expected in (
        ("text/plain", b"x", 415),
        ("application/json", b"[" * 100_000, 400),
        ("application/json", b"1" * 6000, 400),
        ("multipart/form-data", b"x", 400),
        ("multipart/form-data; boundary=a", b"--b", 400),
    ):
        status, text = client.ask("POST", "/v1/predict", body, Content_Type=kind)
        assert status == expected
        fits("/v1/predict", status, json.loads(text))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
known = st.sampled_from(["image", "images", "topk", "votes", "inference", "text", "texts", "by", "label", "k"])


@settings(max_examples=50)
@given(st.dictionaries(known | st.text(max_size=5), anything, max_size=4))
def test_any_json_is_understood_or_refused(values) -> None:
    def look() -> None:
        upload = parse_upload("application/json", json.dumps(values).encode())
        assert all(isinstance(image, bytes) for image in upload.images)
        assert 1 <= upload.number("topk", 3, 1000) <= 1000
        assert upload.flag("votes", True) in (True, False)
        assert upload.choice("inference", ("fusion", "decoupled")) in ("fusion", "decoupled")
        assert isinstance(upload.text("text").encode(), bytes)
        assert all(upload.texts("texts"))

    refused_at_most(look)


@settings(max_examples=50)
@given(st.binary(max_size=60), st.sampled_from(["image", "topk", "\xff", ""]), st.integers(0, 200))
def test_any_form_is_understood_or_refused(data: bytes, name: str, cut: int) -> None:
    body, kind = form((name, data), ("topk", data))
    for sent in (body, body[:cut], data, body[:cut] + data + body[cut:]):
        refused_at_most(lambda sent=sent: parse_upload(kind, sent))
    refused_at_most(lambda: parse_upload("multipart/form-data; " + data.decode("latin-1"), body))


def refused_at_most(job) -> None:
    """Any other exception would be a 500."""
    with suppress(DearError):
        job()


# --- who waits -------------------------------------------------------------------------------------------------


def test_requests_that_wait_together_go_through_the_model_together(serve_live) -> None:
    engine, held = Colors(), threading.Event()
    service = Service(engine, "colors")
    with serve_live(service) as client, ThreadPoolExecutor(20) as pool:
        began = threading.Event()
        service.model.call(lambda: (began.set(), held.wait(60)))
        began.wait(60)
        colors = ["red", "lime", "blue"] * 6
        asked = [{"images": [b64(color)], "topk": place % 3 + 1} for place, color in enumerate(colors)]
        answers = [pool.submit(client.post, "/v1/predict", values) for values in asked]
        until(lambda: service.admission.images == len(colors) and len(service.model._waiting) == len(colors))
        held.set()
        found = [answer.result(60)[1]["answers"][0] for answer in answers]
        assert engine.batches == [18]
        assert [one["choice"] for one in found] == ["red", "green", "blue"] * 6  # everybody got their own
        assert [len(one["top"]) for one in found] == [1, 2, 3] * 6
        metrics = client.ask("GET", "/metrics")[1]
        assert 'dear_batch_images_bucket{le="32.0"} 1.0' in metrics
        assert 'dear_requests_total{method="POST",path="/v1/predict",status="200"} 18.0' in metrics
        assert "dear_waiting_images 0.0" in metrics


def test_more_than_fits_is_told_when_to_come_back_and_the_rest_is_answered(serve_live) -> None:
    held, service = threading.Event(), Service(Colors(), "colors", admission=Admission(images=2))
    with serve_live(service) as client, ThreadPoolExecutor(20) as pool:
        service.model.call(lambda: held.wait(60))
        first = [pool.submit(client.post, "/v1/predict", {"images": [b64("red")]}) for _ in range(2)]
        until(lambda: service.admission.images == 2)
        body = json.dumps({"images": [b64("red")]}).encode()
        found = client.raw(
            b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        )  # fmt: skip
        assert found.startswith(b"HTTP/1.1 503")
        assert b"\r\nretry-after: 1\r\n" in found
        assert client.ask("GET", "/healthz")[0] == 200  # which never waits
        held.set()
        assert [answer.result(60)[0] for answer in first] == [200, 200]
        assert client.post("/v1/predict", {"images": [b64("red")] * 3})[0] == 503  # would never fit
        assert client.post("/v1/predict", {"images": [b64("red")] * 2})[0] == 200


def test_an_answer_that_does_not_come_in_time_is_given_up(serve_live, monkeypatch) -> None:
    monkeypatch.setattr("dear.serve.api._ANSWER_SECONDS", 0.05)
    engine, held = Colors(), threading.Event()
    service = Service(engine, "colors")
    with serve_live(service) as client:
        service.model.call(lambda: held.wait(60))
        assert client.post("/v1/predict", {"images": [b64("red")]})[0] == 503
        held.set()
        until(lambda: not service.model._waiting)
        assert (engine.batches, service.admission.images) == ([], 0)  # nobody waits for it any more


def test_those_who_leave_give_up_their_places(serve_live) -> None:
    engine, held = Colors(), threading.Event()
    service = Service(engine, "colors")
    with serve_live(service) as client:
        service.model.call(lambda: held.wait(60))
        body = json.dumps({"images": [b64("red")]}).encode()
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.sendall(b"POST /v1/predict HTTP/1.1\r\n" + head.encode() + body)
            until(lambda: service.admission.images == 1 and len(service.model._waiting) == 1)
        until(lambda: service.admission.images == 0)
        held.set()
        assert client.post("/v1/predict", {"images": [b64("blue")]})[0] == 200
        assert engine.batches == [1]  # nothing was done for the one who left


def test_a_model_that_fails_fails_for_those_who_asked_and_goes_on(serve_live, capfd) -> None:
    engine = Colors()
    service = Service(engine, "colors")
    with serve_live(service) as client:
        engine.look = lambda pixels: 1 / 0
        status, found = client.post("/v1/predict", {"images": [b64("red")]})
        assert status == 500
        assert "ZeroDivision" not in found["error"]
        assert "ZeroDivisionError" in capfd.readouterr().err
        engine.look = lambda pixels: np.full((len(pixels), 2, 3), np.nan)
        assert client.post("/v1/embed", {"images": [b64("red")]})[0] == 500  # NaN is not JSON
        del engine.look
        assert client.post("/v1/predict", {"images": [b64("red")]})[0] == 200


def test_only_those_with_the_token_are_answered(serve_live) -> None:
    with serve_live(Service(Colors(), "colors"), token="0123456789abcdef") as client:
        for given in ("", "Bearer x", "Bearer 0123456789abcdeF", "Bearer 0123456789abcdef0", "Bearer \xe9"):
            wrong = {"Authorization": given}
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
    from dear.serve.model_thread import BATCH, ModelThread

    engine, held = Colors(), threading.Event()
    model = ModelThread(engine)
    model.call(lambda: held.wait(60))
    images = [[np.full((3, 1, 1), 100 * place + i, np.float32) for i in range(n)] for place, n in enumerate(counts)]
    found = [model.features(pixels) for pixels in images]
    held.set()
    for pixels, result in zip(images, found, strict=True):
        assert np.array_equal(result.result(60)[:, 0, 0], [one[0, 0, 0] for one in pixels])
    assert sum(engine.batches) == sum(counts)
    assert max(engine.batches) <= BATCH
    assert len(engine.batches) <= 1 + sum(counts) // (BATCH - 4)  # as few as their sizes allow
