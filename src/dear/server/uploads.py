"""The content of a request, as a form (multipart/form-data) or as JSON with base64; and what may be uploaded.

An image is judged by its size and its header before it is decoded, so that a small file cannot become gigabytes.
"""

import base64
import binascii
import itertools
import math
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from typing import Any, TypeVar

import msgspec
from PIL import Image

from dear.core.errors import DearError
from dear.data.decode import declared_pixels, open_bytes
from dear.server.limits import RefusedError
from dear.server.model_thread import MOST_IMAGES

T = TypeVar("T")
MAX_BYTES = 20_000_000
MAX_IMAGE_PIXELS = 40_000_000
MAX_REQUEST_PIXELS = 200_000_000
DECODE_SECONDS = 10.0
TOO_MANY_BYTES = f"The file has more than {MAX_BYTES // 10**6} MB: make the image smaller."
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
FORMATS_IN_WORDS = f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
IMAGE_TYPES = ", ".join(f"image/{name.lower()}" for name in _FORMATS)
_IMAGE_FIELDS = ("image", "images")
_UNREADABLE = f"This file cannot be read as an image ({{}}): choose a {FORMATS_IN_WORDS} file."
_TOO_MANY_IMAGES = f"A request takes at most {MOST_IMAGES} images: send several requests."
_NO_BASE64 = "An image in JSON must be the bytes of its file in base64."
_TOO_MANY_PIXELS = f"The images have more than {MAX_REQUEST_PIXELS // 10**6} million pixels: send fewer at once."
_TOO_SLOW = f"Decoding took more than {DECODE_SECONDS:g} seconds: send fewer or smaller images."
_MAX_PARTS = 2 * MOST_IMAGES
_MAX_VALUE = 1_000_000  # bytes of a setting in JSON
_JPEG, _SCAN, _MAX_SCANS = b"\xff\xd8", b"\xff\xda", 200


def open_upload(data: bytes, until: float | None = None) -> Image.Image:
    """The picture, RGB. Nothing is decoded before its declared size is known to be small enough.

    `until`: the moment of `time.monotonic` at which decoding is given up (default: DECODE_SECONDS from now).
    """
    if not data:
        raise DearError("The file is empty: choose an image.")
    if len(data) > MAX_BYTES:
        raise DearError(TOO_MANY_BYTES)
    if data.startswith(_JPEG) and data.count(_SCAN) > _MAX_SCANS:  # each is a pass over the whole picture
        raise DearError(f"The JPEG has more than {_MAX_SCANS} scans: save it again.")
    until = time.monotonic() + DECODE_SECONDS if until is None else until
    return open_bytes(_UntilThen(data, until), _UNREADABLE, _FORMATS, MAX_IMAGE_PIXELS)


def open_uploads(files: Sequence[bytes], prepare: Callable[[Image.Image], T]) -> list[T]:
    """The pictures of one request, prepared, within a budget of pixels and of time.

    A picture is held only until it is prepared.
    """
    until, count = time.monotonic() + DECODE_SECONDS, len(files)
    if count > 1 and sum(declared_pixels(data, _FORMATS) for data in files) > MAX_REQUEST_PIXELS:
        raise RefusedError(413, _TOO_MANY_PIXELS)
    prepared = []
    for number, data in enumerate(files, 1):
        try:
            prepared.append(prepare(open_upload(data, until)))
        except DearError as error:
            raise DearError(f"Image {number} of {count}: {error}" if count > 1 else str(error)) from None
        if time.monotonic() > until:
            raise RefusedError(413, _TOO_SLOW)
    return prepared


class _UntilThen(BytesIO):
    """A file that cannot be read after a moment: decoders read it in parts, and so end."""

    def __init__(self, data: bytes, until: float) -> None:
        super().__init__(data)
        self._until = until

    def read(self, size: int | None = -1, /) -> bytes:
        if time.monotonic() > self._until:
            raise TimeoutError("it takes too long to decode")
        return super().read(size)


@dataclass
class Upload:
    """Image files as they were sent, and all other values by name, not yet checked; all of them text in a form."""

    images: list[bytes] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    form: bool = False


def parse_upload(content_type: str, body: bytes, names: Collection[str]) -> Upload:
    """The content of a body; `names` are the settings that the request may have."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/json":
        return _parse_json(body, tuple(names))
    if media_type == "multipart/form-data":
        return _parse_form(content_type, body)
    raise RefusedError(415, "Send a form (multipart/form-data) or application/json.")


def _parse_json(body: bytes, names: tuple[str, ...]) -> Upload:
    """Parses in two steps: a value only if its name is known, and its kind and size are possible."""
    try:
        parts = _json_object(names).decode(body)
        images = [image for name in _IMAGE_FIELDS for image in _images_in_json(getattr(parts, name))]
        settings = {name: msgspec.json.decode(raw) for name in names if (raw := _small(getattr(parts, name), name))}
    except msgspec.ValidationError as error:
        if unknown := re.search("unknown field `(.*)`", str(error), re.DOTALL):
            raise DearError(f"There is no setting {unknown[1][:40]!r} here: choose from {', '.join(names)}.") from None
        raise DearError('The request must be a JSON object, such as {"images": ["BASE64"]}.') from None
    except (ValueError, RecursionError):
        raise DearError("The request is not valid JSON.") from None
    if len(images) > MOST_IMAGES:
        raise DearError(_TOO_MANY_IMAGES)
    return Upload([_decode_base64(image) for image in images], settings)


def _images_in_json(raw: msgspec.Raw) -> list[str]:
    if not raw:
        return []
    if bytes(raw).count(b'"') > 2 * MOST_IMAGES + 2:  # two for each: base64 has none
        raise DearError(_TOO_MANY_IMAGES)
    try:
        value = msgspec.json.decode(raw, type=str | list[str])
    except msgspec.ValidationError:
        raise DearError(_NO_BASE64) from None
    if value == []:
        raise DearError("The list of images is empty: send an image, or no list.")
    return value if isinstance(value, list) else [value]


def _small(raw: msgspec.Raw, name: str) -> msgspec.Raw:
    if len(raw) > _MAX_VALUE:
        raise DearError(f"{name} has more than {_MAX_VALUE // 10**6} MB: send less.")
    return raw


@cache
def _json_object(names: tuple[str, ...]) -> "msgspec.json.Decoder[Any]":
    """Decodes an object with these names and those of images, and no others; its values stay unparsed."""
    fields = [(name, msgspec.Raw, msgspec.Raw()) for name in (*_IMAGE_FIELDS, *names)]
    return msgspec.json.Decoder(msgspec.defstruct("Request", fields, forbid_unknown_fields=True))


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)  # many programs break it into lines
    except (ValueError, binascii.Error):
        raise DearError(_NO_BASE64) from None


def _parse_form(content_type: str, body: bytes) -> Upload:
    import python_multipart
    from python_multipart.exceptions import FormParserError

    upload, numbers = Upload(form=True), itertools.count(1)

    def count() -> None:
        if len(upload.images) > MOST_IMAGES:
            raise DearError(_TOO_MANY_IMAGES)
        if next(numbers) > _MAX_PARTS:
            raise DearError(f"A form takes at most {_MAX_PARTS} parts: send several requests.")

    def on_field(part: Any) -> None:
        count()
        upload.values[_decode_text(part.field_name)] = _decode_text(part.value)

    def on_file(part: Any) -> None:
        if _decode_text(part.field_name) not in _IMAGE_FIELDS:
            raise DearError("A file in the form must be called image.")
        part.file_object.seek(0)
        upload.images.append(part.file_object.read())
        count()

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
