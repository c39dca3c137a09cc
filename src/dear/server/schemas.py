"""Typed settings of requests, and typed responses. FastAPI makes the OpenAPI document of them.

FastAPI reads no body: `dear.server.uploads` does, within its limits. The settings in it are checked here afterwards.
"""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    create_model,
)

from dear.core.errors import DearError
from dear.core.names import CLS
from dear.server.model_thread import MOST_IMAGES
from dear.server.uploads import FORMATS_IN_WORDS, IMAGE_TYPES, MAX_BYTES

_MAX_LETTERS = 2000  # of a sentence
_MAX_RESULTS = 1000  # classes or hits in one response


def _from_form(value: Any) -> Any:
    """A number or a truth value in a form is text."""
    try:
        return json.loads(value) if isinstance(value, str) and len(value) < 20 else value
    except ValueError:
        return value


class _Nullable:
    """Declares `T | None` as OpenAPI 3.0 does, which Swagger UI 4 needs."""

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler.resolve_ref_schema(handler(core_schema["schema"])), "nullable": True}


Whole = Annotated[int, Field(ge=1, le=_MAX_RESULTS)]
Text = Annotated[str, StringConstraints(strip_whitespace=True, max_length=_MAX_LETTERS)]
# One letter that is no space, neither to Python nor to Rust nor to JavaScript.
Sentence = Annotated[
    str, StringConstraints(strip_whitespace=True, max_length=_MAX_LETTERS, pattern=r"[^\s\x1c-\x1f\ufeff]")
]
_WEIGHT = "([1-9][0-9]{0,3}([.][0-9]{1,6})?|0?[.][0-9]{0,6}[1-9])"
ClassProbability = Annotated[
    tuple[str, float],
    WithJsonSchema(
        {"type": "array", "minItems": 2, "maxItems": 2, "items": {"anyOf": [{"type": "string"}, {"type": "number"}]}}
    ),
]
Feature = list[float]


# --- requests ----------------------------------------------------------------------------------------------------


class Settings(BaseModel):
    """Everything in a request but its images."""

    model_config = ConfigDict(strict=True, extra="forbid")


class PredictSettings(Settings):
    topk: Annotated[Whole, Field(description="how many classes to name")] = 3
    votes: Annotated[bool, Field(description="include the vote of each component")] = True
    inference: str = ""

    @classmethod
    def of(cls, inferences: tuple[str, ...]) -> "type[PredictSettings]":
        """These settings with the ways of inference that a model offers, the usual one first."""
        choices = WithJsonSchema({"type": "string", "enum": list(inferences)})
        description = "decoupled: the class feature alone" if len(inferences) > 1 else None
        kind: Any = Annotated[Literal[inferences], choices, Field(description=description)]  # type: ignore[valid-type]
        return create_model("PredictSettings", __base__=cls, inference=(kind, inferences[0]))


class SearchSettings(Settings):
    text: Annotated[Sentence, Field(description="search by this sentence")] = ""
    by: Annotated[Text, Field(description="components and their weights, such as color=0.7,shape=0.3")] = CLS
    label: Annotated[Text, Field(description="only images whose label contains this")] = ""
    k: Annotated[Whole, Field(description="how many images")] = 10

    @classmethod
    def of(cls, components: Sequence[str]) -> "type[SearchSettings]":
        """These settings for the components of a gallery. Only described so: `parse_by` refuses the rest in words."""
        one = f"({'|'.join(map(re.escape, components))})(={_WEIGHT})?"
        rule = Field(description=cls.model_fields["by"].description, json_schema_extra={"pattern": f"^{one}(,{one})*$"})
        return create_model("SearchSettings", __base__=cls, by=(Annotated[Text, rule], CLS))


class EmbedSettings(Settings):
    texts: Annotated[list[Sentence], Field(min_length=1, max_length=MOST_IMAGES), FailFast()] = []


SettingsKind = TypeVar("SettingsKind", bound=Settings)


def check_settings(values: dict[str, Any], model: type[SettingsKind], form: bool = False) -> SettingsKind:
    """The settings, or an error of one sentence. Unknown names are refused first: there may be millions of them."""
    for name in values:
        if name not in model.model_fields:
            raise DearError(f"There is no setting {name[:40]!r} here: choose from {', '.join(model.model_fields)}.")
    if form:
        kinds = {name: field.annotation for name, field in model.model_fields.items()}
        values = {name: _from_form(value) if kinds[name] in (int, bool) else value for name, value in values.items()}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        name = str(error.errors(include_url=False, include_input=False, include_context=False)[0]["loc"][0])
        raise DearError(f"{name} must be {_in_words(_rules(model)[name])}.") from None


