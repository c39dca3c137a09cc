"""The paper's tables and figures as grids of cells: at full size, or as a small preset that runs in minutes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dear.bench.ablations import ABLATIONS, Rows, ablation_cells
from dear.bench.chapters import Block, Chapter
from dear.bench.grid import plan
from dear.bench.paper import BACKBONE, METHODS_OF_PAPER
from dear.bench.results import BASE_TO_NOVEL, CROSS_DATASET, DOMAIN, FEW_SHOT, FEW_SHOTS, Cell
from dear.bench.series import is_zero_shot
from dear.clip import Backbone
from dear.core.errors import DearError
from dear.core.table import Table
from dear.heads.by_pictures import roles_by_pictures
from dear.heads.check_search import check_by_search
from dear.heads.pictures import find_probes
from dear.heads.role_map import RoleMap

_SIX = ("coop", "maple", "promptsrc", "mmrl", "tac", "dear")  # of Tables 3 and 4
_ELEVEN = ("ImageNet", "Caltech101", "OxfordPets", "StanfordCars", "Flowers102", "Food101", "FGVCAircraft", "SUN397",
           "DTD", "EuroSAT", "UCF101")  # fmt: skip
_VARIANTS = ("ImageNetV2", "ImageNet-Sketch", "ImageNet-A", "ImageNet-R")

FULL: Mapping[str, Any] = {**BACKBONE, "roles": "paper"}
SUBSET: Mapping[str, Any] = {"model": "dear-mini", "pretrained": None, "epochs": 2}
_SUBSET_SHOTS = 4
TABLE_1 = {"object": (12, 7), "shape": (12, 5), "texture": (11, 5), "color": (12, 10), "location": (12, 0)}
"""The paper's example of a head for each attribute, (layer, head), in OpenAI's ViT-B/16."""


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
    """Finds a table or figure by its name, such as table2, "Table 2" or fig4."""
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


def heads_chapter(table: str, backbone: Backbone, limit: int | None = None) -> Chapter:
    """`limit`: pictures to measure on."""
    size = max(backbone.image.image_size)
    role_map = roles_by_pictures(backbone, find_probes([], size, limit))
    if "1" in table:
        block = _examples(backbone, role_map)
    else:
        found = check_by_search(backbone, role_map, find_probes([], size, limit, held_out=True))
        note = "The paper shows pictures, no numbers. " + found.verdict()
        block = Block("retrieval", "Pictures that share the attribute among the ten nearest", found.table(), note)
    return Chapter("paper", f"{table}, beside the paper", [block])


def _examples(backbone: Backbone, role_map: RoleMap) -> Block:
    """The paper's head of each attribute, its measured role, and the heads that were measured for it."""
    same_tower = (backbone.image.layers, backbone.image.heads) == (12, 12)
    table = Table(["attribute", "paper", "its role, measured", "heads measured for it", "verdict"])
    agree = 0
    for attribute, head in TABLE_1.items():
        ours = ", ".join(f"L{layer} H{number}" for layer, number in role_map.heads_for(attribute)) or "none"
        role = role_map[head] if same_tower else None
        measured = None if role is None else f"{role.role}" + (f", {role.concept}" if role.concept else "")
        verdict = "another tower" if role is None else "same" if head in role_map.heads_for(attribute) else "other"
        agree += verdict == "same"
        table.add(attribute, f"L{head[0]} H{head[1]}", measured, ours, verdict)
    note = (
        f"{agree} of {len(TABLE_1)} heads have the paper's attribute."
        if same_tower
        else (
            f"The paper's heads are those of ViT-B/16; {backbone.name} has {backbone.image.layers} layers of "
            f"{backbone.image.heads} heads."
        )
    )
    return Block("heads", "Heads and their attributes", table, note)
