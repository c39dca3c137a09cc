"""Opens pictures and turns them into pixels: the only code that decodes image files.

The kind and the header of a file are checked before anything is decoded, so that no file can hang the program or fill
the memory. Any error of a decoder becomes one sentence. Pictures are upright and in RGB.
"""

import io
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Union

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from dear.core.errors import DearError, library_errors
from dear.core.files import open_regular
from dear.data.columns import IMAGE_COLUMNS, find_column

if TYPE_CHECKING:
    from torch import Tensor
    from torchvision.transforms import Compose, Normalize

    from dear.data.dataset import Picture

# Named one by one: Pillow also knows formats that start other programs, or that are not pictures.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
MOST_PIXELS = 178_956_970  # Pillow's own limit
# Backbones scale the shorter side to their own size S, so a thin picture becomes S x S x its proportion: 30 MB at 224.
MAX_PROPORTION = 200

ImageLike = Union[str, Path, Image.Image, np.ndarray, "Tensor", bytes, Mapping[str, Any]]
"""A file, an open picture, an array [height, width, 3 or 1] or [height, width] or a tensor [3 or 1, height, width] of
uint8 or of numbers in 0..1, the content of an image file, or a row of a table that has one of these."""

_OVERSAMPLING = 2  # a picture decoded at a reduced size still has at least this many times the pixels needed, each way

_PIXELS_AT_ONCE = 2**20
_NOT_THIS_KIND = (SyntaxError, IndexError, TypeError, struct.error)  # raised by a decoder of Pillow at a file's start
_16_BIT_MODES = ("I;16", "I;16B", "I;16L", "I;16N")


class Decoder:
    """Turns image files and open pictures into pixels [3, height, width] for one `transform`.

    `fast`: decode a large JPEG at a reduced size and scale with PyTorch's kernels for bytes, which differ from Pillow's
    by one of 255 levels here and there. Features then agree to about 0.98 with the exact ones. Only OpenCLIP's usual
    transform has a fast form; any other one is applied as it is.
    """

    def __init__(self, transform: "Callable[[Image.Image], Tensor]", fast: bool = False) -> None:
        fast_transform = _fast_form(transform) if fast else None
        self.side = fast_transform.size if fast_transform else None  # of `open_picture`
        self.transform = fast_transform or transform

    def __call__(self, image: "str | Path | Image.Image") -> "Tensor":
        picture = as_rgb(image) if isinstance(image, Image.Image) else open_picture(image, self.side)
        return self.transform(picture)


def open_picture(path: str | Path, side: int | None = None) -> Image.Image:
    """The picture in a file.

    `side`: the length that the shorter side will be scaled to. A JPEG far larger than that is decoded at a half, a
    quarter or an eighth of its size, with at least twice the pixels needed each way. None: at its full size.
    """
    sentence = f"The image {path} cannot be read ({{}}): repair or remove it."
    with _errors_as(sentence), open_regular(path) as file:
        return _decode_fully(_header(file, FORMATS), MOST_PIXELS, side and _OVERSAMPLING * side)


def why_unreadable(picture: "Picture") -> str:
    """The reason why a picture cannot be opened, without the sentence around it; empty if it can."""
    try:
        picture.open()
    except DearError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        return _reason(cause)
    return ""


def has_frames(path: Path) -> bool:
    """Whether a file has more pictures than its first, which is the one that is opened."""
    with suppress(Exception), open_regular(path) as file:  # decoders raise many kinds; it is refused when it is opened
        return bool(getattr(_header(file, FORMATS), "is_animated", False))
    return False


def open_bytes(
    data: bytes | io.BytesIO, sentence: str, formats: tuple[str, ...] = FORMATS, pixels: int = MOST_PIXELS
) -> Image.Image:
    """The picture in a file's content. `sentence`: the error if there is none, with {} in place of the reason."""
    with _errors_as(sentence):
        return _decode_fully(_header(io.BytesIO(data) if isinstance(data, bytes) else data, formats), pixels)


