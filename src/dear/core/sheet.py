"""Parts of contact sheets: pictures in squares, captions, thumbnails for pages."""

import base64
import io

from PIL import Image, ImageFont, ImageOps

INK, SOFT, PAPER, RULE = (40, 38, 46), (110, 106, 118), (252, 251, 248), (226, 223, 216)


def paste(sheet: Image.Image, picture: Image.Image, at: tuple[int, int], size: int) -> None:
    """The whole picture, scaled to fit a square."""
    fitted = ImageOps.contain(picture, (size, size), Image.Resampling.LANCZOS)
    sheet.paste(fitted, (at[0] + (size - fitted.width) // 2, at[1] + (size - fitted.height) // 2))


def fit_text(text: str, width: int, size: int) -> str:
    """The text, shortened to a width in pixels."""
    face = font(size)
    if face.getlength(text) <= width:
        return text
    while text and face.getlength(text + "...") > width:
        text = text[:-1]
    return text.rstrip() + "..."


def font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def thumbnail_url(image: Image.Image, side: int) -> str:
    """A JPEG, `side` pixels on its longer side, as a data: address for pages that need no other file.

    A small picture is enlarged, too: the result is smoother than the browser's.
    """
    out = io.BytesIO()
    ImageOps.contain(image.convert("RGB"), (side, side), Image.Resampling.LANCZOS).save(out, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")
