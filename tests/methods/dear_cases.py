"""DeAR on a tiny backbone, with a head of every role."""

import torch

from dear.heads.head_role import HeadRole
from dear.heads.role_map import RoleMap
from dear.methods.dear import Dear, DearConfig

CORE = ("color", "shape", "texture")
CONCEPTS = (*CORE, "animal", "style")
PROMPTS = [f"a photo of a {name}." for name in ("cat", "polar bear", "dog", "fire truck", "tabby")]
ROLES = [
    HeadRole("core_attribute", "color"), HeadRole("mixed"), HeadRole("generalization", "style"),
    HeadRole("other_specialized", "animal"), HeadRole("core_attribute", "texture"), HeadRole("core_attribute", "shape"),
    HeadRole("generalization"), HeadRole("mixed"),
]  # fmt: skip


def role_map(first: int = 3, layers: int = 4, heads: int = 4, roles=None) -> RoleMap:
    numbers = range(first, layers + 1)
    positions = [(layer, h) for layer in numbers for h in range(heads)]
    given = roles or ROLES
    chosen = {at: given[i % len(given)] for i, at in enumerate(positions)}
    return RoleMap({}, tuple(numbers), heads, CONCEPTS, CORE, chosen)


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