def _rules(model: type[Settings]) -> dict[str, Any]:
    rules = model.model_json_schema()["properties"]
    for rule in rules.values():
        if not rule.get("default", True):  # what is left out is not what may be sent
            del rule["default"]
    return rules


def _in_words(rule: dict[str, Any]) -> str:
    if "enum" in rule:
        return f"one of {', '.join(rule['enum'])}"
    if rule["type"] == "integer":
        return f"a whole number from {rule['minimum']} to {rule['maximum']}"
    if rule["type"] == "boolean":
        return "true or false"
    if rule["type"] == "array":
        return f"a list of 1 to {rule['maxItems']} sentences, none of them empty or over {_MAX_LETTERS} letters"
    return f"{'a sentence' if 'pattern' in rule else 'text'} of at most {rule['maxLength']} letters"


def request_body(settings: type[Settings], images: int, instead: str = "") -> dict[str, Any]:
    """A form or JSON for OpenAPI: `settings`, and up to `images` images as files or in base64.

    `instead`: the setting that may be sent in place of images; where there can be many, also together with them.
    """
    rules = _rules(settings)
    description = f"{FORMATS_IN_WORDS}, at most {MAX_BYTES // 10**6} MB"
    in_form = {name: rule for name, rule in rules.items() if rule["type"] != "array"}

    def schema(name: str, image: dict[str, Any], rules: dict[str, Any]) -> dict[str, Any]:
        image = {"type": "string", "minLength": 1, "description": description, **image}
        field = image if images == 1 else {"type": "array", "minItems": 1, "maxItems": images, "items": image}
        needs = [{"required": [one]} for one in (name, instead) if one == name or one in rules]
        more = needs[0] if len(needs) == 1 else {"oneOf" if images == 1 else "anyOf": needs}
        return {"type": "object", "additionalProperties": False, "properties": {name: field, **rules}, **more}

    form = schema("image", {"format": "binary"}, in_form)
    name, base64 = "images" if images > 1 else "image", {"format": "byte", "maxLength": -(-MAX_BYTES // 3) * 4}
    return {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": form, "encoding": {"image": {"contentType": IMAGE_TYPES}}},
            "application/json": {"schema": schema(name, base64, rules)},
        },
    }


# --- responses ---------------------------------------------------------------------------------------------------


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Refusal(Strict):
    error: str = Field(description="one sentence that says what to do")


class Vote(Strict):
    component: str = Field(description="cls, color, ...")
    weight: float = Field(description="how much its vote counts")
    choice: str = Field(description="the class it chooses by itself")
    probability: float = Field(description="of its own choice")
    for_answer: float = Field(description="the probability it gives to the final answer")
    lead: float = Field(description="its share of the answer's lead over the next best class, in logits")


class Answer(Strict):
    choice: str
    probability: float
    top: list[ClassProbability] = Field(description="the likeliest classes with their probabilities")
    votes: list[Vote] = Field(default_factory=list, description="absent with votes=false")
    rejected: bool = Field(False, description="none of the classes; only with a decision on this")
    set: list[str] = Field([], description="the classes of which one is true, as promised; only with a decision")
    abstains: bool = Field(False, description="not sure enough to answer; only with a decision on this")


class Predictions(Strict):
    answers: list[Answer]


class Hit(Strict):
    path: str
    label: Annotated[str | None, _Nullable()]
    score: float = Field(description="the weighted mean of scores")
    scores: dict[str, float] = Field(description="cosine by component")


class Hits(Strict):
    hits: list[Hit]


class Embeddings(Strict):
    images: list[dict[str, Feature]] = Field(description="per image, the feature of each component")
    texts: list[Feature]


class GallerySize(Strict):
    name: str
    images: int


class Limits(Strict):
    images: int
    image_bytes: int
    request_bytes: int
    request_pixels: int


class About(Strict):
    dear: str = Field(description="the version")
    run: str
    backbone: str
    runtime: Literal["PyTorch", "ONNX"]
    classes: list[str]
    components: list[str]
    inferences: list[str]
    gallery: Annotated[GallerySize | None, _Nullable()]
    limits: Limits


class Health(Strict):
    status: str = Field(description="ok")
