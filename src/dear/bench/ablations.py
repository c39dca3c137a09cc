"""The paper's ablations, and one for every choice that it leaves open: their cells and their results.

An ablation is a named list of changes to the settings; each row is compared with the row that changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from dear.bench.results import BASE_TO_NOVEL, PROTOCOLS, Cell, CellResult, Variant
from dear.bench.series import HM, TARGETS, Series, by_label, compare_series, differences_in, series
from dear.core.errors import DearError
from dear.core.names import DECOUPLED, FUSION
from dear.heads.role_map import RoleMap
from dear.heads.rules import CORE_SETS
from dear.trials.outcome import BASE, NOVEL
from dear.trials.paired import Comparison

Changes = Mapping[str, Any]
Rows = dict[str, Changes]
_AS_GIVEN = "as given"
INFERENCE = "inference"
_INFERENCE_OF = {  # of base and of novel classes; the last is MMRL's
    FUSION: (FUSION, FUSION),
    DECOUPLED: (DECOUPLED, DECOUPLED),
    f"{FUSION}, novel {DECOUPLED}": (FUSION, DECOUPLED),
}


@dataclass(frozen=True)
class Ablation:
    """`rows`: the name of each row and the settings it changes; or a function that makes them for a role map and the
    settings of a method. The row that changes nothing is the default.

    `needs`: a setting that a method must have, besides those that the rows change.
    """

    title: str
    rows: Rows | Callable[[RoleMap, Mapping[str, Any]], Rows]
    needs: str = ""


def _each(setting: str, *values: Any) -> Rows:
    return {str(value): {setting: value} for value in values}


_SHUFFLES: Rows = {f"random shuffle {n}": {"role_strategy": "shuffled", "shuffle_seed": n} for n in (1, 2, 3)}
_STRATEGIES: Rows = {
    "DeAR": {"role_strategy": "as_found"},
    "all mixed": {"role_strategy": "all_mixed"},
    "all generalization": {"role_strategy": "all_generalization"},
}
_LOSSES: Rows = {
    "CE": {"lambda_reg": 0.0, "lambda_fusion": 0.0},
    "CE + reg": {"lambda_fusion": 0.0},
    "CE + reg + fusion": {},
}


def _maps(roles: RoleMap, settings: Mapping[str, Any]) -> Rows:
    maps = {_AS_GIVEN: {"role_strategy": "as_found"}, **_each("roles", *roles.other_presets())}
    return maps if "isolation" in settings else maps | _SHUFFLES  # with masks, the shuffles are among those


def _quantiles(roles: RoleMap, settings: Mapping[str, Any]) -> Rows:
    if any(role.entropy is None for role in roles.roles.values()):
        return {}
    by_experts: Rows = {} if "quantile" in roles.origin else {"experts": {"role_quantile": None}}
    return by_experts | _each("role_quantile", 0.1, 0.2, 0.3, 0.4)


ABLATIONS = {
    "masks": Ablation("attention of each head", _STRATEGIES | _SHUFFLES, needs="isolation"),
    "maps": Ablation("roles of the heads", _maps),
    "loss": Ablation("terms of the loss", _LOSSES),
    "threshold": Ablation("share of heads at either end of entropy", _quantiles),
    "attributes": Ablation(
        "number of core attributes K",
        lambda roles, _: _each("attributes", *(k for k, core in CORE_SETS.items() if {*core} <= {*roles.concepts})),
    ),
    "beta": Ablation("weight of the raw token between layers", _each("beta", 0.0, 0.3, 0.6, 0.9, 1.0)),
    "first-layer": Ablation(
        "first adapted layer J",
        lambda roles, _: {str(roles.layers[0]): {"first_layer": None}, **_each("first_layer", *roles.layers[1:])},
    ),
    "isolation": Ablation("direction of isolation in generalization heads", _each("isolation", "one_way", "two_way")),
    "routing": Ablation("heads in which attribute tokens see the image", _each("routing", "open", "strict")),
    "fusion-start": Ablation("initial weight of the class feature", _each("fusion_init", 0.17, 0.3, 0.6, 0.9)),
    "fusion-lr": Ablation(
        "learning rate of the fusion weights",
        {"as the rest": {"fusion_lr": None}, **_each("fusion_lr", 0.01, 0.05, 0.1)},
    ),
    "fusion-loss": Ablation("form of L_fusion", _each("fusion_loss", "linear", "log")),
    "projection": Ablation("start of P_attr", _each("projection_start", "copy", "random")),
    "lambda-reg": Ablation("weight of the regulariser", _each("lambda_reg", 0.0, 0.3, 1.0, 3.0)),
    "pull": Ablation("pull of P_attr to its start", _each("pull", 0.0, 0.1, 0.3, 1.0)),
    "rest": Ablation("a token for the heads without an attribute", {"on": {"rest": True}, "off": {"rest": False}}),
}


def ablation_rows(roles: RoleMap, settings: Mapping[str, Any]) -> dict[str, Rows]:
    """The rows of every ablation that a method with these settings has, on this role map."""
    available = {}
    for name, ablation in ABLATIONS.items():
        rows = ablation.rows(roles, settings) if callable(ablation.rows) else ablation.rows
        needed = {key for changes in rows.values() for key in changes} | ({ablation.needs} - {""})
        if rows and needed <= settings.keys():
            available[name] = rows
    return available


def choose_ablations(names: Sequence[str], available: Mapping[str, Rows]) -> dict[str, Rows]:
    """Ablations by name, or all that are available."""
    for name in names:
        if name not in (*ABLATIONS, "all"):
            raise DearError(f"There is no ablation {name!r}: choose from {', '.join(ABLATIONS)}, all.")
        if name == "threshold" and name not in available:
            raise DearError(f"The ablation {name!r} needs a role map with entropies: make one with `dear roles`.")
        if name != "all" and name not in available:
            raise DearError(f"This --method has no ablation {name!r}: choose from {', '.join(available)}.")
    return dict(available) if "all" in names else {name: available[name] for name in names}


def ablation_cells(cells: Sequence[Cell], chosen: Mapping[str, Rows], roles: RoleMap | None = None) -> list[Cell]:
    """The given cells, which are the defaults, and each of their variants.

    `roles` decides which row is the default of the ablations `attributes` and `threshold`; others need none.
    """
    # The meaning of None in these settings: a row that spells it out is the default, not another run.
    implied = {"attributes": len(roles.core), "role_quantile": roles.origin.get("quantile")} if roles else {}

    def is_default(changes: Changes, settings: Mapping[str, Any]) -> bool:
        return all(
            value == settings[key] or (settings[key] is None and value == implied.get(key))
            for key, value in changes.items()
        )

    variants = []
    for name, rows in chosen.items():
        for cell in cells:
            default = next((value for value, change in rows.items() if is_default(change, cell.settings)), _AS_GIVEN)
            variants += [
                replace(cell, settings={**cell.settings, **changes}, variant=Variant(name, value, default))
                for value, changes in rows.items()
                if value != default
            ]
    return [*cells, *variants]


@dataclass(frozen=True)
class AblationResults:
    """All results of one ablation under one protocol, on one split, with one number of shots."""

    name: str
    protocol: str
    split: str
    shots: int
    results: list[CellResult]  # with the value in place of the method, so that values are compared like methods
    rows: dict[str, list[Series]]  # by value, the default first

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores in the table; the last one is compared."""
        parts = PROTOCOLS[self.protocol].parts
        return (*parts, HM) if self.protocol == BASE_TO_NOVEL else parts or (TARGETS,)

    @property
    def score(self) -> str:
        return self.scores[-1]

    def is_default(self, value: str) -> bool:
        variants = [result.cell.variant for s in self.rows[value] for result in s.results]
        return any(variant and variant.default for variant in variants)

    @cached_property
    def comparisons(self) -> dict[str, Comparison | None]:
        """Each value against the default."""
        return {value: self._comparison(value) for value in self.rows}

    def _comparison(self, value: str) -> Comparison | None:
        """The difference to the default; among several defaults, to the one with the same settings."""
        defaults = [other for other in self.rows if self.is_default(other)]
        if len(defaults) > 1:
            defaults = [other for other in defaults if _settings_in(other) == _settings_in(value)]
        if len(defaults) != 1 or value in defaults:
            return None
        return compare_series(self.rows[value], self.rows[defaults[0]], self.score)


