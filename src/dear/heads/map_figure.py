"""The role map as a picture: layers x heads, coloured by concept, paler with entropy, marked by role."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from dear.core.figure import save_figure
from dear.heads.check_figures import INK
from dear.heads.map_table import map_record, map_title
from dear.heads.role_map import RoleMap

_CELL = (0.86, 0.62)  # inches: wide enough for the name of the longest concept


def plot_role_map(role_map: RoleMap, path: str | Path) -> None:
    """Writes the picture to `path`, a .png, .svg or .pdf."""
    save_figure(draw_role_map(role_map), path, dpi=160, facecolor="white", bbox_inches="tight", pad_inches=0.2)


def draw_role_map(role_map: RoleMap) -> Figure:
    """The grid of heads, the last layer on top, as in the paper's figures."""
    rows, columns = len(role_map.layers), role_map.heads
    figure = Figure(figsize=(columns * _CELL[0], rows * _CELL[1]))
    FigureCanvasAgg(figure)  # without pyplot: no window and no global state
    axes = figure.add_axes((0, 0, 1, 1))
    record = map_record(role_map)
    for cell in record["cells"]:
        _draw_cell(axes, role_map.layers.index(cell["layer"]), cell, record["roles"][cell["role"]]["mark"])
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(-0.5, rows - 0.5), xlabel="head", ylabel="layer")
    axes.set_xticks(range(columns))
    axes.set_yticks(range(rows), [str(layer) for layer in role_map.layers])
    axes.tick_params(length=0, colors=INK, labelsize=9)
    axes.spines[:].set_visible(False)

    def write(text: str, corner: tuple[int, int], up: int, **style: Any) -> None:
        """Text at a fixed distance in points above (or below) a corner, for any size of the grid."""
        where: dict[str, Any] = {
            "xycoords": "axes fraction",
            "textcoords": "offset points",
            "annotation_clip": False,
        }
        axes.annotate(text, corner, (4, up), color=INK, **where, **style)

    write(f"What each head does: {map_title(role_map)}", (0, 1), 24, fontsize=13, weight="bold")
    write(record["summary"], (0, 1), 8, fontsize=9)
    write("     ".join(f"{role['mark']} {role['name']}" for role in record["roles"].values()), (0, 0), -46, fontsize=10)
    write(record["legend"], (0, 0), -62, fontsize=9)
    return figure


def _draw_cell(axes: Axes, row: int, cell: Mapping[str, Any], mark: str) -> None:
    x, strength = cell["head"], cell["strength"]
    fill = tuple(strength * part + 1 - strength for part in to_rgb(cell["color"]))
    box = FancyBboxPatch(
        (x - 0.46, row - 0.44), 0.92, 0.88, boxstyle="round,pad=0,rounding_size=0.09",
        mutation_aspect=_CELL[0] / _CELL[1], facecolor=fill, edgecolor=cell["color"], linewidth=0.8,
    )  # fmt: skip
    axes.add_patch(box)
    luminance = 0.299 * fill[0] + 0.587 * fill[1] + 0.114 * fill[2]
    ink = "white" if luminance < 0.58 else INK
    axes.text(x, row - 0.16, cell["concept"] or "–", ha="center", va="center", fontsize=9, color=ink)
    axes.text(x - 0.37, row + 0.22, mark, ha="left", va="center", fontsize=9, color=ink)
    axes.text(x + 0.39, row + 0.22, cell["number"], ha="right", va="center", fontsize=7, color=ink)
