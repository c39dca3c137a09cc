"""Figures of matplotlib, and the one colour of each component and concept, in every picture and on every page."""

import io
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dear.core.errors import DearError
from dear.core.files import atomic_path
from dear.core.names import CLS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_CONCEPT = "#b4b2ab"
_COLORS = {
    CLS: "#4c566a",
    "color": "#d1495b",
    "shape": "#2e86ab",
    "texture": "#8f6bb3",
    "object": "#e09f3e",
    "location": "#4f9d69",
    "rest": "#8c8579",
    # Other concepts of the paper's maps
    "human": "#c06c9a",
    "text": "#16919b",
    "animal": "#8c5a3c",
    "number": "#b8972f",
    "style": "#6f9a1f",
    "emotion": "#5b6fb5",
    "action": "#a0522d",
}
_SPARE_COLORS = ("#708090", "#9c7a97", "#5f7f6f", "#a58f62", "#6d7fa8", "#96655c")

FIGURES = (".png", ".svg", ".pdf")


def check_suffix(path: Path | None, allowed: tuple[str, ...] = FIGURES) -> None:
    """Refuses a suffix that cannot be drawn; call it before the work whose result is drawn."""
    if path is not None and path.suffix.lower() not in allowed:
        raise DearError(f"Cannot draw to {path}: name a file that ends in {' or '.join(allowed)}.")


def save_figure(figure: "Figure", path: str | Path, **options: Any) -> None:
    """Writes a figure to a .png, .svg or .pdf file."""
    check_suffix(Path(path))
    with atomic_path(path) as temporary:
        _draw_literally(figure, temporary, **options)


def figure_png(figure: "Figure", **options: Any) -> bytes:
    out = io.BytesIO()
    _draw_literally(figure, out, format="png", **options)
    return out.getvalue()


def _draw_literally(figure: "Figure", out: Any, **options: Any) -> None:
    """Draws texts literally: a $ starts no formula, and a letter without a glyph is a box."""
    import matplotlib
    from matplotlib.text import Text

    texts: Any = figure.findobj(Text)
    for text in texts:
        text.set_parse_math(False)
        text.set_text(text.get_text().encode("utf-8", "backslashreplace").decode())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        with matplotlib.rc_context({"text.parse_math": False}):  # for texts that are made while drawing
            figure.savefig(out, **options)


def color_of(name: str | None) -> str:
    """The colour of a component or concept; None: no concept. It depends on the name alone."""
    if name is None:
        return NO_CONCEPT
    return _COLORS.get(name) or _SPARE_COLORS[zlib.crc32(name.encode("utf-8", "replace")) % len(_SPARE_COLORS)]
