"""A contact sheet of Attribute World, one row per attribute."""

from random import Random

from PIL import Image, ImageDraw, ImageFont

from dear.data.world.vocabulary import STYLES, VALUES, Scene, Traits

_GAP, _COLUMNS, _MARGIN = 8, 12, 96
_INK, _PAPER = (40, 38, 46), (252, 251, 248)


def contact_sheet(seed: int = 0, size: int = 64) -> Image.Image:
    """Rows: the values of each attribute, then each style; columns: twelve pictures with their names below.

    `size`: side length in pixels of each drawing; small ones are enlarged.
    """
    rng = Random(seed)
    rows = [
        (attribute, [_example({attribute: v}, v, rng, size) for v in values[:_COLUMNS]])
        for attribute, values in VALUES.items()
    ]
    rows += [(style, [_example({}, "", rng, size, style) for _ in range(_COLUMNS)]) for style in STYLES[1:]]
    cell = max(size, 128)
    step = cell + _GAP
    sheet = Image.new("RGB", (_MARGIN + _COLUMNS * step + _GAP, len(rows) * (step + 16) + _GAP), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for r, (title, cells) in enumerate(rows):
        y = _GAP + r * (step + 16)
        draw.text((_GAP, y + cell // 2 - 8), title, _INK, ImageFont.load_default(16))
        for c, (picture, name) in enumerate(cells):
            x = _MARGIN + c * step
            sheet.paste(picture.resize((cell, cell), Image.Resampling.LANCZOS), (x, y))
            draw.text((x + cell / 2, y + cell + 3), name, _INK, font, anchor="ma")
    return sheet


def _example(fixed: dict[str, str], name: str, rng: Random, size: int, style: str = "plain") -> tuple[Image.Image, str]:
    traits = Traits(**{a: fixed.get(a) or rng.choice(values) for a, values in VALUES.items()})
    return Scene(traits, rng.getrandbits(40), style, size).open(), name or f"{traits.color}, {traits.object}"
