"""The paper's ablations, and those of every open reading: each is a named list of changes to the settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dear.bench.cell import Cell
from dear.core.errors import DearError
from dear.heads.entropy import CORE_SETS
from dear.heads.role_map import RoleMap

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Ablation:
    """`values`: name of each row -> what it changes. The row whose changes are already the settings is the default.

    `needs`: a setting without which the ablation means nothing, though all that it changes is there.
    """

    title: str
    values: Mapping[str, Changes]
    needs: str = ""

    @property
    def settings(self) -> set[str]:
        """Those that a method must have."""
        return {key for changes in self.values.values() for key in changes} | ({self.needs} if self.needs else set())


def _each(setting: str, *values: Any) -> dict[str, Changes]:
    return {str(value): {setting: value} for value in values}


def ablations(roles: RoleMap, settings: Mapping[str, Any]) -> dict[str, Ablation]:
    """All of them, for the layers and the evidence that a role map has, and the settings that a method has."""
    shuffles: dict[str, Changes] = {
        f"random shuffle {n}": {"role_strategy": "shuffled", "shuffle_seed": n} for n in (1, 2, 3)
    }
    strategies = {
        "DeAR": {"role_strategy": "as_found"},
        "all mixed": {"role_strategy": "all_mixed"},
        "all generalization": {"role_strategy": "all_generalization"},
    } | shuffles
    maps = {"as given": {"role_strategy": "as_found"}} | _each("roles", *roles.other_presets())
    if "isolation" not in settings:  # otherwise the shuffles are among the masks
        maps |= shuffles
    losses = {
        "CE": {"lambda_reg": 0.0, "lambda_fusion": 0.0},
        "CE + reg": {"lambda_fusion": 0.0},
        "CE + reg + fusion": {},
    }
    layers: dict[str, Changes] = {str(roles.layers[0]): {"first_layer": None}}
    layers |= _each("first_layer", *roles.layers[1:])
    cores = [size for size, core in CORE_SETS.items() if set(core) <= set(roles.concepts)]
    found = {
        "masks": Ablation("what each head may see", strategies, needs="isolation"),
        "maps": Ablation("which roles the heads have", maps),
        "loss": Ablation("terms of the loss", losses),
        "attributes": Ablation("number of core attributes K", _each("attributes", *cores)),
        "beta": Ablation("weight of the raw token between layers", _each("beta", 0.0, 0.3, 0.6, 0.9, 1.0)),
        "first-layer": Ablation("first adapted layer J", layers),
        "isolation": Ablation(
            "direction of isolation in generalization heads", _each("isolation", "one_way", "two_way")
        ),
        "routing": Ablation("where attribute tokens may read the image", _each("routing", "open", "strict")),
        "fusion-start": Ablation("start of the class feature's weight", _each("fusion_init", 0.17, 0.3, 0.6, 0.9)),
        "fusion-lr": Ablation(
            "learning rate of the fusion weights",
            {"as the rest": {"fusion_lr": None}} | _each("fusion_lr", 0.01, 0.05, 0.1),
        ),
        "fusion-loss": Ablation("form of L_fusion", _each("fusion_loss", "linear", "log")),
        "projection": Ablation("start of P_attr", _each("projection_start", "copy", "random")),
        "lambda-reg": Ablation("weight of the regulariser", _each("lambda_reg", 0.0, 0.3, 1.0, 3.0)),
        "pull": Ablation("pull of P_attr to its start", _each("pull", 0.0, 0.1, 0.3, 1.0)),
        "rest": Ablation("a token for the heads without an attribute", {"on": {"rest": True}, "off": {"rest": False}}),
    }
    if all(role.entropy is not None for role in roles.roles.values()):  # a map without it cannot be judged again
        by_experts = {} if "quantile" in roles.origin else {"experts": {"role_quantile": None}}
        quantiles = by_experts | _each("role_quantile", 0.1, 0.2, 0.3, 0.4)
        found["threshold"] = Ablation("share of heads at either end of entropy", quantiles)
    return {name: ablation for name, ablation in found.items() if ablation.settings <= settings.keys()}


NAMES = (
    "masks", "maps", "loss", "threshold", "attributes", "beta", "first-layer", "isolation", "routing", "fusion-start",
    "fusion-lr", "fusion-loss", "projection", "lambda-reg", "pull", "rest",
)  # fmt: skip


def ablation_cells(cells: Sequence[Cell], chosen: Mapping[str, Ablation], roles: RoleMap) -> list[Cell]:
    """The given cells, which are the defaults, and each of their variants."""
    # What "not set" means in these settings: a row that spells it out is the default, not one more run.
    meant = {"attributes": len(roles.core), "role_quantile": roles.origin.get("quantile")}

    def is_default(changes: Changes, settings: Mapping[str, Any]) -> bool:
        return all(
            value == settings[key] or (settings[key] is None and value == meant.get(key))
            for key, value in changes.items()
        )

    found = list(cells)
    for name, ablation in chosen.items():
        for cell in cells:
            default = next(
                (v for v, change in ablation.values.items() if is_default(change, cell.settings)), "as given"
            )
            for value, changes in ablation.values.items():
                if value != default:
                    variant = {"ablation": name, "value": value, "default_value": default}
                    found.append(replace(cell, settings={**cell.settings, **changes}, variant=variant))
    return found


def choose(names: Sequence[str], known: Mapping[str, Ablation]) -> dict[str, Ablation]:
    """By name, or all there are."""
    for name in names:
        if name not in (*NAMES, "all"):
            raise DearError(f"There is no ablation {name!r}: choose from {', '.join(NAMES)}, all.")
        if name == "threshold" and name not in known:
            raise DearError(f"The ablation {name!r} needs a role map with entropies: make one with `dear roles`.")
        if name != "all" and name not in known:
            raise DearError(f"This --method has no ablation {name!r}: choose from {', '.join(known)}.")
    return dict(known) if "all" in names else {name: known[name] for name in names}
