"""The one place where pictures are opened: upright, in RGB, and nothing that would hang, fill the memory or lie.

A file is judged by its kind and its header before anything is decoded. Whatever a decoder raises is said in a sentence.
"""

import io
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from dear.core.errors import DearError

# Named one by one: Pillow also knows formats that start other programs, or that are not pictures.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
MAX_PIXELS = 178_956_970  # Pillow's own limit
# Backbones scale the shorter side to their own size S, so a thin picture becomes S x S x its proportion: 30 MB at 224.
MAX_PROPORTION = 200

warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit above decides

_SPARE = 2  # a picture of reduced size still has so many pixels, each way, for one that a reader needs

_DEEP = ("I;16", "I;16B", "I;16L", "I;16N")


def open_picture(path: str | Path, side: int | None = None) -> Image.Image:
    """The picture in a file.

    `side`: the shorter side that a reader scales it to. A JPEG far larger than that is decoded at a half, a quarter or
    an eighth of its size, with at least twice the pixels each way that the reader needs. None: as it is.
    """
    with _said(f"The image {path} cannot be read ({{}}): repair or remove it.", MAX_PIXELS):
        return _from_file(path, side and _SPARE * side)


def why_unreadable(path: str | Path) -> str:
    """Empty if the image can be read to its end."""
    try:
        _from_file(path, at_least=1)
    except Exception as error:  # decoders raise many kinds
        return _reason(error, MAX_PIXELS)
    return ""


def open_bytes(data: bytes, sentence: str, formats: tuple[str, ...] = FORMATS, pixels: int = MAX_PIXELS) -> Image.Image:
    """The picture that a file's content is; `sentence` is said if it is none, with the reason in the place of {}."""
    with _said(sentence, pixels), Image.open(io.BytesIO(data), formats=_known(formats)) as image:
        return _decoded(image, pixels)


def as_rgb(image: Image.Image) -> Image.Image:
    """A picture that is in memory already, under the same rules."""
    with _said("The image in memory cannot be used ({}): give another.", MAX_PIXELS):
        return _decoded(image.copy(), MAX_PIXELS)


@contextmanager
def _said(sentence: str, pixels: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # decoders raise many kinds
        before, _, after = sentence.rpartition("{}")  # the last: a file's name may have any letters
        raise DearError(before + _reason(error, pixels) + after) from error


def _from_file(path: str | Path, at_least: int | None = None) -> Image.Image:
    kind = os.stat(path).st_mode
    if not stat.S_ISREG(kind):  # opening a pipe waits for somebody to write
        raise ValueError("it is a folder" if stat.S_ISDIR(kind) else "it is not a regular file")
    with Image.open(path, formats=_known(FORMATS)) as image:
        return _decoded(image, MAX_PIXELS, at_least)


@cache
def _known(formats: tuple[str, ...]) -> tuple[str, ...]:
    """Those of them that this Pillow was built with."""
    Image.init()
    return tuple(name for name in formats if name in Image.OPEN)


def _decoded(image: Image.Image, pixels: int, at_least: int | None = None) -> Image.Image:
    """`at_least`: pixels of the shorter side that suffice."""
    shorter, longer = sorted(image.size)
    if not shorter:
        raise ValueError("it has no pixels")
    if shorter * longer > pixels:
        raise Image.DecompressionBombError
    if longer > MAX_PROPORTION * shorter:
        raise ValueError(f"with {image.width} x {image.height} pixels it is too thin")
    kind = image.format
    if at_least is not None:
        image.draft(None, (at_least, at_least))  # a JPEG is read to its end all the same, but made small
    image.load()
    return _to_rgb(_upright(image), kind)


def _upright(image: Image.Image) -> Image.Image:
    """As a camera's note on how it was held says; a note that is damaged says nothing."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image


def _to_rgb(image: Image.Image, kind: str | None) -> Image.Image:
    """Pillow cuts off what exceeds 8 bits: a grey picture of 16 would be white."""
    if image.mode in _DEEP or (image.mode == "I" and kind in ("PNG", "PPM")):  # both are scaled to 16 bits
        values = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, of a range that is not known; save it with 8 or 16")
    return image.convert("RGB")


def _reason(error: Exception, pixels: int) -> str:
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more than {pixels // 10**6} million pixels"
    if isinstance(error, UnidentifiedImageError):
        return f"it is no image, or none of {', '.join(FORMATS)}"
    text = str(getattr(error, "strerror", None) or error)
    return " ".join(text.split()).rstrip(".")[:300] or type(error).__name__
