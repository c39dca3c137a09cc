"""Pictures of every kind open upright and right, or are refused in a sentence: never a hang, a bomb, another error."""

import io
import os
import socket
import struct
import tracemalloc
import warnings
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dear.core.errors import DearError
from dear.data.dataset import ImageFile
from dear.data.decode import FORMATS, MAX_PROPORTION, as_rgb, declared_pixels, open_bytes, open_picture, why_unreadable

Image.init()
KINDS = sorted(set(FORMATS) & set(Image.SAVE))
SENTENCE = "It cannot be read ({})."
NOTED = ("JPEG", "PNG", "WEBP", "TIFF", "AVIF")  # kinds that can say how the camera was held


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def corners() -> Image.Image:
    """Wider than high, another colour in each corner: any turn or mirroring shows."""
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:32, :48], pixels[:32, 48:] = (250, 10, 10), (10, 250, 10)
    pixels[32:, :48], pixels[32:, 48:] = (10, 10, 250), (240, 240, 240)
    return Image.fromarray(pixels)


PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8))
WHOLE = {kind: encoded(PHOTO, kind) for kind in KINDS}


def thin_png(width: int, height: int) -> bytes:
    """A whole PNG of few bytes, however large."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = zlib.compress(b"\0" * ((1 + width) * height), 9)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@given(
    st.sampled_from(KINDS),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=12),
    st.integers(0, 10**6),
)
def test_damaged_files_of_every_kind_open_or_are_refused(kind: str, flips: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(WHOLE[kind])
    for place, value in flips:
        data[place % len(data)] = value
    if cut % 3 == 0:
        del data[cut % len(data) :]
    with suppress(DearError):  # any other error fails the test
        assert open_bytes(bytes(data), SENTENCE).mode == "RGB"


@given(st.binary(max_size=300), st.sampled_from([b"", b"DDS ", b"BLP2", b"%!PS", b"\0\0\0\x1cftypavif", b"II*\0"]))
def test_any_bytes_under_any_name_are_refused(data: bytes, magic: bytes) -> None:
    with pytest.raises(DearError):
        open_bytes(magic + data, SENTENCE)


@given(st.integers(1, 300_000), st.booleans())
def test_thin_pictures_are_refused_before_they_are_decoded(length: int, upright: bool) -> None:
    data = thin_png(1, length) if upright else thin_png(length, 1)
    if length <= MAX_PROPORTION:
        assert sorted(open_bytes(data, SENTENCE).size) == [1, length]
    else:
        with pytest.raises(DearError, match="too thin"):
            open_bytes(data, SENTENCE)


def test_thin_pictures_in_files_and_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "thin.png"
    path.write_bytes(thin_png(1, 300_000))
    assert "too thin" in why_unreadable(ImageFile(path))
    for opened in (lambda: ImageFile(path).open(), lambda: as_rgb(Image.new("RGB", (1, 300_000)))):
        with pytest.raises(DearError, match="too thin"):
            opened()


@pytest.mark.parametrize("kind", NOTED)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_phone_photos_stand_upright(kind: str, orientation: int, tmp_path: Path) -> None:
    """The sensor's pixels under each note are what the world looked like, turned back by hand."""
    world = np.asarray(corners())
    sensor = {
        1: world, 2: world[:, ::-1], 3: world[::-1, ::-1], 4: world[::-1], 5: world.transpose(1, 0, 2),
        6: np.rot90(world), 7: world.transpose(1, 0, 2)[::-1, ::-1], 8: np.rot90(world, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(np.ascontiguousarray(sensor)), kind, exif=exif)
    (tmp_path / "x").write_bytes(data)
    for opened in (open_bytes(data, SENTENCE), open_picture(tmp_path / "x"), as_rgb(Image.open(io.BytesIO(data)))):
        assert opened.size == (96, 64)
        for x, y in ((20, 15), (75, 15), (20, 48), (75, 48)):
            assert np.abs(np.asarray(opened, int)[y, x] - world[y, x]).max() < 30


def test_a_damaged_note_says_nothing() -> None:
    data = encoded(corners(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert open_bytes(data, SENTENCE).size == (96, 64)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM", "JPEG2000"])
@given(st.integers(0, 65535))
def test_sixteen_bits_of_grey_become_eight(kind: str, value: int) -> None:
    image = Image.fromarray(np.full((3, 4), value, np.uint16))
    pixels = np.asarray(open_bytes(encoded(image, kind), SENTENCE), int)
    assert pixels.shape == (3, 4, 3)
    assert np.abs(pixels - value * 255 / 65535).max() <= 0.5


def test_sixteen_bits_of_grey_are_not_held_several_times(tmp_path: Path) -> None:
    """Pillow's own memory is not counted; NumPy's is."""
    Image.fromarray(np.zeros((3000, 4000), np.uint16)).save(tmp_path / "x.png")
    tracemalloc.start()
    try:
        open_picture(tmp_path / "x.png")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * 3000 * 4000


@given(st.lists(st.integers(0, 65535), min_size=3, max_size=3))
def test_sixteen_bits_of_colour_become_eight(values: list[int]) -> None:
    """A TIFF of one pixel, written by hand: Pillow cannot."""
    tags = [(256, 3, 1, 1), (257, 3, 1, 1), (258, 3, 3, 8), (259, 3, 1, 1), (262, 3, 1, 2), (273, 4, 1, 14),
            (277, 3, 1, 3), (278, 3, 1, 1), (279, 4, 1, 6)]  # fmt: skip
    directory = struct.pack("<H", len(tags)) + b"".join(
        struct.pack("<HHI", tag, kind, count) + struct.pack("<I", value) for tag, kind, count, value in tags
    )
    data = b"II*\0" + struct.pack("<I", 20) + struct.pack("<3H", 16, 16, 16) + struct.pack("<3H", *values)
    pixels = np.asarray(open_bytes(data + directory + b"\0\0\0\0", SENTENCE), int)[0, 0]
    assert np.abs(pixels - np.array(values) / 257).max() <= 1


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_what_has_no_known_range_is_refused(dtype: type) -> None:
    with pytest.raises(DearError, match="32 bits"):
        open_bytes(encoded(Image.fromarray(np.ones((4, 4), dtype)), "TIFF"), SENTENCE)
    with pytest.raises(DearError, match="32 bits"):
        as_rgb(Image.fromarray(np.ones((4, 4), dtype)))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_every_mode_becomes_rgb_as_pillow_does_it(mode: str) -> None:
    image = PHOTO.convert("L").convert("1") if mode == "1" else PHOTO.convert("RGB").convert(mode)
    assert np.array_equal(as_rgb(image), image.convert("RGB"))


def test_what_is_no_file_is_refused_without_opening_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "empty.jpg").touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.jpg"))
        names = [*sorted(tmp_path.iterdir()), Path("/dev/zero"), Path("/dev/full"), tmp_path / "gone.jpg", Path("")]
        names += [tmp_path / ("x" * 300), Path("/".join(["x" * 200] * 30)), tmp_path / "a\0b", Path("\udcff\ud800.jpg")]
        for path in names:
            with pytest.raises(DearError):
                ImageFile(path).open()
            assert why_unreadable(ImageFile(path))


def test_as_many_pixels_as_nobody_has(tmp_path: Path) -> None:
    head = thin_png(1, 1)
    size = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    bomb = head[:16] + size + struct.pack(">I", zlib.crc32(b"IHDR" + size)) + head[33:]
    with pytest.raises(DearError, match="more than 178 million pixels"):
        open_bytes(bomb, SENTENCE)
    with pytest.raises(DearError, match="more than 0 million pixels"):
        open_bytes(WHOLE["PNG"], SENTENCE, pixels=1999)


def test_filters_of_warnings_are_the_callers(monkeypatch) -> None:
    """A large picture is judged by our limit alone, without a word from Pillow."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    data = WHOLE["PNG"]  # 2000 pixels
    with pytest.warns(Image.DecompressionBombWarning):
        Image.open(io.BytesIO(data))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_bytes(data, SENTENCE).size == (50, 40)
        assert declared_pixels(data) == 2000
