"""One colour per component and concept, the same in every view."""

from collections.abc import Sequence

from dear.core.names import COMPONENT_COLORS
from dear.heads.map_table import concept_colors

_OTHER_COLORS = ("#c06c9a", "#8c5a3c", "#16919b", "#b8972f", "#6f9a1f", "#5b6fb5", "#a0522d", "#708090")


def page_colors(names: Sequence[str]) -> dict[str | None, str]:
    """Colours of components and core attributes, and others for all other names; None stands for no concept."""
    others = [name for name in names if name not in COMPONENT_COLORS]
    colors = concept_colors(()) | COMPONENT_COLORS
    return colors | {name: _OTHER_COLORS[i % len(_OTHER_COLORS)] for i, name in enumerate(others)}
