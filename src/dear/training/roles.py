"""Which role map a run uses: the one that was asked for, changed as an ablation wants it."""

from pathlib import Path

from dear.backbone import MINI
from dear.errors import DearError
from dear.roles.entropy import CORE_3, CORE_5, CORE_7, rejudge, with_core
from dear.roles.rolemap import RoleMap
from dear.training.config import RunConfig

_CORES = {3: CORE_3, 5: CORE_5, 7: CORE_7}


def pick_roles(run: RunConfig, seed: int) -> RoleMap:
    roles = find_roles(run)
    if run.role_quantile is not None:
        roles = rejudge(roles, run.role_quantile)
    if run.attributes is not None:
        if run.attributes not in _CORES:
            raise DearError(f"--attributes must be 3, 5 or 7, not {run.attributes}.")
        roles = with_core(roles, _CORES[run.attributes])
    if run.role_strategy == "shuffled":
        return roles.shuffled(seed if run.shuffle_seed is None else run.shuffle_seed)
    return roles if run.role_strategy == "as_found" else getattr(roles, run.role_strategy)()


def find_roles(run: RunConfig) -> RoleMap:
    """As it was found, before any change."""
    if run.roles != "auto":
        return RoleMap.load(run.roles) if Path(run.roles).is_file() else RoleMap.preset(run.roles)
    if run.model == MINI:
        return RoleMap.preset(MINI)
    if run.model.startswith("ViT-B-16") and run.pretrained == "openai":
        return RoleMap.preset("paper")
    raise DearError(
        f"There is no ready role map for {run.model}: make one with `dear roles`, or give --roles paper if it is "
        "OpenAI's ViT-B/16."
    )
