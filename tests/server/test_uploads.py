"""What may be uploaded as an image, and what is refused before it is decoded."""

import io

import pytest
from PIL import Image

from dear.core.errors import DearError
from dear.server.uploads import MAX_BYTES, open_upload


def encoded(picture: Image.Image, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    picture.save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_usual_images_are_taken_as_rgb(kind: str) -> None:
    picture = open_upload(encoded(Image.new("L", (9, 5), 100), kind))
    assert (picture.mode, picture.size) == ("RGB", (9, 5))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "The file is empty"),
        (b"not an image", "cannot be read as an image .*: choose a JPEG, PNG"),
        (encoded(Image.new("RGB", (64, 64)))[:60], "cannot be read as an image"),
        (encoded(Image.new("RGB", (64, 64)), "PPM"), "cannot be read as an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot be read as an image"),
        (b"\xff" * (MAX_BYTES + 1), "more than 20 MB"),
    ],
)
def test_what_is_no_image_is_refused_in_one_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(DearError, match=sentence):
        open_upload(data)


@pytest.mark.parametrize("size", [(6400, 6300), (60_000, 60_000)])
def test_too_many_pixels_are_refused_before_they_are_decoded(size, monkeypatch, png_header) -> None:
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(DearError, match="more than 40 million pixels"):
        open_upload(png_header(*size))