def ablation_results(results: Sequence[CellResult]) -> list[AblationResults]:
    """All ablations that were run, and that of inference, for which every result with fusion has the numbers."""
    groups: dict[tuple[str, str, str, int], list[CellResult]] = {}
    for result in [*results, *_inference_variants(results)]:
        cell = result.cell
        if cell.variant:
            groups.setdefault((cell.variant.ablation, cell.protocol, cell.split, cell.shots), []).append(result)
    ablations = []
    for (name, protocol, split, shots), group in groups.items():
        group += _defaults(group, results)
        several = len({result.cell.method for result in group}) > 1
        by_value = [_with_value_as_method(result, several) for result in sorted(group, key=_order)]
        ablations.append(AblationResults(name, protocol, split, shots, by_value, by_label(series(by_value))))
    return sorted(ablations, key=lambda a: (a.name, list(PROTOCOLS).index(a.protocol)))


def _defaults(variants: Sequence[CellResult], results: Sequence[CellResult]) -> list[CellResult]:
    """The unchanged cells with the most similar settings, unless the ablation has its own default."""
    if any(result.cell.variant and result.cell.variant.default for result in variants):
        return []
    defaults: dict[int, CellResult] = {}
    for changed in variants:
        assert changed.cell.variant
        unchanged = [r for r in results if r.cell.variant is None and _place(r) == _place(changed)]
        if unchanged:
            nearest = min(unchanged, key=lambda r: len(differences_in([r.cell.settings, changed.cell.settings])))
            variant = replace(changed.cell.variant, value=changed.cell.variant.default_value, default=True)
            defaults[id(nearest)] = _with_variant(nearest, variant)
    return list(defaults.values())


