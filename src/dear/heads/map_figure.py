"""The role map as a picture: layers x heads, coloured by concept, paler with entropy, marked by role."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from dear.core.figure import save_figure
from dear.heads.head_role import ROLES, HeadRole
from dear.heads.map_table import ROLE_MARKS, ROLE_NAMES, color_strength, concept_colors, role_summary
from dear.heads.role_map import RoleMap

_INK = "#23262b"
_CELL = (0.86, 0.62)  # inches: wide enough for the longest concept's name


def plot_role_map(role_map: RoleMap, path: str | Path) -> None:
    """Writes the picture to `path`, a .png, .svg or .pdf."""
    save_figure(draw_role_map(role_map), path, dpi=160, facecolor="white", bbox_inches="tight", pad_inches=0.2)


def draw_role_map(role_map: RoleMap) -> Figure:
    """The last layer is on top, as the paper's figures have it."""
    rows, columns = len(role_map.layers), role_map.heads
    width, height = columns * _CELL[0], rows * _CELL[1]
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)  # without pyplot: no window, no state left behind
    axes = figure.add_axes((0, 0, 1, 1))
    colors = concept_colors(role_map.concepts)
    for (layer, head), found in role_map.roles.items():
        _draw_cell(axes, head, role_map.layers.index(layer), found, colors[found.concept], role_map)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(-0.5, rows - 0.5), xlabel="head", ylabel="layer")
    axes.set_xticks(range(columns))
    axes.set_yticks(range(rows), [str(layer) for layer in role_map.layers])
    axes.tick_params(length=0, colors=_INK, labelsize=9)
    axes.spines[:].set_visible(False)

    name = " / ".join(
        str(value) for key, value in role_map.backbone.items() if key in ("model", "pretrained") and value
    )

    def write(text: str, corner: tuple[int, int], up: int, **style: Any) -> None:
        """At a fixed distance in points above (or below) a corner, whatever the size of the grid."""
        where: dict[str, Any] = {
            "xycoords": "axes fraction",
            "textcoords": "offset points",
            "annotation_clip": False,
        }
        axes.annotate(text, corner, (4, up), color=_INK, **where, **style)

    write(f"What each head does: {name or 'role map'}", (0, 1), 24, fontsize=13, weight="bold")
    write(role_summary(role_map), (0, 1), 8, fontsize=9)
    key = "     ".join(f"{ROLE_MARKS[role]} {ROLE_NAMES[role]}" for role in ROLES)
    write(key, (0, 0), -46, fontsize=10)
    if any(found.entropy is not None for found in role_map.roles.values()):
        key = "strong colour: low Concept Entropy (the number, in nats); pale: high"
        if any(found.shares for found in role_map.roles.values()):
            key = "strong colour: specialised, the surer the stronger; number: share of the head's variance"
        write(key, (0, 0), -62, fontsize=9)
    return figure


def _draw_cell(axes: Axes, x: int, y: int, found: HeadRole, color: str, role_map: RoleMap) -> None:
    strength = color_strength(found, role_map)
    fill = tuple(strength * part + 1 - strength for part in to_rgb(color))
    box = FancyBboxPatch(
        (x - 0.46, y - 0.44), 0.92, 0.88, boxstyle="round,pad=0,rounding_size=0.09",
        mutation_aspect=_CELL[0] / _CELL[1], facecolor=fill, edgecolor=color, linewidth=0.8,
    )  # fmt: skip
    axes.add_patch(box)
    luminance = 0.299 * fill[0] + 0.587 * fill[1] + 0.114 * fill[2]
    ink = "white" if luminance < 0.58 else _INK
    axes.text(x, y - 0.16, found.concept or "–", ha="center", va="center", fontsize=9, color=ink)
    axes.text(x - 0.37, y + 0.22, ROLE_MARKS[found.role], ha="left", va="center", fontsize=9, color=ink)
    if found.shares and found.concept is not None:
        share = f"{100 * found.shares[role_map.concepts.index(found.concept)]:.0f}%"
        axes.text(x + 0.39, y + 0.22, share, ha="right", va="center", fontsize=7, color=ink)
    elif found.entropy is not None:
        axes.text(x + 0.39, y + 0.22, f"{found.entropy:.2f}", ha="right", va="center", fontsize=7, color=ink)
