"""The causal test as a heat map: without the heads of a concept (row), what does each attribute (column) lose?"""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dear.drawing import save_figure
from dear.roles.causal import CausalResult

_INK = "#23262b"


def plot_causal(result: CausalResult, path: str | Path) -> None:
    """Colour: points lost beyond random heads. In a cell: points lost, and below it those without random heads."""
    attributes, effects = list(result.accuracy), result.effects
    excess = [[effect.excess(a) for a in attributes] for effect in effects]
    limit = max(1.0, *(abs(value) for row in excess for value in row))
    figure = Figure(figsize=(2.2 + 1.25 * len(attributes), 1.9 + 0.62 * len(effects)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(excess, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    for row, effect in enumerate(effects):
        for column, a in enumerate(attributes):
            ink = "white" if abs(excess[row][column]) > 0.6 * limit else _INK
            weight = "bold" if effect.concept == a else "normal"
            axes.text(column, row - 0.14, f"{effect.drop[a]:.1f}", ha="center", va="center", color=ink, weight=weight)
            control = f"{effect.random_mean[a]:.1f} ± {effect.random_std[a]:.1f}"
            axes.text(column, row + 0.24, control, ha="center", va="center", color=ink, fontsize=7)
    axes.set_xticks(range(len(attributes)), [f"{a}\n{result.accuracy[a]:.1f}%" for a in attributes])
    axes.set_yticks(range(len(effects)), [f"{e.concept} ({len(e.heads)} heads)" for e in effects])
    axes.set(xlabel="attribute, and its zero-shot accuracy with all heads", ylabel="without the heads of")
    axes.tick_params(length=0, colors=_INK)
    axes.spines[:].set_visible(False)
    axes.set_title("Points of accuracy lost (small: as many random heads)", fontsize=11, loc="left", color=_INK)
    figure.colorbar(image, ax=axes, label="lost beyond random heads", shrink=0.9)
    save_figure(figure, path, dpi=160, facecolor="white")
