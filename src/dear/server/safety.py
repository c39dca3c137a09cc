"""What may be uploaded: judged by its size and its header, so that a small file cannot become gigabytes."""

from PIL import Image

from dear.core.errors import DearError
from dear.data.decode import open_bytes

MAX_BYTES = 20_000_000
MAX_PIXELS = 40_000_000
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")

TOO_MANY_BYTES = f"The file has more than {MAX_BYTES // 10**6} MB: make the image smaller."


def open_upload(data: bytes) -> Image.Image:
    """The picture, RGB. Nothing is decoded before its declared size is known to be small enough."""
    if not data:
        raise DearError("The file is empty: choose an image.")
    if len(data) > MAX_BYTES:
        raise DearError(TOO_MANY_BYTES)
    known = f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
    sentence = f"This file cannot be read as an image ({{}}): choose a {known} file."
    return open_bytes(data, sentence, _FORMATS, MAX_PIXELS)