def declared_pixels(data: bytes, formats: tuple[str, ...] = FORMATS) -> int:
    """The number of pixels that the header of an image file names; 0 if the file is no image."""
    with suppress(Exception):  # decoders raise many kinds; the file is refused when it is opened
        image = _header(io.BytesIO(data), formats)
        return image.width * image.height
    return 0


def as_rgb(image: Image.Image) -> Image.Image:
    """An open picture, upright and in RGB, under the same rules as one in a file."""
    with _errors_as("The image in memory cannot be used ({}): give another."):
        return _decode_fully(image.copy(), MOST_PIXELS)


def open_image(image: ImageLike) -> Image.Image:
    """An upright RGB picture of anything that counts as an image."""
    image = as_image(image)
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            shape = f"{list(image.shape)} of {image.dtype}"
            raise DearError(f"An image array must have the shape [height, width, 3] and the type uint8, not {shape}.")
        image = Image.fromarray(np.ascontiguousarray(image))
    if isinstance(image, Image.Image):
        return as_rgb(image)
    if isinstance(image, bytes):
        return open_bytes(image, "These bytes cannot be read as an image ({}): give the content of an image file.")
    if isinstance(image, str | Path):
        return open_picture(image)
    kinds = "a path, a PIL image, an array [height, width, 3], a tensor [3, height, width] or bytes"
    raise DearError(f"An image must be {kinds}, not {type(image).__name__}.")


def as_image(value: Any) -> Any:
    """The image in a value or in a row of a table: a path, bytes or a picture unchanged, all pixels as an array
    [height, width, 3] of uint8."""
    if isinstance(value, Mapping):
        if {"bytes", "path"} >= value.keys():  # of Hugging Face
            value = value.get("bytes") or value.get("path")
        else:
            return as_image(value[find_column(value, None, IMAGE_COLUMNS, "image")])
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if not hasattr(value, "__array__") or isinstance(value, Image.Image):
        return value
    tensor = hasattr(value, "detach")
    with library_errors("The pixels cannot be read"):
        if tensor:  # NumPy has no bfloat16
            value = value.detach().cpu().float() if "bfloat16" in str(value.dtype) else value.detach().cpu()
        array = np.asarray(value)
    if tensor and array.ndim == 3:
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.dtype.kind == "f" and array.size:
        if not (array.min() >= 0 and array.max() <= 1):
            found = f"{array.min():.4g} to {array.max():.4g}"
            raise DearError(
                f"Pixels that are no whole numbers must be in 0..1, not in {found}: give images before they are "
                "normalised (transform=None), or whole numbers as uint8."
            )
        array = np.round(array * 255).astype(np.uint8)
    return np.repeat(array, 3, 2) if array.ndim == 3 and array.shape[2] == 1 else array


@contextmanager
def _errors_as(sentence: str) -> Iterator[None]:
    """Raises any error as a DearError with `sentence`, in which {} becomes the reason."""
    try:
        yield
    except Exception as error:  # decoders raise many kinds
        before, _, after = sentence.rpartition("{}")  # the last: a file's name may have any characters
        raise DearError(before + _reason(error) + after) from error


def _header(file: IO[bytes], formats: tuple[str, ...]) -> Image.Image:
    """The picture in a file, not yet decoded.

    This is `Image.open` without its warning about many pixels, which only a filter of the whole process could silence:
    `_decode_fully` has a limit instead.
    """
    start = file.read(16)
    for kind in _available(formats):
        factory, accepts = Image.OPEN[kind]
        with suppress(*_NOT_THIS_KIND):
            accepted = accepts is None or accepts(start)
            if accepted and not isinstance(accepted, str):  # a text: the reason why it cannot be decoded here
                file.seek(0)
                return factory(file, "")
    raise UnidentifiedImageError


@cache
def _available(formats: tuple[str, ...]) -> tuple[str, ...]:
    """The formats that this Pillow was built with."""
    Image.init()
    return tuple(name for name in formats if name in Image.OPEN)


