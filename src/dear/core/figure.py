"""Writing of matplotlib figures: the suffixes they may have, and names drawn literally."""

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dear.core.errors import DearError
from dear.core.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
