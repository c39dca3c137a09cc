"""Contact sheets of searches: the query on the left, its hits beside it; of one search, or one row per component."""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from PIL import Image, ImageDraw

from dear.core.errors import DearError
from dear.core.sheet import INK, PAPER, RULE, SOFT, fit_text, font, paste
from dear.gallery.search import Hit


class PictureStore(Protocol):
    """A gallery, or anything else that opens the picture of a hit."""

    def image(self, path: str) -> Image.Image: ...


_CELL, _GAP, _COLUMNS, _CAPTION = 160, 12, 5, 36
_QUERY = 2 * _CELL + _CAPTION + _GAP  # as high as two rows of hits


def contact_sheet(query: "Image.Image | str", by: str, hits: Sequence[Hit], gallery: PictureStore) -> Image.Image:
    """The hits beside the query, a picture or a sentence; `by` is the caption below it."""
    columns = min(_COLUMNS, max(1, len(hits)))
    rows = max(2, math.ceil(len(hits) / _COLUMNS))
    step_x, step_y = _CELL + _GAP, _CELL + _CAPTION + _GAP
    left = _QUERY + 3 * _GAP
    sheet = Image.new("RGB", (left + columns * step_x, _GAP + rows * step_y), PAPER)
    draw = ImageDraw.Draw(sheet)
    if isinstance(query, str):
        _write_sentence(draw, query, (_GAP, _GAP), _QUERY)
    else:
        paste(sheet, query, (_GAP, _GAP), _QUERY)
    draw.text((_GAP + _QUERY / 2, _GAP + _QUERY + 6), fit_text(f"by {by}", _QUERY, 16), INK, font(16), anchor="ma")
    draw.line([(left - _GAP, _GAP), (left - _GAP, sheet.height - _GAP)], RULE, 2)
    for number, hit in enumerate(hits):
        x, y = left + number % _COLUMNS * step_x, _GAP + number // _COLUMNS * step_y
        _paste_hit(sheet, gallery, hit, (x, y))
        draw.text((x, y + _CELL + 3), f"{number + 1}", SOFT, font(14))
        draw.text((x + _CELL, y + _CELL + 3), f"{hit.score:.3f}", INK, font(14), anchor="ra")
        if hit.label:
            draw.text((x, y + _CELL + 19), fit_text(hit.label, _CELL, 13), INK, font(13))
    return sheet


def attribute_sheet(query: Image.Image, results: Mapping[str, Sequence[Hit]], gallery: PictureStore) -> Image.Image:
    """One query searched by several components, one row each: {"color": hits, "shape": hits, ...}."""
    columns = max(1, *(len(hits) for hits in results.values()))
    step, name = _CELL + _GAP, 110
    left = _QUERY + name + 4 * _GAP
    sheet = Image.new("RGB", (left + columns * step, _GAP + max(2, len(results)) * step), PAPER)
    draw = ImageDraw.Draw(sheet)
    paste(sheet, query, (_GAP, (sheet.height - _QUERY) // 2), _QUERY)
    for row, (by, hits) in enumerate(results.items()):
        y = _GAP + row * step
        draw.text((_QUERY + 3 * _GAP, y + _CELL / 2), fit_text(f"by {by}", name, 18), INK, font(18), anchor="lm")
        for column, hit in enumerate(hits):
            _paste_hit(sheet, gallery, hit, (left + column * step, y))
    return sheet


def _paste_hit(sheet: Image.Image, gallery: PictureStore, hit: Hit, at: tuple[int, int]) -> None:
    try:
        paste(sheet, gallery.image(hit.path), at, _CELL)
    except DearError:  # the file was moved or removed since it was indexed; its score is still of use
        draw, (x, y) = ImageDraw.Draw(sheet), at
        draw.rectangle((x, y, x + _CELL, y + _CELL), RULE)
        draw.text((x + _CELL / 2, y + _CELL / 2), "no longer there", SOFT, font(14), anchor="mm")


def _write_sentence(draw: ImageDraw.ImageDraw, text: str, at: tuple[int, int], size: int) -> None:
    draw.rectangle((*at, at[0] + size, at[1] + size), outline=RULE, width=2)
    lines, face = [""], font(24)
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if face.getlength(longer) <= size - 4 * _GAP:
            lines[-1] = longer
        else:
            lines.append(word)
    middle = (at[0] + size / 2, at[1] + size / 2)
    draw.multiline_text(middle, "\n".join(lines[:9]), INK, face, anchor="mm", align="center", spacing=8)
