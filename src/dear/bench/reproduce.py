"""The paper's tables and figures as grids of cells: at full size, or as a small preset that runs in minutes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dear.bench.ablations import ABLATIONS, Rows, ablation_cells
from dear.bench.grid import plan
from dear.bench.paper import BACKBONE, METHODS_OF_PAPER
from dear.bench.results import BASE_TO_NOVEL, CROSS_DATASET, DOMAIN, FEW_SHOT, FEW_SHOTS, Cell
from dear.bench.series import is_zero_shot
from dear.core.errors import DearError

_SIX = ("coop", "maple", "promptsrc", "mmrl", "tac", "dear")  # of Tables 3 and 4
_ELEVEN = ("ImageNet", "Caltech101", "OxfordPets", "StanfordCars", "Flowers102", "Food101", "FGVCAircraft", "SUN397",
           "DTD", "EuroSAT", "UCF101")  # fmt: skip
_VARIANTS = ("ImageNetV2", "ImageNet-Sketch", "ImageNet-A", "ImageNet-R")

FULL: Mapping[str, Any] = {**BACKBONE, "roles": "paper"}
SUBSET: Mapping[str, Any] = {"model": "dear-mini", "pretrained": None, "epochs": 2}
_SUBSET_SHOTS = 4


@dataclass(frozen=True)
class Reproduction:
    """`ablation`: name and rows, for tables of ablations. `heads`: it measures heads instead of running cells.

    `small`: datasets, targets and shots of the subset.
    """

    title: str
    protocol: str = BASE_TO_NOVEL
    methods: tuple[str, ...] = ("dear",)
    datasets: tuple[str, ...] = _ELEVEN
    targets: tuple[str, ...] = ()
    shots: tuple[int, ...] = (16,)
    ablation: tuple[str, tuple[str, ...]] | None = None
    heads: bool = False
    small: tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]] = (("world:textures:night",), (), (_SUBSET_SHOTS,))


_FEW_SHOT_SMALL = (("world:textures:night",), (), (1, 2, 4))
REPRODUCTIONS = {
    "table1": Reproduction("heads of ViT-B/16 and their attributes", heads=True),
    "table2": Reproduction("base to novel, eleven datasets", methods=tuple(METHODS_OF_PAPER.values())),
    "table3": Reproduction(
        "cross-dataset, from ImageNet", CROSS_DATASET, _SIX, ("ImageNet",), _ELEVEN[1:],
        small=(("world:textures",), ("world:shapes", "world:places"), (_SUBSET_SHOTS,)),
    ),
    "table4": Reproduction(
        "domain generalization, from ImageNet", DOMAIN, _SIX, ("ImageNet",), _VARIANTS,
        small=(("world:textures",), ("world:textures:sketch", "world:textures:night"), (_SUBSET_SHOTS,)),
    ),
    "table5": Reproduction(
        "strategies of the role mask", ablation=("masks", ("DeAR", "all mixed", "all generalization"))
    ),
    "table6": Reproduction("terms of the loss", ablation=("loss", ("CE", "CE + reg", "CE + reg + fusion"))),
    "figure3": Reproduction("images retrieved by attribute", heads=True),
    "figure4": Reproduction("few-shot, average of eleven datasets", FEW_SHOT, ("zero-shot", *_SIX), shots=FEW_SHOTS,
                            small=_FEW_SHOT_SMALL),
    "figure5": Reproduction("few-shot, each of eleven datasets", FEW_SHOT, ("zero-shot", *_SIX), shots=FEW_SHOTS,
                            small=_FEW_SHOT_SMALL),
}  # fmt: skip


def find_reproduction(name: str) -> Reproduction:
    """By name: table2, "Table 2", fig4."""
    key = name.lower().replace(" ", "").replace("figure", "fig").replace("fig", "figure")
    if key not in REPRODUCTIONS:
        raise DearError(f"The paper's {name} cannot be reproduced: choose from {', '.join(REPRODUCTIONS)}.")
    return REPRODUCTIONS[key]


def reproduction_cells(
    item: Reproduction, subset: bool, seeds: Sequence[int], methods: Sequence[str], overrides: Mapping[str, Any]
) -> list[Cell]:
    """`methods`: others than the paper's, if any; `overrides`: settings on top of those of the preset."""
    datasets, targets, shots = item.small if subset else (item.datasets, item.targets, item.shots)
    settings = {**(SUBSET if subset else FULL), **overrides}
    cells = plan(item.protocol, datasets, methods or item.methods, seeds, settings, shots, targets)
    if item.protocol == FEW_SHOT:  # zero-shot is the same at any number of shots
        cells = [cell for cell in cells if not is_zero_shot(cell) or cell.shots == shots[0]]
    if item.ablation is None:
        return cells
    name, values = item.ablation
    rows = ABLATIONS[name].rows
    assert isinstance(rows, dict)
    chosen: dict[str, Rows] = {name: {value: rows[value] for value in values}}
    return ablation_cells(cells, chosen)
