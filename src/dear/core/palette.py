"""One colour for one name, in every picture and on every page: components, core attributes, other concepts."""

import zlib

from dear.core.names import CLS

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


def color_of(name: str | None) -> str:
    """The colour of a component or concept; None: no concept. It depends on the name alone."""
    if name is None:
        return NO_CONCEPT
    return _COLORS.get(name) or _SPARE_COLORS[zlib.crc32(name.encode("utf-8", "replace")) % len(_SPARE_COLORS)]
