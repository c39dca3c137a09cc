"""The content of a request, as a form (multipart/form-data) or as JSON with base64; and what may be uploaded.

An image is judged by its size and its header before it is decoded, so that a small file cannot become gigabytes.
"""

import base64
import binascii
import json
import math
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from dear.core.errors import DearError
from dear.data.decode import open_bytes
from dear.server.model_thread import BATCH
from dear.server.responses import RefusedError

MAX_BYTES = 20_000_000
MAX_PIXELS = 40_000_000
TOO_MANY_BYTES = f"The file has more than {MAX_BYTES // 10**6} MB: make the image smaller."
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
FORMATS_IN_WORDS = f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
_IMAGE_FIELDS = ("image", "images")


def open_upload(data: bytes) -> Image.Image:
    """The picture, RGB. Nothing is decoded before its declared size is known to be small enough."""
    if not data:
        raise DearError("The file is empty: choose an image.")
    if len(data) > MAX_BYTES:
        raise DearError(TOO_MANY_BYTES)
    sentence = f"This file cannot be read as an image ({{}}): choose a {FORMATS_IN_WORDS} file."
    return open_bytes(data, sentence, _FORMATS, MAX_PIXELS)


@dataclass
class Upload:
    """Image files as they were sent, and all other values by name, not yet checked."""

    images: list[bytes] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)


def parse_upload(content_type: str, body: bytes) -> Upload:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/json":
        upload = _parse_json(body)
    elif media_type == "multipart/form-data":
        upload = _parse_form(content_type, body)
    else:
        raise RefusedError(415, "Send a form (multipart/form-data) or application/json.")
    if len(upload.images) > BATCH:
        raise DearError(f"A request takes at most {BATCH} images: send several requests.")
    return upload


def _parse_json(body: bytes) -> Upload:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise DearError("The request is not valid JSON.") from None
    if not isinstance(values, dict):
        raise DearError('The request must be a JSON object, such as {"images": ["BASE64"]}.')
    images: list[Any] = []
    for name in _IMAGE_FIELDS:
        value = values.pop(name, [])
        images += value if isinstance(value, list) else [value]
    return Upload([_decode_base64(image) for image in images[: BATCH + 1]], values)


def _decode_base64(text: Any) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)  # many programs break it into lines
    except (AttributeError, ValueError, binascii.Error):
        raise DearError("An image in JSON must be the bytes of its file in base64.") from None


def _parse_form(content_type: str, body: bytes) -> Upload:
    import python_multipart
    from python_multipart.exceptions import FormParserError

    upload = Upload()

    def on_field(part: Any) -> None:
        upload.values[_decode_text(part.field_name)] = _decode_text(part.value)

    def on_file(part: Any) -> None:
        if _decode_text(part.field_name) not in _IMAGE_FIELDS:
            raise DearError("A file in the form must be called image.")
        part.file_object.seek(0)
        upload.images.append(part.file_object.read())
        if len(upload.images) > BATCH:
            raise DearError(f"A request takes at most {BATCH} images: send several requests.")

    media_type, options = python_multipart.multipart.parse_options_header(content_type)
    in_memory = {"MAX_MEMORY_FILE_SIZE": math.inf}
    try:
        parser = python_multipart.FormParser(
            media_type.decode("latin-1"), on_field, on_file, boundary=options.get(b"boundary"), config=in_memory
        )
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise DearError("The form cannot be read: send it as multipart/form-data with a boundary.") from None
    return upload


def _decode_text(data: bytes | None) -> str:
    try:
        return (data or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise DearError("The form must be in UTF-8.") from None
