"""Uploads: images that are taken, and bodies that are refused before anything is decoded."""

import io
import time
import tracemalloc

import pytest
from PIL import Image, ImageFile

from dear.core.errors import DearError
from dear.server.uploads import MAX_BYTES, open_upload, open_uploads, parse_upload


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
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(DearError, match="more than 40 million pixels"):
        open_upload(png_header(*size))


# --- a request as a whole: parts, keys, pixels and time ---------------------------------------------------------


def test_all_images_of_a_request_share_a_budget_of_pixels(monkeypatch, png_header) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(DearError, match="more than 200 million pixels: send fewer") as caught:
        open_uploads([png_header(6300, 6300)] * 6, lambda image: image)
    assert caught.value.status == 413


def test_decoding_has_a_deadline(monkeypatch) -> None:
    data = encoded(Image.effect_noise((600, 600), 50))
    with pytest.raises(DearError, match="it takes too long to decode"):
        open_upload(data, until=0.0)
    assert open_uploads([data, data], lambda image: image.size) == [(600, 600)] * 2
    monkeypatch.setattr("dear.server.uploads.DECODE_SECONDS", -1.0)
    with pytest.raises(DearError, match=r"Image 1 of 2: .*too long"):
        open_uploads([data, data], lambda image: image)
    monkeypatch.setattr("dear.server.uploads.DECODE_SECONDS", 0.5)
    with pytest.raises(DearError, match=r"Decoding took more than .* send fewer or smaller"):
        open_uploads([data, data], lambda image: time.sleep(0.6))


def test_a_jpeg_of_endless_scans_is_refused() -> None:
    """Each scan of a progressive JPEG has a few bytes and costs a pass over all pixels."""
    out = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(out, "JPEG", progressive=True)
    usual = out.getvalue()
    assert open_upload(usual).size == (64, 64)
    with pytest.raises(DearError, match="more than 200 scans: save it again"):
        open_upload(usual[:-2] + usual[usual.rindex(b"\xff\xda") : -2] * 200 + usual[-2:])


PART = b'--a\r\nContent-Disposition: form-data; name="topk"\r\n\r\n1\r\n'
HOSTILE = {
    "objects": (b"[" + b"{}," * 10**6 + b"{}]", "must be a JSON object"),
    "images that are objects": (b'{"images":[' + b"{}," * 10**6 + b"{}]}", "in base64"),
    "images that are numbers": (b'{"images":[' + b"1," * 10**6 + b"1]}", "in base64"),
    "empty images": (b'{"images":[' + b'"",' * 10**6 + b'""]}', "at most 32 images"),
    "a setting of objects": (b'{"topk":[' + b"{}," * 10**6 + b"{}]}", "topk has more than 1 MB"),
    "a million settings": (b"{" + b",".join(b'"k%d":0' % n for n in range(10**6)) + b"}", "no setting 'k0' here"),
    "a long name": (b'{"' + b"k" * 10**6 + b'":0}', "no setting 'kkkk"),
    "nesting": (b'{"topk":' * 10**5, "JSON"),
    "parts": (PART * 10**5 + b"--a--", "at most 64 parts"),
    "files": (PART.replace(b'"topk"', b'"image"; filename="a"') * 10**5 + b"--a--", "at most 32 images"),
    "headers": (PART[:-5] + b"A: b\r\n" * 10**6 + b"\r\n1\r\n--a--", "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_refused_before_it_becomes_objects(name: str) -> None:
    body, sentence = HOSTILE[name]
    kind = "application/json" if body[:1] in b"[{" else "multipart/form-data; boundary=a"
    tracemalloc.start()
    try:
        with pytest.raises(DearError, match=sentence):
            parse_upload(kind, body, ("topk", "votes"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(body) + 2_000_000  # as objects it would take from ten to fifty times its length
