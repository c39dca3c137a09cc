"""What comes with a request: images and settings, as a form (multipart/form-data) or as JSON with base64 in it."""

import base64
import binascii
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dear.core.errors import DearError
from dear.server.model_thread import BATCH
from dear.server.responses import RefusedError

_IMAGES = ("image", "images")
_LONGEST = 2000  # letters of a sentence


@dataclass
class Upload:
    """The images as they were sent, and all else by its name; `settings` are those that make sense."""

    images: list[bytes] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def require(self, settings: Sequence[str]) -> None:
        if unknown := [name for name in self.values if name not in settings]:
            raise DearError(f"There is no setting {unknown[0][:40]!r} here: choose from {', '.join(settings)}.")

    def number(self, name: str, default: int, most: int) -> int:
        value = self.values.get(name, default)
        try:
            number = int(value) if isinstance(value, str) and len(value) < 20 else value
        except ValueError:
            number = None
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= most:
            raise DearError(f"{name} must be a whole number from 1 to {most}.")
        return number

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name, default)
        value = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
        if not isinstance(value, bool):
            raise DearError(f"{name} must be true or false.")
        return value

    def choice(self, name: str, options: Sequence[str]) -> str:
        value = self.values.get(name, options[0])
        if value not in options:
            raise DearError(f"{name} must be one of {', '.join(options)}.")
        return value

    def text(self, name: str, default: str = "") -> str:
        return _text(name, self.values.get(name, default))

    def texts(self, name: str) -> list[str]:
        values = self.values.get(name, [])
        if not isinstance(values, list) or len(values) > BATCH:
            raise DearError(f"{name} must be a list of at most {BATCH} sentences.")
        texts = [_text(name, value) for value in values]
        if not all(texts):
            raise DearError(f"One of the {name} is empty.")
        return texts


def parse_upload(content_type: str, body: bytes) -> Upload:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        upload = _from_json(body)
    elif kind == "multipart/form-data":
        upload = _from_form(content_type, body)
    else:
        raise RefusedError(415, "Send a form (multipart/form-data) or application/json.")
    if len(upload.images) > BATCH:
        raise DearError(f"A request takes at most {BATCH} images, and this one has {len(upload.images)}: send several.")
    return upload


def _from_json(body: bytes) -> Upload:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise DearError("The request is not valid JSON.") from None
    if not isinstance(values, dict):
        raise DearError('The request must be a JSON object, such as {"images": ["BASE64"]}.')
    images: list[Any] = []
    for name in _IMAGES:
        given = values.pop(name, [])
        images += given if isinstance(given, list) else [given]
    return Upload([_from_base64(image) for image in images[: BATCH + 1]], values)


def _from_base64(text: Any) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)  # many programs break it into lines
    except (AttributeError, ValueError, binascii.Error):
        raise DearError("An image in JSON must be the bytes of its file in base64.") from None


def _from_form(content_type: str, body: bytes) -> Upload:
    import python_multipart
    from python_multipart.exceptions import FormParserError

    upload = Upload()

    def on_field(part: Any) -> None:
        upload.values[_decoded(part.field_name)] = _decoded(part.value)

    def on_file(part: Any) -> None:
        if _decoded(part.field_name) not in _IMAGES:
            raise DearError("A file in the form must be called image.")
        part.file_object.seek(0)
        upload.images.append(part.file_object.read())
        if len(upload.images) > BATCH:
            raise DearError(f"A request takes at most {BATCH} images: send several.")

    kind, options = python_multipart.multipart.parse_options_header(content_type)
    in_memory = {"MAX_MEMORY_FILE_SIZE": math.inf}
    try:
        parser = python_multipart.FormParser(
            kind.decode("latin-1"), on_field, on_file, boundary=options.get(b"boundary"), config=in_memory
        )
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise DearError("The form cannot be read: send it as multipart/form-data with a boundary.") from None
    return upload


def _decoded(given: bytes | None) -> str:
    try:
        return (given or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise DearError("The form must be in UTF-8.") from None


def _text(name: str, value: Any) -> str:
    try:
        if not isinstance(value, str) or len(value.encode()) > 4 * _LONGEST or len(value) > _LONGEST:
            raise ValueError
    except ValueError:  # half of a surrogate pair is not text, either
        raise DearError(f"{name} must be text of at most {_LONGEST} letters.") from None
    return value.strip()
