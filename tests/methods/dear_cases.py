"""DeAR on a tiny backbone, with a head of every role."""

from collections.abc import Sequence

import torch
from token_cases import OWN as PROMPTS

from dear.heads.head_role import HeadRole
from dear.heads.role_map import RoleMap
from dear.methods.dear import Dear, DearConfig

CORE = ("color", "shape", "texture")
CONCEPTS = (*CORE, "animal", "style")
ROLES = [
    HeadRole("core_attribute", "color"), HeadRole("mixed"), HeadRole("generalization", "style"),
    HeadRole("other_specialized", "animal"), HeadRole("core_attribute", "texture"), HeadRole("core_attribute", "shape"),
    HeadRole("generalization"), HeadRole("mixed"),
]  # fmt: skip


def role_map(first: int = 3, roles: Sequence[HeadRole] = ROLES) -> RoleMap:
    positions = [(layer, h) for layer in range(first, 5) for h in range(4)]
    chosen = {at: roles[i % len(roles)] for i, at in enumerate(positions)}
    return RoleMap({}, tuple(range(first, 5)), 4, CONCEPTS, CORE, chosen)


def make(tiny, dtype=torch.float64, roles=None, spread: float = 0.5, **settings) -> Dear:
    backbone = tiny(quick_gelu=True)
    backbone.model.to(dtype)
    config = DearConfig(**{"first_layer": 3, "token_std": 0.5, **settings})
    torch.manual_seed(5)
    found = roles or role_map(first=config.first_layer or 3)
    dear = Dear(backbone, config, found)
    with torch.no_grad():  # away from the start, where gradients could vanish by symmetry
        dear.projection += spread * torch.randn_like(dear.projection) * 0.1
        dear.fusion += spread * torch.randn_like(dear.fusion)
    dear.set_classes(PROMPTS, "{}")
    return dear
