"""The checks of a role map as pictures: heat maps of attributes by heads, and curves over layers."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dear.core.figure import save_figure
from dear.core.palette import color_of
from dear.heads.check_causal import CausalResult, ConceptEffect
from dear.heads.check_layers import LayerLosses
from dear.heads.check_search import AttributeSearch, CheckResult

_INK = "#23262b"
_Cell = tuple[float, str, bool]  # the measure; the same by random heads; whether row and column are one attribute


def plot_causal(result: CausalResult, path: str | Path) -> None:
    """Colour: points lost beyond random heads. In a cell: points lost, and below them the same without random heads."""
    attributes = list(result.accuracy)

    def cell(e: ConceptEffect, a: str) -> _Cell:
        return e.drop[a], f"{e.random_mean[a]:.1f} ± {e.random_std[a]:.1f}", e.concept == a

    figure, axes = _heat_map(
        [[effect.excess(a) for a in attributes] for effect in result.effects],
        [[cell(effect, a) for a in attributes] for effect in result.effects],
        "lost beyond random heads",
    )
    axes.set_xticks(range(len(attributes)), [f"{a}\n{result.accuracy[a]:.1f}%" for a in attributes])
    axes.set_yticks(range(len(result.effects)), [f"{e.concept} ({len(e.heads)} heads)" for e in result.effects])
    _color_ticks(axes, attributes, [e.concept for e in result.effects])
    axes.set(xlabel="attribute, and its zero-shot accuracy with all heads", ylabel="without the heads of")
    axes.set_title("Points of accuracy lost (small: as many random heads)", fontsize=11, loc="left", color=_INK)
    save_figure(figure, path, dpi=160, facecolor="white")


def plot_search(result: CheckResult, path: str | Path) -> None:
    """Colour: improvement over random heads, in std of these. In a cell: the measure, and below it by random heads."""
    attributes = list(result.by_class)

    def cell(s: AttributeSearch, a: str) -> _Cell:
        return s.values[a], f"{s.random_mean[a]:.1f} ± {s.random_std[a]:.1f}", s.attribute == a

    figure, axes = _heat_map(
        [[result.gain(s, a, s.random_mean) / max(s.random_std[a], 1e-9) for a in attributes] for s in result.searches],
        [[cell(s, a) for a in attributes] for s in result.searches],
        "better than random heads (std)",
    )
    measures = zip(result.measures(), result.by_class.values(), strict=True)
    columns = [f"{measure}\nclass feature {value:.1f}" for measure, value in measures]
    axes.set_xticks(range(len(attributes)), columns, fontsize=8)
    axes.set_yticks(range(len(result.searches)), [f"{s.attribute} ({len(s.heads)} heads)" for s in result.searches])
    _color_ticks(axes, attributes, [s.attribute for s in result.searches])
    axes.set(xlabel="what the nearest have in common", ylabel="searched by the heads for")
    axes.set_title(
        "Search of held-out pictures by heads (small: by as many random heads)", fontsize=11, loc="left", color=_INK
    )
    save_figure(figure, path, dpi=160, facecolor="white")


def plot_layers(losses: LayerLosses, path: str | Path) -> None:
    """Two curves over the layers: the measure without the heads of one layer, and without those of all up to it."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    layers = range(1, len(losses.alone) + 1)
    axes.plot(layers, losses.alone, "o-", color="#2f6fb5", label="without the heads of this layer")
    axes.plot(layers, losses.up_to, "s-", color="#c43c4e", label="without those of all layers up to it")
    axes.axhline(losses.whole, color=_INK, linewidth=0.8, linestyle=":", label="with all heads")
    axes.axvline(losses.first_layer - 0.5, color="#b4b2ab", linewidth=1)
    axes.annotate(
        f"J = {losses.first_layer}", (losses.first_layer - 0.45, axes.get_ylim()[0]), (0, 6), textcoords="offset points"
    )
    axes.set_xticks(layers)
    axes.set(xlabel="layer", ylabel=f"{losses.measure} (%)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save_figure(figure, path, dpi=160, facecolor="white")


def _heat_map(values: Sequence[Sequence[float]], cells: Sequence[Sequence[_Cell]], scale: str) -> tuple[Figure, Axes]:
    """Coloured by `values` around zero, with a cell's two numbers in it; bold: row and column are one attribute."""
    limit = max(1.0, *(abs(value) for row in values for value in row))
    figure = Figure(figsize=(2.2 + 1.4 * len(values[0]), 1.9 + 0.62 * len(values)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    for row, line in enumerate(cells):
        for column, (value, control, own) in enumerate(line):
            ink = "white" if abs(values[row][column]) > 0.6 * limit else _INK
            weight = "bold" if own else "normal"
            axes.text(column, row - 0.14, f"{value:.1f}", ha="center", va="center", color=ink, weight=weight)
            axes.text(column, row + 0.24, control, ha="center", va="center", color=ink, fontsize=7)
    axes.tick_params(length=0, colors=_INK)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label=scale, shrink=0.9)
    return figure, axes


def _color_ticks(axes: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Names of attributes in their own colours."""
    for names, labels in ((columns, axes.get_xticklabels()), (rows, axes.get_yticklabels())):
        for name, label in zip(names, labels, strict=True):
            label.set_color(color_of(name))
