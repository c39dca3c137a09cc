"""Results of ablations: each value of one setting against the default, paired by dataset and seed."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dear.bench.protocols import BASE, BASE_TO_NOVEL, NOVEL, PROTOCOLS
from dear.bench.results import Result, Variant
from dear.bench.summary import HM, TARGETS, Difference, Series, differences_in, paired_difference, series
from dear.core.names import DECOUPLED, FUSION

INFERENCE = "inference"
_INFERENCE_OF = {  # of base and of novel classes; the last is MMRL's
    FUSION: (FUSION, FUSION),
    DECOUPLED: (DECOUPLED, DECOUPLED),
    f"{FUSION}, novel {DECOUPLED}": (FUSION, DECOUPLED),
}


@dataclass(frozen=True)
class AblationResults:
    """All results of one ablation under one protocol, on one split, with one number of shots."""

    name: str
    protocol: str
    split: str
    shots: int
    results: list[Result]  # with the value in place of the method, so that values are compared like methods
    rows: dict[str, list[Series]]  # by value, the default first

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores in the table; the last one is compared."""
        evaluations = PROTOCOLS[self.protocol].evaluations
        return (*evaluations, HM) if self.protocol == BASE_TO_NOVEL else evaluations or (TARGETS,)

    @property
    def score(self) -> str:
        return self.scores[-1]

    def is_default(self, value: str) -> bool:
        variants = [result.cell.variant for s in self.rows[value] for result in s.results]
        return any(variant and variant.default for variant in variants)

    def difference(self, value: str) -> Difference | None:
        """To the default; among several defaults, to the one with the same settings."""
        defaults = [other for other in self.rows if self.is_default(other)]
        if len(defaults) > 1:
            defaults = [other for other in defaults if _settings_in(other) == _settings_in(value)]
        if len(defaults) != 1 or value in defaults:
            return None
        return paired_difference(self.rows[value], self.rows[defaults[0]], self.score)


def ablation_results(results: Sequence[Result]) -> list[AblationResults]:
    """All ablations that were run, and that of inference, for which every result with fusion has the numbers."""
    groups: dict[tuple[str, str, str, int], list[Result]] = {}
    for result in [*results, *_inference_variants(results)]:
        cell = result.cell
        if cell.variant:
            groups.setdefault((cell.variant.ablation, cell.protocol, cell.split, cell.shots), []).append(result)
    ablations = []
    for (name, protocol, split, shots), group in groups.items():
        group += _defaults(group, results)
        several = len({result.cell.method for result in group}) > 1
        by_value = [_with_value_as_method(result, several) for result in sorted(group, key=_order)]
        rows: dict[str, list[Series]] = {}
        for s in series(by_value):
            rows.setdefault(s.label, []).append(s)
        ablations.append(AblationResults(name, protocol, split, shots, by_value, rows))
    return sorted(ablations, key=lambda a: (a.name, list(PROTOCOLS).index(a.protocol)))


def _defaults(variants: Sequence[Result], results: Sequence[Result]) -> list[Result]:
    """The unchanged cells with the most similar settings, unless the ablation has its own default."""
    if any(result.cell.variant and result.cell.variant.default for result in variants):
        return []
    defaults: dict[int, Result] = {}
    for changed in variants:
        assert changed.cell.variant
        unchanged = [r for r in results if r.cell.variant is None and _place(r) == _place(changed)]
        if unchanged:
            nearest = min(unchanged, key=lambda r: len(differences_in([r.cell.settings, changed.cell.settings])))
            variant = replace(changed.cell.variant, value=changed.cell.variant.default_value, default=True)
            defaults[id(nearest)] = _with_variant(nearest, variant)
    return list(defaults.values())


def _place(result: Result) -> tuple[object, ...]:
    cell = result.cell
    return cell.protocol, cell.split, cell.method, cell.dataset, cell.targets, cell.seed, cell.shots


def _with_variant(result: Result, variant: Variant) -> Result:
    return replace(result, cell=replace(result.cell, variant=variant))


def _with_value_as_method(result: Result, several_methods: bool) -> Result:
    cell = result.cell
    assert cell.variant
    method = f"{cell.method}: {cell.variant.value}" if several_methods else cell.variant.value
    return replace(result, cell=replace(cell, method=method))


def _order(result: Result) -> tuple[object, ...]:
    """Numbers by size; words with the default first."""
    variant, dataset = result.cell.variant, result.cell.dataset
    assert variant
    try:
        return 0, float(variant.value), False, dataset
    except ValueError:
        return 1, 0.0, not variant.default, variant.value, dataset


def _inference_variants(results: Sequence[Result]) -> list[Result]:
    if any(result.cell.variant and result.cell.variant.ablation == INFERENCE for result in results):
        return []
    variants = []
    for result in results:
        cell, inferences = result.cell, {e.inference for e in result.evaluations}
        if cell.variant is None and cell.protocol == BASE_TO_NOVEL and {FUSION, DECOUPLED} <= inferences:
            for value, parts in _INFERENCE_OF.items():
                chosen = set(zip((BASE, NOVEL), parts, strict=True))
                evaluations = [e for e in result.evaluations if (e.name, e.inference) in chosen]
                variant = Variant(INFERENCE, value, default=value == FUSION)
                variants.append(replace(_with_variant(result, variant), evaluations=evaluations))
    return variants


def _settings_in(label: str) -> str:
    """The settings that a label names."""
    return label.partition(" (")[2]
