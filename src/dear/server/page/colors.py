"""One colour for each component and concept, the same in every view."""

from collections.abc import Sequence

from dear.core.names import COMPONENT_COLORS as COLORS
from dear.heads.map_table import concept_colors

_OTHERS = ("#c06c9a", "#8c5a3c", "#16919b", "#b8972f", "#6f9a1f", "#5b6fb5", "#a0522d", "#708090")


def page_colors(names: Sequence[str]) -> dict[str | None, str]:
    """Components and core attributes as `dear explain` draws them, all else in colours of its own; None: no concept."""
    others = [name for name in names if name not in COLORS]
    colors = concept_colors(()) | COLORS
    return colors | {name: _OTHERS[i % len(_OTHERS)] for i, name in enumerate(others)}
