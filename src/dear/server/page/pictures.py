"""Pictures for the page: where they come from, and how they travel (inside the answer, so no file is ever served)."""

import base64
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image, ImageOps

from dear.heads.picture_list import PictureList, world_pictures

if TYPE_CHECKING:
    from dear.gallery import Gallery

_SAMPLE = 120  # pictures among which those that activate a head most are sought


@dataclass(frozen=True)
class StoredPicture:
    """A picture of the gallery, opened when it is needed."""

    gallery: "Gallery"
    path: str

    def open(self) -> Image.Image:
        return self.gallery.image(self.path)


def sample_pictures(gallery: "Gallery | None", model: str) -> PictureList | None:
    """Pictures to look at heads with: the gallery's, or Attribute World's for the model that was made on it."""
    if gallery is not None and len(gallery):
        paths = sorted(gallery.paths())
        stored = [StoredPicture(gallery, path) for path in paths]
        return PictureList(f"the gallery {gallery.folder.name}", stored, paths).spread(_SAMPLE)
    return world_pictures(_SAMPLE) if model == "dear-mini" else None


def data_url(picture: Image.Image, size: int) -> str:
    """A copy with `size` pixels on its longer side, as a URL that holds it.

    Small pictures are enlarged too: smoother here than by the browser.
    """
    fitted = ImageOps.contain(picture.convert("RGB"), (size, size), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    fitted.save(out, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")