def _place(result: CellResult) -> tuple[object, ...]:
    cell = result.cell
    return cell.protocol, cell.split, cell.method, cell.dataset, cell.targets, cell.seed, cell.shots


def _with_variant(result: CellResult, variant: Variant) -> CellResult:
    return replace(result, cell=replace(result.cell, variant=variant))


def _with_value_as_method(result: CellResult, several_methods: bool) -> CellResult:
    cell = result.cell
    assert cell.variant
    method = f"{cell.method}: {cell.variant.value}" if several_methods else cell.variant.value
    return replace(result, cell=replace(cell, method=method))


def _order(result: CellResult) -> tuple[object, ...]:
    """Numbers by size; words with the default first."""
    variant, dataset = result.cell.variant, result.cell.dataset
    assert variant
    try:
        return 0, float(variant.value), False, dataset
    except ValueError:
        return 1, 0.0, not variant.default, variant.value, dataset


def _inference_variants(results: Sequence[CellResult]) -> list[CellResult]:
    if any(result.cell.variant and result.cell.variant.ablation == INFERENCE for result in results):
        return []
    variants = []
    for result in results:
        cell, inferences = result.cell, {outcome.inference for outcome in result.outcomes}
        if cell.variant is None and cell.protocol == BASE_TO_NOVEL and {FUSION, DECOUPLED} <= inferences:
            for value, parts in _INFERENCE_OF.items():
                chosen = set(zip((BASE, NOVEL), parts, strict=True))
                outcomes = [outcome for outcome in result.outcomes if (outcome.part, outcome.inference) in chosen]
                variant = Variant(INFERENCE, value, default=value == FUSION)
                variants.append(replace(_with_variant(result, variant), outcomes=outcomes))
    return variants


def _settings_in(label: str) -> str:
    """The settings that a label names."""
    return label.partition(" (")[2]
