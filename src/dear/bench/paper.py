"""The numbers printed in the paper, for the datasets that a report has."""

import json
import re
from collections.abc import Container, Iterable
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from dear.bench.protocols import BASE, CROSS_DATASET, NOVEL
from dear.bench.summary import HM, Stat
from dear.core.metrics import harmonic_mean
from dear.core.table import Table
from dear.data.known import KNOWN

_RESULTS = Path(__file__).parent / "assets" / "paper_results.json"

_OTHER_NAMES = {"ImageNetV2": "V2", "ImageNet-Sketch": "Sketch", "ImageNet-A": "A", "ImageNet-R": "R"}


def paper_name(dataset: str) -> str | None:
    """The paper's name of a dataset, if the last part of its path is that name or the name of CoOp's folder.

    Shorter names don't count: a folder called "pets" may hold anybody's pets.
    """
    last = _plain(Path(dataset).name)
    entry = next((k for k in KNOWN if last in (_plain(k.name), _plain(k.folder))), None)
    return None if entry is None else _OTHER_NAMES.get(entry.name, entry.name)


def base_to_novel_table(datasets: Iterable[str]) -> Table | None:
    """Every method's numbers on the given datasets, as far as the paper has them, and their average.

    HM is computed from the printed base and novel: the printed HM is not always theirs.
    """
    methods = printed()["base_to_novel"]
    names = _paper_names(datasets, methods["DeAR"])
    table = Table(["dataset", "method", BASE, NOVEL, HM])

    def add(dataset: str, method: str, base: float, novel: float) -> None:
        table.add(dataset, method, *(Stat(value, digits=2) for value in (base, novel, harmonic_mean(base, novel))))

    for name in names:
        for method, numbers in methods.items():
            add(name, method, numbers[name][BASE], numbers[name][NOVEL])
    if len(names) > 1:
        for method, numbers in methods.items():
            add("Average", method, *(fmean(numbers[name][part] for name in names) for part in (BASE, NOVEL)))
    return table if names else None


def transfer_table(protocol: str, source: str, targets: Iterable[str]) -> Table | None:
    """Every method's numbers from ImageNet to the given targets, as far as the paper has them."""
    methods = printed()["cross_dataset" if protocol == CROSS_DATASET else "domain_generalization"]
    names = _paper_names(targets, methods["DeAR"])
    if paper_name(source) != "ImageNet" or not names:
        return None
    table = Table(["method", "ImageNet (source)", *names, "average of these"])
    for method, numbers in methods.items():
        values = [numbers[name] for name in names]
        table.add(method, *(Stat(value, digits=2) for value in (numbers["source_imagenet"], *values, fmean(values))))
    return table


def _paper_names(datasets: Iterable[str], printed: Container[str]) -> list[str]:
    return list(dict.fromkeys(name for d in datasets if (name := paper_name(d)) and name in printed))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def printed() -> dict[str, Any]:
    """All numbers, by table, method and dataset."""
    return json.loads(_RESULTS.read_text(encoding="utf-8"))
