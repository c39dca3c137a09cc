"""The role map of a method, chosen by name, with changes for ablations."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dear.clip import Backbone
from dear.core.config import Config, advanced, setting
from dear.core.errors import DearError, warn_once
from dear.core.names import AUTO
from dear.heads.role_map import Head, RoleMap, find_role_map
from dear.heads.rules import CORE_SETS, rejudge, with_core

if TYPE_CHECKING:
    from dear.methods.base import Method


@dataclass(frozen=True)
class RoleSettings(Config):
    """Roles of heads."""

    roles: str = setting(
        AUTO,
        "role map: a file of `dear roles`, or openai-vit-b-16, openai-vit-b-16-drawn, dear-mini, paper; auto: the "
        "measured map of the backbone",
    )
    role_strategy: str = advanced(
        "as_found",
        "for ablations: replace the roles by all_mixed, all_generalization, or a shuffle",
        choices=("as_found", "all_mixed", "all_generalization", "shuffled"),
    )
    shuffle_seed: int = advanced(1, "seed of role_strategy shuffled", low=0, high=2**32 - 1)
    role_quantile: float | None = advanced(
        None,
        "for ablations: assign the roles again, with this share of heads at either end of the entropy",
        low=0.01,
        high=0.5,
    )
    attributes: int | None = advanced(None, "for ablations: 3, 5 or 7 core attributes (default: those of the role map)")


def pick_roles(config: RoleSettings, backbone: Backbone) -> RoleMap:
    """The role map of the settings."""
    roles = find_roles(config.roles, backbone)
    if config.role_quantile is not None:
        roles = rejudge(roles, config.role_quantile)
    if config.attributes is not None:
        if config.attributes not in CORE_SETS:
            raise DearError(f"--attributes must be 3, 5 or 7, not {config.attributes}.")
        roles = with_core(roles, CORE_SETS[config.attributes])
    if config.role_strategy == "shuffled":
        return roles.shuffled(config.shuffle_seed)
    return roles if config.role_strategy == "as_found" else getattr(roles, config.role_strategy)()


def roles_of(method: "Method") -> RoleMap:
    """The method's own role map, otherwise the measured map of its backbone."""
    from dear.methods.optional import HasRoles

    return method.roles if isinstance(method, HasRoles) else find_roles(AUTO, method.backbone)


def attribute_heads(method: "Method") -> dict[str, list[Head]]:
    """The heads of each core attribute, where their direct effect on the answer is known: in a frozen tower that is
    read as a sum, if there is a role map."""
    tower = method.backbone.image
    if tower.tier != "full" or tower.why_no_sum or method.first_layer <= tower.layers:
        return {}
    try:
        roles = roles_of(method)
    except DearError:  # there is none for this backbone
        return {}
    return {name: heads for name in roles.core if (heads := roles.heads_for(name))}


def find_roles(name: str, backbone: Backbone) -> RoleMap:
    """The role map of this name or file; a note in it (the paper's has one) is a warning."""
    roles = find_role_map(name, backbone)
    if note := roles.origin.get("note"):
        warn_once(note)
    return roles
