"""Ablations: each value of one setting against the default, paired by dataset and seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dear.bench.results import BASE_TO_NOVEL, FEW_SHOT, Cell, Variant
from dear.bench.summary import ALL, HM, TARGETS, Difference, Series, differences_in, paired_difference, series


@dataclass(frozen=True)
class Ablation:
    """All that was run of one ablation under one protocol, on one split, with one number of shots."""

    name: str
    protocol: str
    split: str
    shots: int
    cells: list[Cell]  # with the value in place of the method, so that each value is compared like a method
    rows: dict[str, list[Series]]  # of each value, the default first

    @property
    def names(self) -> tuple[str, ...]:
        """The scores that are shown; the last one is compared."""
        return {BASE_TO_NOVEL: ("base", "novel", HM), FEW_SHOT: (ALL,)}.get(self.protocol, (TARGETS,))

    @property
    def score(self) -> str:
        return self.names[-1]

    def is_default(self, value: str) -> bool:
        return any(cell.variant and cell.variant.default for s in self.rows[value] for cell in s.cells)

    def difference(self, value: str) -> Difference | None:
        """To the default; among several defaults, to the one with the same settings."""
        defaults = [other for other in self.rows if self.is_default(other)]
        if len(defaults) > 1:
            defaults = [other for other in defaults if _said(other) == _said(value)]
        if len(defaults) != 1 or value in defaults:
            return None
        return paired_difference(self.rows[value], self.rows[defaults[0]], self.score)


def ablations(cells: Sequence[Cell]) -> list[Ablation]:
    """Those that were run, and the inference, which every cell of dear answers by itself."""
    groups: dict[tuple[str, str, str, int], list[Cell]] = {}
    for cell in [*cells, *_inference_variants(cells)]:
        if cell.variant:
            groups.setdefault((cell.variant.ablation, cell.protocol, cell.split, cell.shots), []).append(cell)
    found = []
    for (name, protocol, split, shots), group in groups.items():
        group += _defaults(group, cells)
        several = len({cell.method for cell in group}) > 1
        named = [_with_value_as_method(cell, several) for cell in sorted(group, key=_order)]
        rows: dict[str, list[Series]] = {}
        for s in series(named):
            rows.setdefault(s.label, []).append(s)
        found.append(Ablation(name, protocol, split, shots, named, rows))
    return found


def _defaults(variants: Sequence[Cell], cells: Sequence[Cell]) -> list[Cell]:
    """Unless the ablation brings its own: the unchanged cells beside its variants, at the fewest other settings."""
    if any(cell.variant and cell.variant.default for cell in variants):
        return []
    found: dict[int, Cell] = {}
    for changed in variants:
        assert changed.variant
        beside = [c for c in cells if c.variant is None and _place(c) == _place(changed)]
        if beside:
            nearest = min(beside, key=lambda c: len(differences_in([c.settings, changed.settings])))
            kept = replace(changed.variant, value=changed.variant.default_value, default=True)
            found[id(nearest)] = replace(nearest, variant=kept)
    return list(found.values())


def _place(cell: Cell) -> tuple[object, ...]:
    return cell.protocol, cell.split, cell.method, cell.dataset, cell.targets, cell.seed, cell.shots


def _with_value_as_method(cell: Cell, several_methods: bool) -> Cell:
    assert cell.variant
    value = cell.variant.value
    return replace(cell, method=f"{cell.method}: {value}" if several_methods else value)


def _order(cell: Cell) -> tuple[object, ...]:
    """Numbers by their size; of words, the default first."""
    assert cell.variant
    try:
        return 0, float(cell.variant.value), False, cell.dataset
    except ValueError:
        return 1, 0.0, not cell.variant.default, cell.variant.value, cell.dataset


_BY_PART = {  # inference for base and for novel classes; the last is MMRL's
    "fusion": ("fusion", "fusion"),
    "decoupled": ("decoupled", "decoupled"),
    "fusion, novel decoupled": ("fusion", "decoupled"),
}


def _inference_variants(cells: Sequence[Cell]) -> list[Cell]:
    if any(cell.variant and cell.variant.ablation == "inference" for cell in cells):
        return []
    found = []
    for cell in cells:
        kinds = {e.inference for e in cell.evaluations}
        if cell.variant is None and cell.protocol == BASE_TO_NOVEL and {"fusion", "decoupled"} <= kinds:
            for name, parts in _BY_PART.items():
                wanted = set(zip(("base", "novel"), parts, strict=True))
                only = [e for e in cell.evaluations if (e.name, e.inference) in wanted]
                found.append(replace(cell, variant=Variant("inference", name, name == "fusion"), evaluations=only))
    return found


def _said(label: str) -> str:
    """The settings that a label names."""
    return label.partition(" (")[2]
