"""Pictures for the page: their sources, and their encoding inside a response, so that no file is ever served."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from PIL import Image, ImageOps

from dear.heads.pictures import PictureList, world_pictures

if TYPE_CHECKING:
    from dear.gallery import Gallery

T = TypeVar("T")
_SAMPLE = 120  # pictures from which the extremes of a head are chosen


@dataclass(frozen=True)
class StoredPicture:
    """A picture of the gallery, opened when it is needed."""

    gallery: "Gallery"
    path: str

    def open(self) -> Image.Image:
        return self.gallery.image(self.path)

    def content(self) -> bytes:
        return self.open().tobytes()


def sample_pictures(gallery: "Gallery | None", model: str) -> PictureList | None:
    """Pictures to inspect heads with: from the gallery, or from Attribute World for the model trained on it."""
    if gallery is not None and len(gallery):
        paths = sorted(gallery.paths())
        stored = [StoredPicture(gallery, path) for path in paths]
        return PictureList(f"the gallery {gallery.folder.name}", stored, paths).spread(_SAMPLE)
    return world_pictures(_SAMPLE) if model == "dear-mini" else None


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most `count` items at even distances, each from the middle of its part of the list."""
    count = min(count, len(items))
    return [items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)]


def data_url(picture: Image.Image, size: int) -> str:
    """A copy of the picture, `size` pixels on its longer side, as a data URL.

    A small picture is enlarged, too: the result is smoother than the browser's.
    """
    fitted = ImageOps.contain(picture.convert("RGB"), (size, size), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    fitted.save(out, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")
