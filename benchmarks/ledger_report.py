"""Report of the ledger: concessions and methods in points, with intervals, as tables and a figure."""

from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from dear.core.files import write_text
from dear.core.table import Table

SHOTS = (1, 2, 4, 8, 16)
CHOSEN = ("tip-adapter", "ss-text", "gda", "proker")  # settings are chosen, by whatever rule
TRAINED = ("zs-lp", "clip-adapter", "tip-adapter-f")  # an epoch is chosen
STRENGTHS = tuple(2.0**power for power in range(-6, 6))
RULES = {
    "test": "strengths on test images",
    "val": "strengths on the whole validation split",
    "few": "strengths on up to four validation images a class",
    "more": "those validation images as further shots",
}
PARTLY = ("caltech", "pack_dtd", "pack_eurosat")  # encoded for other ends
REDRAWN = ("dtd", "food101")  # a draw has test images of its own: no lucky shots there

Values = dict[str, list[float]]
"""Differences of each set, one for each draw (or number of shots), in points."""


def interval(values: Values) -> tuple[float, float, float]:
    """Mean over sets, and its 95% interval when sets and then their draws are drawn again."""
    chance, rows = np.random.default_rng(0), [np.array(v) for v in values.values()]
    means = [
        fmean(float(chance.choice(rows[i], len(rows[i])).mean()) for i in chance.integers(len(rows), size=len(rows)))
        for _ in range(2000)
    ]
    low, high = np.percentile(means, [2.5, 97.5])
    return fmean(float(row.mean()) for row in rows), float(low), float(high)


def luck(accuracies: list[float]) -> float:
    """The expected best of three of these draws."""
    return fmean(map(max, combinations(accuracies, 3)))


def concessions(
    cells: list[dict[str, Any]], only: str | None = None, shots_only: int | None = None
) -> dict[str, Values]:
    """Points that each concession gives to one method, by set; one number for each method, number of shots and draw.

    `only`: of one method; `shots_only`: with so many shots.
    """
    found: dict[str, Values] = {}

    def add(what: str, place: str, points: float) -> None:
        found.setdefault(what, {}).setdefault(place, []).append(points)

    groups: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    for cell in cells:
        place = cell["set"]
        for name, entry in cell["found"].items():
            if only not in (None, name) or shots_only not in (None, cell["shots"]):
                continue
            if cell["kind"] == "protocol" and name != "zero-shot":
                groups.setdefault((name, cell["shots"]), {}).setdefault(place, []).append(entry)
            if cell["kind"] == "texts":
                kind = name if name == "zero-shot" else "few-shot"
                add(f"descriptions, not bare names: {kind}", place, entry["descriptions"] - entry["names"])
            elif cell["kind"] == "views":
                add("means over ten views, not the image", place, entry["views"] - entry["plain"])
            elif "epoch" in entry:
                add("best epoch on test images", place, entry["epoch"] - entry["fair"])
            elif "each" in entry:
                for key, title in RULES.items():
                    add(title, place, entry[key] - entry["fair"])
    for of_sets in groups.values():
        means = {}
        for place, entries in of_sets.items():
            several = len(entries) >= 3 and place not in REDRAWN
            fair = [entry["fair"] for entry in entries]
            if several:
                add("the best of three draws", place, luck(fair) - fmean(fair))
            if "each" in entries[0]:
                means[place] = np.mean([entry["each"] for entry in entries], 0)
                if several:
                    best = luck([entry["test"] for entry in entries])
                    add("both: strengths on test images, best of three", place, best - fmean(fair))
        for place, own in means.items():  # against the setting that is best on the other sets
            if others := [mean for other, mean in means.items() if other != place]:
                points = float(own.max() - own[int(np.mean(others, 0).argmax())])
                add("constants per data set", place, points)
    return found


def of_methods(cells: list[dict[str, Any]], key: str = "fair") -> dict[str, Values]:
    """Points of each method above the mean of those whose strengths are chosen, on the same draws."""
    found: dict[str, Values] = {}
    for cell in cells:
        if cell["kind"] == "protocol":
            level = fmean(cell["found"][name]["fair"] for name in CHOSEN)
            for name, entry in cell["found"].items():
                found.setdefault(name, {}).setdefault(cell["set"], []).append(entry[key] - level)
    return found


def without_best_set(values: Values) -> float:
    """Points that a mean over sets loses without the set on which it is largest."""
    means = sorted(fmean(v) for v in values.values())
    return fmean(means) - fmean(means[:-1])


def report(cells: list[dict[str, Any]], out: Path) -> None:
    """The tables and the figure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    protocol, methods = concessions(cells), of_methods(cells)
    best_set = {name: [without_best_set(methods[name])] for name in CHOSEN}  # here a row is a method
    protocol["the best set in the mean over sets"] = best_set
    rows: dict[str, list[Any]] = {}
    counts = [k for k in SHOTS if any(c["shots"] == k for c in cells)]
    at = {k: concessions(cells, shots_only=k) | of_methods([c for c in cells if c["shots"] == k]) for k in counts}
    names = (*CHOSEN, *TRAINED)
    of_one = {name: concessions(cells, name) for name in names}

    def mean(values: Values | None) -> str:
        return "-" if not values else f"{fmean(fmean(v) for v in values.values()):+.1f}"

    places = list(dict.fromkeys(c["set"] for c in cells))
    for title, part in (("protocol", protocol), ("method", methods)):
        table = Table([title, "points", "95% interval", *places, *(f"{k} shots" for k in counts), "numbers"])
        for name, values in sorted(part.items(), key=lambda item: -interval(item[1])[0]):
            points, low, high = interval(values)
            of_sets = [mean({p: values[p]}) if p in values else "-" for p in places]
            shots = [mean(at[k].get(name)) for k in counts]
            numbers = sum(map(len, values.values()))
            table.add(name, f"{points:+.2f}", f"{low:+.2f} to {high:+.2f}", *of_sets, *shots, numbers)
            rows[name] = [title, points, low, high]
        print(table.text())
        write_text(out / f"{title}.md", table.markdown() + "\n")
    table = Table(["protocol", *names])
    for title in protocol:
        table.add(title, *(mean(of_one[name].get(title)) for name in names))
    print(table.text())
    write_text(out / "by_method.md", table.markdown() + "\n")
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharex=True)
    for axis, title in zip(axes, ("protocol", "method"), strict=True):
        own = {name: row[1:] for name, row in rows.items() if row[0] == title}
        for place, (mean, low, high) in enumerate(reversed(own.values())):
            axis.barh(place, mean, color="#4477aa" if title == "protocol" else "#aa7744")
            axis.plot([low, high], [place, place], color="black", linewidth=1)
        axis.set_yticks(range(len(own)), list(reversed(own)), fontsize=8)
        axis.axvline(0, color="black", linewidth=0.5)
        axis.set_title({"protocol": "points by protocol", "method": "points by method (above the mean of four)"}[title])
    figure.tight_layout()
    figure.savefig(out / "ledger.png", dpi=110)
