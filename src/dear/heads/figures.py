"""Figures of heads: a role map as a grid, its checks as heat maps, and the loss of layers as curves."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from dear.core.figure import color_of, save_figure
from dear.heads.checks import CLASS, SEARCH, RoleCheck
from dear.heads.map_table import map_record, map_title
from dear.heads.role_map import RoleMap

if TYPE_CHECKING:
    from dear.heads.check_layers import LayerLosses

INK = "#23262b"
_CELL = (0.86, 0.62)  # inches: wide enough for the name of the longest concept


def plot_role_map(role_map: RoleMap, path: str | Path) -> None:
    """Writes the picture to `path`, a .png, .svg or .pdf."""
    save_figure(draw_role_map(role_map), path, dpi=160, facecolor="white", bbox_inches="tight", pad_inches=0.2)


def draw_role_map(role_map: RoleMap) -> Figure:
    """The grid of heads, the last layer on top, as in the paper's figures."""
    rows, columns = len(role_map.layers), role_map.heads
    figure = Figure(figsize=(columns * _CELL[0], rows * _CELL[1]))
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


def plot_check(check: RoleCheck, path: str | Path) -> None:
    """A heat map, coloured by the improvement over random heads; of a search in their std.

    In a cell: the measure, and below it that of random heads; bold where the heads are those of the attribute.
    """
    searched, attributes = check.kind == SEARCH, list(check.whole)
    values = [
        [check.beyond_random(g, a) / (max(g.random_std[a], 1e-9) if searched else 1) for a in attributes]
        for g in check.groups
    ]
    limit = max(1.0, *(abs(value) for row in values for value in row))
    figure = Figure(figsize=(2.2 + 1.4 * len(attributes), 1.9 + 0.62 * len(values)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    for row, group in enumerate(check.groups):
        for column, a in enumerate(attributes):
            ink = "white" if abs(values[row][column]) > 0.6 * limit else INK
            weight = "bold" if group.attribute == a else "normal"
            control = f"{group.random_mean[a]:.1f} ± {group.random_std[a]:.1f}"
            axes.text(column, row - 0.14, f"{group.values[a]:.1f}", ha="center", va="center", color=ink, weight=weight)
            axes.text(column, row + 0.24, control, ha="center", va="center", color=ink, fontsize=7)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    names = check.measures()
    if searched:
        names = [f"{name}\n{CLASS} {value:.1f}" for name, value in zip(names, check.whole.values(), strict=True)]
    axes.set_xticks(range(len(attributes)), names, fontsize=8)
    axes.set_yticks(range(len(values)), [f"{g.attribute} ({len(g.heads)} heads)" for g in check.groups])
    for known, labels in (
        (attributes, axes.get_xticklabels()),
        ([g.attribute for g in check.groups], axes.get_yticklabels()),
    ):
        for name, label in zip(known, labels, strict=True):
            label.set_color(color_of(name))
    if searched:
        axes.set(xlabel="what the nearest have in common", ylabel="searched by the heads for")
        title, scale = "Search of held-out pictures by heads", "better than random heads (std)"
    else:
        axes.set(xlabel="attribute, and its zero-shot accuracy with all heads", ylabel="without the heads of")
        title, scale = "Points of accuracy lost", "lost beyond random heads"
    axes.set_title(f"{title} (small: as many random heads)", fontsize=11, loc="left", color=INK)
    figure.colorbar(image, ax=axes, label=scale, shrink=0.9)
    save_figure(figure, path, dpi=160, facecolor="white")


def plot_layers(losses: "LayerLosses", path: str | Path) -> None:
    """Two curves over the layers: the measure without the heads of one layer, and without those of all up to it."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    layers = range(1, len(losses.alone) + 1)
    axes.plot(layers, losses.alone, "o-", color="#2f6fb5", label="without the heads of this layer")
    axes.plot(layers, losses.up_to, "s-", color="#c43c4e", label="without those of all layers up to it")
    axes.axhline(losses.whole, color=INK, linewidth=0.8, linestyle=":", label="with all heads")
    axes.axvline(losses.first_layer - 0.5, color="#b4b2ab", linewidth=1)
    axes.annotate(
        f"J = {losses.first_layer}", (losses.first_layer - 0.45, axes.get_ylim()[0]), (0, 6), textcoords="offset points"
    )
    axes.set_xticks(layers)
    axes.set(xlabel="layer", ylabel=f"{losses.measure} (%)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save_figure(figure, path, dpi=160, facecolor="white")
