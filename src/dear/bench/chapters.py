"""What a report is made of: chapters of tables under titles, and a list of what is missing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dear.bench.results import Result
from dear.bench.series import missing
from dear.core.table import Table
from dear.trials.outcome import TEST

AVERAGE = "Average"


@dataclass
class Block:
    """A table under its title. `name`: of its files. `main`: printed by `dear report`, and unfolded on the page."""

    name: str
    title: str
    table: Table
    note: str = ""
    main: bool = True


@dataclass
class Chapter:
    """`missing`: what the chapter's grid lacks, a sentence for each method."""

    name: str
    title: str
    blocks: list[Block]
    missing: list[str] = field(default_factory=list)


def on_split(text: str, split: str) -> str:
    return text if split == TEST else f"{text}, {split} images"


def list_missing(results: Sequence[Result]) -> list[str]:
    """A sentence for each method: "experts, 16 shots: DTD, EuroSAT (seeds 2, 3)".

    Datasets with equal seeds, and shots with equal datasets, are named together.
    """
    by_method: dict[str, dict[int, dict[str, list[int]]]] = {}
    on = on_split("", results[0].cell.split)
    for data, label, seed, shots in missing(results):
        by_method.setdefault(label, {}).setdefault(shots, {}).setdefault(data, []).append(seed)
    return [
        f"{label}, {_joined(shots)} {'shot' if shots == (1,) else 'shots'}{on}: {places}"
        for label, by_shots in by_method.items()
        for places, shots in _alike({number: _places(seeds) for number, seeds in by_shots.items()})
    ]


def _joined(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _places(seeds: dict[str, list[int]]) -> str:
    alike = _alike({data: tuple(numbers) for data, numbers in seeds.items()})
    return ", ".join(
        f"{_joined(data)} ({'seed' if len(numbers) == 1 else 'seeds'} {_joined(numbers)})" for numbers, data in alike
    )


def _alike(values: dict[Any, Any]) -> list[tuple[Any, tuple[Any, ...]]]:
    """Each value, with the keys that have it."""
    keys: dict[Any, tuple[Any, ...]] = {}
    for key, value in values.items():
        keys[value] = (*keys.get(value, ()), key)
    return list(keys.items())
