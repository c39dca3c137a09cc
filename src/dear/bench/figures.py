"""The figures of a report: few-shot curves, base against novel, fusion weights, ablations."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dear.bench.ablations import AblationResults, ablation_results
from dear.bench.chapters import AVERAGE, on_split
from dear.bench.results import BASE_TO_NOVEL, FEW_SHOT, PROTOCOLS, CellResult
from dear.bench.series import HM, Series, Stat, average, by_label, complete_methods, datasets_of, labels, series
from dear.bench.tables import main_results
from dear.methods.registry import is_ours
from dear.trials.outcome import BASE, NOVEL, TEST

_INK, _SOFT, _LINE = "#23262b", "#6a6f78", "#dddbd4"
_OWN_COLORS = ("#d1495b", "#7a1f33", "#f08fa5")
_OTHER_COLORS = ("#4c566a", "#2e86ab", "#e09f3e", "#4f9d69", "#8f6bb3", "#16919b", "#8c5a3c", "#6f9a1f", "#b8972f")
_MARKERS = "osD^vPX*ph"
_LEAST_RANGE = 1.0  # percentage points to either side, so that noise is not blown up
_FAR = 15.0  # points of HM below the best, where base against novel only names a method, or the others were one blot
_MOST_PANELS = 8  # beyond, base against novel shows the average alone
_LINE_LENGTH = 48  # of text below a panel


@dataclass
class ReportFigure:
    """A figure, the name of its file, the chapter it belongs to, and what it shows."""

    name: str
    chapter: str
    caption: str
    figure: Figure


def pictures(results: Sequence[CellResult]) -> list[ReportFigure]:
    drawn = []
    for split, group in main_results(results, BASE_TO_NOVEL).items():
        suffix = _suffix(split)
        caption = "Base against novel accuracy (%), mean over seeds, bars: std. Grey lines: equal HM."
        if any(HM in s.names for s in series(group)):
            figure = _base_novel(group)
            drawn.append(ReportFigure(f"base_novel{suffix}", BASE_TO_NOVEL, on_split(caption, split), figure))
        with_fusion = [result for result in group if is_ours(result.cell.method) and result.fusion]
        if with_fusion:
            caption = "Fusion weights learned on the base classes, mean over seeds; colour: square root."
            drawn.append(ReportFigure(f"fusion_weights{suffix}", BASE_TO_NOVEL, caption, _fusion_weights(with_fusion)))
    for split, group in main_results(results, FEW_SHOT).items():
        if len({result.cell.shots for result in group}) > 1:
            caption = on_split("Accuracy (%) by images per class, mean over seeds, bands: std.", split)
            drawn.append(ReportFigure(f"few_shot{_suffix(split)}", FEW_SHOT, caption, _few_shot_curves(group)))
    ablations = [a for a in ablation_results(results) if any(a.comparisons.values())]
    if ablations:
        caption = "Difference to the default in percentage points, bars: its 95% interval."
        drawn.append(ReportFigure("ablations", "ablations", caption, _ablation_bars(ablations)))
    return drawn


def _suffix(split: str) -> str:
    return "" if split == TEST else f"_{split}"


def _styles(all_series: Sequence[Series]) -> dict[str, dict[str, Any]]:
    """Colour and marker of each method: there are more methods than colours that can be told apart. Ours stand out."""
    methods = list(by_label(all_series))
    own = [label for label in methods if is_ours(label)]
    others = [label for label in methods if label not in own]
    colors = {label: _OTHER_COLORS[i % len(_OTHER_COLORS)] for i, label in enumerate(others)}
    colors |= {label: _OWN_COLORS[i % len(_OWN_COLORS)] for i, label in enumerate(own)}
    return {label: {"color": colors[label], "marker": _MARKERS[i % len(_MARKERS)]} for i, label in enumerate(methods)}


def _panels(count: int, width: float = 4.0, height: float = 3.3) -> tuple[Figure, list[Axes]]:
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)  # type: ignore[union-attr, call-arg]
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(count)]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(_LINE)
        axis.tick_params(colors=_SOFT, labelsize=9, length=0)
        axis.grid(color=_LINE, linewidth=0.6, alpha=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One for all panels: above them, or beside a single one."""
    entries = {name: handle for axis in axes for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    if not entries:
        return
    each = 0.6 + 0.085 * max(map(len, entries))  # inches that an entry takes
    columns = max(1, min(len(entries), int(figure.get_figwidth() / each)))
    if len(axes) == 1:
        figure.set_figwidth(figure.get_figwidth() + 1 + each)
        columns = 1
    else:
        figure.set_figheight(figure.get_figheight() + 0.21 * -(-len(entries) // columns))
    place = "outside right center" if len(axes) == 1 else "outside upper center"
    style: dict[str, Any] = {"loc": place, "ncols": columns, "frameon": False, "fontsize": 10, "labelcolor": _INK}
    figure.legend(list(entries.values()), list(entries), **style)


def _dataset_panels(
    all_series: Sequence[Series], height: float, most: int | None = None
) -> tuple[Figure, list[tuple[Axes, dict[str, list[Series]]]]]:
    """A panel for each dataset, with the series of each method, then one for their average; with more than `most`, for
    the average alone."""
    datasets, methods = datasets_of(all_series), by_label(all_series)
    parts = {dataset: by_label(s for s in all_series if s.dataset == dataset) for dataset in datasets}
    complete = complete_methods(all_series)
    if len(datasets) > 1 and complete:
        parts[AVERAGE] = {label: methods[label] for label in complete}
        if most and len(parts) > most:
            parts = {AVERAGE: parts[AVERAGE]}
    figure, axes = _panels(len(parts), height=height)
    for axis, title in zip(axes, parts, strict=True):
        axis.set_title(title, fontsize=11, color=_INK, fontweight="bold" if title == AVERAGE else "normal")
    return figure, list(zip(axes, parts.values(), strict=True))


def _stat(own: Sequence[Series], name: str) -> Stat | None:
    return average(own, datasets_of(own), name)


def _few_shot_curves(results: list[CellResult]) -> Figure:
    all_series = series(results, by_shots=True)
    shots = sorted({result.cell.shots for result in results})
    styles = _styles(all_series)
    figure, panels = _dataset_panels(all_series, height=3.3)
    for axis, methods in panels:
        for label, own in methods.items():
            points = [(n, s) for n in shots if (s := _stat(own, str(n)))]
            x, y = [shots.index(n) for n, _ in points], np.array([s.mean for _, s in points])
            spread = np.array([s.std or 0.0 for _, s in points])
            color = styles[label]["color"]
            width: dict[str, Any] = {"linewidth": 2.4, "zorder": 3} if is_ours(label) else {"linewidth": 1.5}
            if len(x) == 1:  # it does not depend on shots
                axis.axhline(y[0], color=color, linestyle="--", label=label, **width)
                continue
            axis.plot(x, y, markersize=5, label=label, **styles[label], **width)
            axis.fill_between(x, y - spread, y + spread, color=color, alpha=0.14, linewidth=0)
        axis.set_xticks(range(len(shots)), [str(n) for n in shots])
        axis.set_xlabel("images per class", fontsize=9, color=_SOFT)
    panels[0][0].set_ylabel("accuracy (%)", fontsize=9, color=_SOFT)
    _legend(figure, [axis for axis, _ in panels])
    return figure


def _base_novel(results: list[CellResult]) -> Figure:
    all_series = [s for s in series(results) if s.stat(HM)]
    styles = _styles(all_series)
    figure, panels = _dataset_panels(all_series, height=3.6, most=_MOST_PANELS)
    for axis, methods in panels:
        means = {label: hm.mean for label, own in methods.items() if (hm := _stat(own, HM))}
        far = [label for label, mean in means.items() if mean < max(means.values()) - _FAR]
        for label, own in methods.items():
            base, novel = _stat(own, BASE), _stat(own, NOVEL)
            if base and novel and label not in far:
                axis.errorbar(
                    novel.mean, base.mean, xerr=novel.std, yerr=base.std, markersize=9 if is_ours(label) else 7,
                    linestyle="none", elinewidth=1, label=label, zorder=3, **styles[label],
                )  # fmt: skip
        axis.margins(0.22)
        _equal_hm(axis)
        axis.grid(visible=False)
        below = "far below, with HM: " + ", ".join(f"{label}\N{NO-BREAK SPACE}{means[label]:.1f}" for label in far)
        lines = ["novel classes (%)", *(textwrap.wrap(below, _LINE_LENGTH, break_on_hyphens=False) if far else ())]
        axis.set_xlabel("\n".join(lines), fontsize=9, color=_SOFT)
        axis.set_ylabel("base classes (%)", fontsize=9, color=_SOFT)
    _legend(figure, [axis for axis, _ in panels])
    return figure


def _equal_hm(axis: Axes) -> None:
    """Lines on which base and novel have the same harmonic mean, within the present limits of the axis."""
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    novel, base = np.meshgrid(np.linspace(max(left, 1), right, 120), np.linspace(max(low, 1), high, 120))
    lines = axis.contour(novel, base, 2 * novel * base / (novel + base), levels=5, colors=_LINE, linewidths=1, zorder=1)
    axis.clabel(lines, fontsize=8, colors=_SOFT, fmt=lambda hm: f"HM {hm:g}")
    axis.set(xlim=(left, right), ylim=(low, high))


def _fusion_weights(results: list[CellResult]) -> Figure:
    groups: dict[str, list[dict[str, float]]] = {}
    names = labels(results)
    several = len(set(names)) > 1
    for result, label in zip(results, names, strict=True):
        row = f"{result.cell.dataset}, {label}" if several else result.cell.dataset
        groups.setdefault(row, []).append(result.fusion or {})
    parts = list(dict.fromkeys(part for group in groups.values() for weights in group for part in weights))
    grid = np.array([[fmean(w.get(part, 0.0) for w in group) for part in parts] for group in groups.values()])
    figure, (axis,) = _panels(1, width=1.8 + 0.95 * len(parts), height=1.1 + 0.42 * len(groups))
    # By the square root: CLS outweighs the others so far that they would all look the same.
    axis.pcolormesh(np.sqrt(grid), cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=2)
    for (row, column), value in np.ndenumerate(grid):
        ink = "white" if value > 0.3 else _INK
        axis.text(column + 0.5, row + 0.5, f"{value:.2f}", ha="center", va="center", fontsize=10, color=ink)
    axis.set_xticks([i + 0.5 for i in range(len(parts))], parts)
    axis.set_yticks([i + 0.5 for i in range(len(groups))], list(groups))
    axis.invert_yaxis()
    axis.tick_params(colors=_INK, labelsize=10)
    axis.xaxis.tick_top()
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    return figure


def _ablation_bars(ablations: list[AblationResults]) -> Figure:
    most = max(len(ablation.rows) for ablation in ablations)
    figure, axes = _panels(len(ablations), width=4.6, height=1.2 + 0.42 * most)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    for axis, ablation in zip(axes, ablations, strict=True):
        for row, value in enumerate(ablation.rows):
            comparison = ablation.comparisons[value]
            if comparison:
                mean = comparison.difference
                color = "#4f9d69" if mean >= 0 else _OWN_COLORS[0]
                style: dict[str, Any] = {"color": color, "marker": "o", "markersize": 7, "elinewidth": 2, "capsize": 3}
                ends = [[max(0.0, mean - comparison.low)], [max(0.0, comparison.high - mean)]]
                axis.errorbar(mean, row, xerr=ends, linestyle="none", **style)
                axis.annotate(
                    f"{mean:+.1f}".replace("-", "−"), (mean, row), (0, 7), textcoords="offset points", ha="center",
                    fontsize=9, color=_INK, zorder=4, bbox=box,
                )  # fmt: skip
            elif ablation.is_default(value):
                axis.plot(0, row, marker="D", markersize=7, color=_SOFT)
        axis.axvline(0, color=_SOFT, linewidth=1)
        names = [f"{value}\n(default)" if ablation.is_default(value) else value for value in ablation.rows]
        axis.set_yticks(range(len(names)), names, color=_INK)
        axis.set_ylim(most - 0.5, -0.7)  # bars of the same thickness in all panels
        axis.margins(x=0.15)
        left, right = axis.get_xlim()
        axis.set_xlim(min(left, -_LEAST_RANGE), max(right, _LEAST_RANGE))
        axis.locator_params(axis="x", nbins=5)  # more would touch each other in a narrow panel
        axis.grid(visible=False, axis="y")
        split = "" if ablation.split == TEST else f", {ablation.split}"
        title = f"{ablation.name}\n{PROTOCOLS[ablation.protocol].title.lower()}, {ablation.shots} shots{split}"
        axis.set_title(title, fontsize=10.5, color=_INK)
        axis.set_xlabel(f"{ablation.score} − default", fontsize=9, color=_SOFT)
    return figure
