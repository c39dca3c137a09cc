"""A contact sheet of Attribute World, one row per attribute."""

from random import Random

from PIL import Image, ImageDraw

from dear.core.sheet import INK, PAPER, font
from dear.data.world.vocabulary import STYLES, VALUES, Scene, Traits

_GAP, _COLUMNS, _MARGIN = 8, 12, 96


def world_sheet(seed: int = 0, size: int = 64) -> Image.Image:
    """Rows: the values of each attribute, then each style; columns: twelve pictures with their names below.

    `size`: side length in pixels of each drawing; small ones are enlarged.
    """
    rng = Random(seed)

    def picture(fixed: dict[str, str], style: str = "plain") -> tuple[Image.Image, str]:
        traits = Traits(**{a: fixed.get(a) or rng.choice(values) for a, values in VALUES.items()})
        name = "".join(fixed.values()) or f"{traits.color}, {traits.object}"
        return Scene(traits, rng.getrandbits(40), style, size).open(), name

    rows = {a: [picture({a: value}) for value in values[:_COLUMNS]] for a, values in VALUES.items()}
    rows |= {style: [picture({}, style) for _ in range(_COLUMNS)] for style in STYLES[1:]}
    cell = max(size, 128)
    step = cell + _GAP
    sheet = Image.new("RGB", (_MARGIN + _COLUMNS * step + _GAP, len(rows) * (step + 16) + _GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, (title, cells) in enumerate(rows.items()):
        y = _GAP + row * (step + 16)
        draw.text((_GAP, y + cell // 2 - 8), title, INK, font(16))
        for column, (drawn, name) in enumerate(cells):
            x = _MARGIN + column * step
            sheet.paste(drawn.resize((cell, cell), Image.Resampling.LANCZOS), (x, y))
            draw.text((x + cell / 2, y + cell + 3), name, INK, font(13), anchor="ma")
    return sheet
