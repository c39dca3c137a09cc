"""The API over a real connection: its answers, and what it refuses."""

import base64
import json
from contextlib import suppress

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dear.core.errors import DearError
from dear.server import schemas
from dear.server.api import Service
from dear.server.uploads import parse_upload
from mean_color import CLASSES, Colors, b64, form, png


@pytest.fixture(scope="module")
def service():
    return Service(Colors(), "colors")


@pytest.fixture(scope="module")
def client(service, serve_live):
    with serve_live(service) as client:
        yield client


@pytest.fixture(scope="module")
def openapi(client):
    return json.loads(client.ask("GET", "/openapi.json")[1])


@pytest.fixture
def fits(openapi):
    """A response is what the OpenAPI document promises for it."""

    def check(path: str, status: int, value, openapi=openapi) -> None:
        (operation,) = openapi["paths"][path].values()
        response = operation["responses"]["4XX" if 400 <= status < 500 else str(status)]
        schema = json.loads(json.dumps({**openapi, **response["content"]["application/json"]["schema"]}))
        if path == "/v1/about" and value["gallery"] is None:
            del schema["components"]["schemas"]["About"]["properties"]["gallery"]["type"]  # nullable is OpenAPI's word
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
    status, response = client.post("/v1/predict", {"images": [b64("lime"), b64("red")], "topk": 1})
    assert [one["choice"] for one in response["answers"]] == ["green", "red"]
    assert response["answers"][0]["votes"][0]["component"] == "cls"
    fits("/v1/predict", status, response)
    assert client.post("/v1/predict", {"image": base64.encodebytes(png("red")).decode()})[0] == 200  # in lines


def test_features_of_images_and_of_texts(client, fits) -> None:
    status, response = client.post("/v1/embed", {"images": [b64("red")], "texts": ["abc"]})
    assert response == {"images": [{"cls": [1.0, 0.0, 0.0], "color": [1.0, 0.0, 0.0]}], "texts": [[3.0, 0.0, 0.0]]}
    fits("/v1/embed", status, response)


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
        fits("/v1/search", status, json.loads(text), json.loads(client.ask("GET", "/openapi.json")[1]))
        status, response = client.post("/v1/search", {"text": "a warm thing", "label": "COLD"})
        assert {hit["label"] for hit in response["hits"]} == {"cold"}
        assert client.post("/v1/search", {"text": "a", "label": "') OR 1=1 --"})[1] == {"hits": []}
        for wrong in ({}, {"text": " "}, {"text": "a", "image": b64("red")}, {"text": "a", "by": "smell"}):
            assert client.post("/v1/search", wrong)[0] == 400


def test_every_address_is_described_and_every_description_has_an_address(client, openapi) -> None:
    for path, methods in openapi["paths"].items():
        (method,) = methods
        status = client.ask(method.upper(), path, b"" if method == "post" else None)[0]
        assert status == {"post": 415, "get": 200}[method], path
        if method == "get":
            assert client.ask("HEAD", path) == (200, "")
    assert client.ask("PUT", "/v1/predict")[0] == 405
    assert client.ask("GET", "/v1/nothing")[0] == 404
    assert client.ask("GET", "/docs/swagger-ui-bundle.js")[0] == 200


# --- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({}, "no image"),
        ({"images": []}, "list of images is empty"),
        ({"images": ["?"]}, "base64"),
        ({"images": [3]}, "base64"),
        ({"images": [b64("red"), "aGVsbG8="]}, "Image 2 of 2: This file"),
        ({"images": [b64("red")] * 33}, "at most 32 images"),
        ({"images": [b64("red")], "topk": 0}, "topk must be a whole number"),
        ({"images": [b64("red")], "topk": True}, "topk must be a whole number"),
        ({"images": [b64("red")], "topk": 1.5}, "topk must be a whole number"),
        ({"images": [b64("red")], "topk": "9" * 5000}, "topk must be a whole number"),
        ({"images": [b64("red")], "topk": "9"}, "topk must be a whole number"),
        ({"images": [b64("red")], "votes": "perhaps"}, "votes must be true or false"),
        ({"images": [b64("red")], "inference": ["fusion"]}, "inference must be one of"),
        ({"images": [b64("red")], "top_k": 3}, "no setting 'top_k'"),
        ([], "JSON object"),
    ],
)
def test_bad_requests_get_one_sentence(client, fits, value, sentence) -> None:
    status, response = client.post("/v1/predict", value)
    assert status == 400
    assert sentence in response["error"]
    fits("/v1/predict", status, response)


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
NAMES = ("topk", "votes", "inference", "text", "texts", "by", "label", "k")
known = st.sampled_from(["image", "images", *NAMES])


def test_a_long_list_of_mistakes_costs_no_more_than_one() -> None:
    with pytest.raises(ValidationError) as caught:
        schemas.EmbedSettings.model_validate({"texts": [0] * 100_000})
    assert caught.value.error_count() == 1
    with pytest.raises(DearError, match="no setting '0' here"):
        schemas.check_settings({str(number): 0 for number in range(100_000)}, schemas.EmbedSettings)


@settings(max_examples=50)
@given(st.dictionaries(known | st.text(max_size=5), anything, max_size=4))
def test_any_json_is_understood_or_refused(values) -> None:
    def look() -> None:
        upload = parse_upload("application/json", json.dumps(values).encode(), NAMES)
        assert all(isinstance(image, bytes) for image in upload.images)
        of_predict = schemas.PredictSettings.of(("fusion", "decoupled"))
        for model in (of_predict, schemas.SearchSettings, schemas.EmbedSettings):
            own = {name: value for name, value in upload.values.items() if name in model.model_fields}
            refused_at_most(lambda model=model, own=own: is_valid(schemas.check_settings(own, model)))
            refused_at_most(lambda model=model: schemas.check_settings(upload.values, model))

    def is_valid(settings) -> None:
        values = settings.model_dump()
        assert 1 <= values.get("topk", 3) <= 1000
        assert type(values.get("topk", 3)) is int
        assert values.get("votes", True) in (True, False)
        assert values.get("inference", "fusion") in ("fusion", "decoupled")
        assert isinstance(values.get("text", "").encode(), bytes)
        assert all(values.get("texts", []))

    refused_at_most(look)


@settings(max_examples=50)
@given(st.binary(max_size=60), st.sampled_from(["image", "topk", "\xff", ""]), st.integers(0, 200))
def test_any_form_is_understood_or_refused(data: bytes, name: str, cut: int) -> None:
    body, kind = form((name, data), ("topk", data))
    for sent in (body, body[:cut], data, body[:cut] + data + body[cut:]):
        refused_at_most(lambda sent=sent: parse_upload(kind, sent, NAMES))
    refused_at_most(lambda: parse_upload("multipart/form-data; " + data.decode("latin-1"), body, NAMES))


def refused_at_most(job) -> None:
    """Any other exception would be a 500."""
    with suppress(DearError):
        job()