def _decode_fully(image: Image.Image, pixels: int, enough: int | None = None) -> Image.Image:
    """The whole picture. `pixels`: the largest number allowed; `enough`: pixels of the shorter side that suffice."""
    shorter, longer = sorted(image.size)
    if not shorter:
        raise ValueError("it has no pixels")
    if shorter * longer > pixels:
        raise ValueError(f"it has more than {pixels // 10**6} million pixels")
    if longer > MAX_PROPORTION * shorter:
        raise ValueError(f"with {image.width} x {image.height} pixels it is too thin")
    kind = image.format
    if enough is not None:
        image.draft(None, (enough, enough))  # the JPEG is still read to its end, so damage is noticed
    image.load()
    return _to_rgb(_upright(image), kind)


def _upright(image: Image.Image) -> Image.Image:
    """The picture, rotated as the EXIF orientation says; a damaged orientation is ignored."""
    with suppress(Exception):
        ImageOps.exif_transpose(image, in_place=True)  # not a copy: it may have gigabytes
    return image


def _to_rgb(image: Image.Image, kind: str | None) -> Image.Image:
    """The picture in RGB. Pixels of 16 bits are scaled to 8; Pillow would clip them: grey would be white."""
    if image.mode in _16_BIT_MODES or (image.mode == "I" and kind in ("PNG", "PPM")):  # both are scaled to 16 bits
        return _eight_bits(image).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, of an unknown range; save it with 8 or 16")
    return image if image.mode == "RGB" else image.convert("RGB")  # convert would copy it


def _eight_bits(image: Image.Image) -> Image.Image:
    """A grey picture of 16 bits with 8, some rows at a time: all at once would take many times its memory."""
    eight, rows = Image.new("L", image.size), max(1, _PIXELS_AT_ONCE // image.width)
    for top in range(0, image.height, rows):
        part = image.crop((0, top, image.width, min(top + rows, image.height)))
        values = np.asarray(part).astype(np.uint32)
        eight.paste(Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8)), (0, top))
    return eight


def _reason(error: BaseException) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"it is not an image in one of the formats {', '.join(FORMATS)}"
    text = str(getattr(error, "strerror", None) or error)
    return " ".join(text.split()).rstrip(".")[:300] or type(error).__name__


class _FastTransform:
    """Scales the shorter side to `size` (bicubic), crops the centre and normalises. `exact` enlarges small pictures."""

    def __init__(self, size: int, normalize: "Normalize", exact: "Compose") -> None:
        import torch

        self.size, self._exact = size, exact
        mean, std = (torch.tensor(values)[:, None, None] for values in (normalize.mean, normalize.std))
        self._scale, self._shift = 1 / (255 * std), -mean / std  # [3, 1, 1]

    def __call__(self, picture: Image.Image) -> "Tensor":
        import torch
        from torchvision.transforms.functional import center_crop

        shorter, longer = sorted(picture.size)
        if shorter <= self.size:
            return self._exact(picture)
        long = int(self.size * longer / shorter)
        scaled = (self.size, long) if picture.width > picture.height else (long, self.size)  # height, width
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]  # not contiguous: the fast kernels' layout
        pixels = torch.nn.functional.interpolate(pixels, scaled, mode="bicubic", antialias=True)[0]
        return center_crop(pixels, [self.size]).contiguous().float().mul_(self._scale).add_(self._shift)


def _fast_form(transform: Any) -> _FastTransform | None:
    """The fast form of OpenCLIP's usual transform; None for any other."""
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize

    match transform.transforms if isinstance(transform, Compose) else []:
        case [Resize(size=int(size)) as resize, CenterCrop() as crop, *_, Normalize() as normalize]:
            usual = resize.interpolation is InterpolationMode.BICUBIC and resize.max_size is None
            return _FastTransform(size, normalize, transform) if usual and tuple(crop.size) == (size, size) else None
    return None
