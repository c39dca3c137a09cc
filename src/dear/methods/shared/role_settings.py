"""Which role map a method uses: the one that was asked for, changed as an ablation wants it."""

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dear.clip import MINI, Backbone
from dear.core.config import Config, setting
from dear.core.errors import DearError
from dear.heads.entropy import CORE_3, CORE_5, CORE_7, rejudge, with_core
from dear.heads.role_map import RoleMap

if TYPE_CHECKING:
    from dear.methods.base import Method

OPENAI_VIT_B_16 = "openai-vit-b-16"
_CORES = {3: CORE_3, 5: CORE_5, 7: CORE_7}


@dataclass(frozen=True)
class RoleSettings(Config):
    """Roles of heads."""

    roles: str = setting(
        "auto",
        "role map: a file of `dear roles`, or openai-vit-b-16, openai-vit-b-16-drawn, dear-mini, paper; auto: the one "
        "that fits",
    )
    role_strategy: str = setting(
        "as_found",
        "for ablations: replace the roles by all_mixed, all_generalization, or a shuffle",
        choices=("as_found", "all_mixed", "all_generalization", "shuffled"),
        advanced=True,
    )
    shuffle_seed: int = setting(1, "seed of that shuffle", low=0, high=2**32 - 1, advanced=True)
    role_quantile: float | None = setting(
        None,
        "for ablations: judge the heads again with this share at either end of the entropy",
        low=0.01,
        high=0.5,
        advanced=True,
    )
    attributes: int | None = setting(
        None, "for ablations: 3, 5 or 7 core attributes; default: those of the role map", advanced=True
    )


def pick_roles(config: RoleSettings, backbone: Backbone) -> RoleMap:
    roles = find_roles(config.roles, backbone)
    if config.role_quantile is not None:
        roles = rejudge(roles, config.role_quantile)
    if config.attributes is not None:
        if config.attributes not in _CORES:
            raise DearError(f"--attributes must be 3, 5 or 7, not {config.attributes}.")
        roles = with_core(roles, _CORES[config.attributes])
    if config.role_strategy == "shuffled":
        return roles.shuffled(config.shuffle_seed)
    return roles if config.role_strategy == "as_found" else getattr(roles, config.role_strategy)()


def roles_of(method: "Method") -> RoleMap:
    """What its heads do: by the method's own map, or by the one that comes with its backbone."""
    return method.roles or find_roles("auto", method.backbone)


def find_roles(name: str, backbone: Backbone) -> RoleMap:
    """A map by its file or name; "auto": the measured one of these weights, whatever the backbone is called.

    What one must know of a map is said, once.
    """
    if name == "auto":
        roles = _measured_map(backbone)
    else:
        roles = RoleMap.load(name) if Path(name).is_file() else RoleMap.preset(name)
    if note := roles.origin.get("note"):
        _say_once(note)
    return roles


def _measured_map(backbone: Backbone) -> RoleMap:
    identity, embedding = backbone.identity.to_json(), backbone.image.visual.class_embedding.tolist()
    for name in (MINI, OPENAI_VIT_B_16):
        if (roles := RoleMap.preset(name)).is_of(identity, embedding):
            return roles
    raise DearError(f"There is no ready role map for {backbone.name}: make one with `dear roles`.")


@cache
def _say_once(note: str) -> None:
    print(note, file=sys.stderr)
