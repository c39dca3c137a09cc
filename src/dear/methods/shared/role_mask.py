"""Who may see the attribute tokens: the role-based attention mask, Eq. 7-9.

O are the original tokens (CLS and patches), A the attribute tokens, which stand behind them.
"""

import torch
from torch import Tensor

from dear.heads.head_role import CORE_ATTRIBUTE, MIXED, HeadRole
from dear.heads.role_map import RoleMap


def head_mask(head: HeadRole, token_of: list[str], isolation: str, routing: str) -> tuple[Tensor, Tensor]:
    """What one head lets through, True: may see. `token_of` names the attribute of each token of A.

    Returns two masks over keys that differ only between these groups of queries and keys:
    original queries over [O, A...] -> [1 + tokens], attribute queries over [O, A...] -> [tokens, 1 + tokens].
    """
    count = len(token_of)
    original = torch.ones(1 + count, dtype=torch.bool)
    attribute = torch.ones(count, 1 + count, dtype=torch.bool)
    own = torch.tensor([name == head.concept for name in token_of])
    if head.role == MIXED:  # no mask
        return original, attribute
    if head.role == CORE_ATTRIBUTE:  # Eq. 9: of A, every query sees only the tokens of this head's attribute
        original[1:] = own
        attribute[:, 1:] = own
        if routing == "strict":  # a token reads the image only in the heads of its own attribute
            attribute[:, 0] = own
    else:  # Eq. 8: generalization and other specialised heads
        original[1:] = False
        attribute[:, 0] = isolation == "one_way" and routing != "strict"
    return original, attribute


def role_masks(
    roles: RoleMap, layer: int, token_of: list[str], originals: int, isolation: str, routing: str
) -> tuple[Tensor, Tensor]:
    """Boolean masks of one layer over all keys O + A.

    Returns those of original queries [1, heads, 1, keys] and of attribute queries [1, heads, 1 or tokens, keys].
    """
    pairs = [head_mask(roles[layer, h], token_of, isolation, routing) for h in range(roles.heads)]
    original = torch.stack([pair[0] for pair in pairs])[None, :, None]
    attribute = torch.stack([pair[1] for pair in pairs])[None]
    if bool((attribute == attribute[:, :, :1]).all()):  # the same for every attribute query: keep it small
        attribute = attribute[:, :, :1]
    spread = [originals] + [1] * len(token_of)
    repeats = torch.tensor(spread)
    return original.repeat_interleave(repeats, -1), attribute.repeat_interleave(repeats, -1)
