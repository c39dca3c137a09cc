"""The generated OpenAPI document, and the page that shows it without the internet."""

import json
import re
from types import SimpleNamespace

import jsonschema
import pytest
from fastapi.routing import APIRoute

from dear.server.api import Service
from mean_color import Colors

# What OpenAPI 3.0 allows, as far as it concerns us. The words of 3.1 (const, prefixItems, type null, ...) are refused:
# Swagger UI 4 does not know them.
SCHEMA, CONTENT, OPERATION = ({"$ref": f"#/$defs/{name}"} for name in ("schema", "content", "operation"))
WORDS = {"type": "string", "minLength": 1}
TEXT, NUMBER, SIZE = {"type": "string"}, {"type": "integer"}, {"type": "integer", "minimum": 0}


def an_object(needed: str = "", /, **properties) -> dict:
    """The schema of an object with these properties and no others; `needed`: those that it must have."""
    return {"type": "object", "required": needed.split(), "additionalProperties": False, "properties": properties}


def a_table(keys: str, values: dict, **more) -> dict:
    """The schema of an object whose keys match a pattern."""
    return {"type": "object", "patternProperties": {keys: values}, "additionalProperties": False, **more}


SHAPE = {
    "$defs": {
        "schema": an_object(
            **{"$ref": {"type": "string", "pattern": "^#/components/schemas/"}},
            type={"enum": ["object", "array", "string", "number", "integer", "boolean"]},
            properties={"type": "object", "additionalProperties": SCHEMA},
            additionalProperties={"anyOf": [{"type": "boolean"}, SCHEMA]},
            items=SCHEMA,
            **{word: {"type": "array", "minItems": 1, "items": SCHEMA} for word in ("anyOf", "oneOf")},
            required={"type": "array", "minItems": 1, "items": TEXT},
            enum={"type": "array", "minItems": 1},
            nullable={"type": "boolean"},
            default={},
            **dict.fromkeys(("title", "description", "format", "pattern"), TEXT),
            **dict.fromkeys(("minimum", "maximum"), NUMBER),
            **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), SIZE),
        ),
        "content": a_table("/", an_object("schema", schema=SCHEMA, encoding={"type": "object"}), minProperties=1),
        "response": an_object("description content", description=TEXT, content=CONTENT, headers={"type": "object"}),
        "operation": an_object(
            "operationId summary responses",
            operationId=WORDS,
            summary=WORDS,
            description=WORDS,
            tags={"type": "array"},
            security={"type": "array"},
            requestBody=an_object("content", required={"type": "boolean"}, content=CONTENT),
            responses=a_table(r"^([1-5]XX|[1-5]\d\d)$", {"$ref": "#/$defs/response"}, required=["200"]),
        ),
    },
    **an_object(
        "openapi info paths",
        openapi={"const": "3.0.3"},
        info={"type": "object", "required": ["title", "version"]},
        paths=a_table("^/", {**an_object(get=OPERATION, post=OPERATION), "minProperties": 1}),
        components={
            "type": "object",
            "properties": {
                "schemas": {"type": "object", "additionalProperties": SCHEMA},
                "securitySchemes": {"type": "object"},
            },
        },
    ),
}
MEDIA_TYPES = {"multipart/form-data", "application/json"}


@pytest.fixture(scope="module")
def client(serve_live):
    async def typed(count: int) -> int:
        return count

    route = APIRoute("/api/typed", typed, methods=["GET"], include_in_schema=False)
    gallery = SimpleNamespace(components=("cls", "color"))
    with serve_live(Service(Colors(), "colors", gallery), more=[route]) as client:
        yield client


@pytest.fixture(scope="module")
def document(client):
    return json.loads(client.ask("GET", "/openapi.json")[1])


def test_the_document_is_valid(document) -> None:
    jsonschema.validate(document, SHAPE, cls=jsonschema.Draft202012Validator)
    used = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert used <= document["components"]["schemas"].keys()  # every reference leads somewhere
    ids = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(ids)) == len(ids)


def test_every_route_is_there_with_its_request_and_its_response(document) -> None:
    responses = {
        "/v1/predict": "Predictions", "/v1/search": "Hits", "/v1/embed": "Embeddings", "/v1/about": "About",
        "/healthz": "Health",
    }  # fmt: skip
    assert document["paths"].keys() == {*responses, "/metrics"}
    for path, name in responses.items():
        ((method, operation),) = document["paths"][path].items()
        content = operation["responses"]["200"]["content"]
        assert content == {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        assert ("requestBody" in operation) == (method == "post")
        if method == "post":
            assert operation["requestBody"]["content"].keys() == MEDIA_TYPES
            assert operation["responses"].keys() == {"200", "4XX", "503"}
        for status, response in operation["responses"].items():
            schema = response["content"]["application/json"]["schema"]
            assert status == "200" or schema == {"$ref": "#/components/schemas/Refusal"}
    form, base64 = (
        document["paths"]["/v1/predict"]["post"]["requestBody"]["content"][name]["schema"] for name in MEDIA_TYPES
    )
    for body in (form, base64):
        assert body["properties"]["inference"]["enum"] == ["fusion", "decoupled"]
        assert body["properties"]["topk"]["maximum"] == 1000


def test_the_checks_of_fastapi_refuse_in_our_form(client) -> None:
    for query in ("", "?count=x", "?count=" + "9" * 5000):
        status, text = client.ask("GET", f"/api/typed{query}")
        assert (status, json.loads(text)) == (400, {"error": "The query value count is missing or of the wrong type."})


def test_the_docs_name_no_other_site(client) -> None:
    html = client.ask("GET", "/docs")[1]
    addresses = re.findall(r"""(?:src|href)=["']([^"']*)["']""", html)
    assert len(addresses) == 4
    assert re.findall(r"<script>|\son\w+=|style=", html) == []  # the content policy would refuse them
    for address in addresses:
        assert address == "data:," or client.ask("GET", address)[0] == 200
    script = client.ask("GET", "/docs/start.js")[1]
    assert 'url: "/openapi.json"' in script
    assert "validatorUrl: null" in script
    assert "//" not in html + script
