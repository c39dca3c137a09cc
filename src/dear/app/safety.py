"""What may be uploaded: judged by its size and its header, so that a small file cannot become gigabytes."""

import io

from PIL import Image

from dear.data.dataset import UNREADABLE
from dear.errors import DearError

MAX_BYTES = 20_000_000
MAX_PIXELS = 40_000_000
# Named one by one: Pillow also knows formats that start other programs, or that are not pictures.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")

TOO_MANY_BYTES = f"The file has more than {MAX_BYTES // 10**6} MB: make the image smaller."
_TOO_MANY_PIXELS = f"The image has more than {MAX_PIXELS // 10**6} million pixels: make it smaller."


def open_upload(data: bytes) -> Image.Image:
    """The picture, RGB. Nothing is decoded before its declared size is known to be small enough."""
    if not data:
        raise DearError("The file is empty: choose an image.")
    if len(data) > MAX_BYTES:
        raise DearError(TOO_MANY_BYTES)
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:  # reads the header only
            if image.width * image.height > MAX_PIXELS:
                raise DearError(_TOO_MANY_PIXELS)
            return image.convert("RGB")
    except Image.DecompressionBombError:  # Pillow's own limit, which is higher
        raise DearError(_TOO_MANY_PIXELS) from None
    except UNREADABLE:
        known = f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
        raise DearError(f"This file cannot be read as an image: choose a {known} file.") from None
