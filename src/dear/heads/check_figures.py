"""The checks of a role map as pictures: a heat map of attributes by heads, and curves over layers."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dear.core.figure import color_of, save_figure
from dear.heads.check_layers import LayerLosses
from dear.heads.checks import CLASS, SEARCH, RoleCheck

INK = "#23262b"


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
    figure, axes = _new_figure((2.2 + 1.4 * len(attributes), 1.9 + 0.62 * len(values)))
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


def plot_layers(losses: LayerLosses, path: str | Path) -> None:
    """Two curves over the layers: the measure without the heads of one layer, and without those of all up to it."""
    figure, axes = _new_figure((7, 4))
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


def _new_figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """A figure with axes; without pyplot there is no window and no global state."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()
