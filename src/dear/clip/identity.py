"""The identity of a backbone: an adapter or a role map fits one backbone only."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from dear.core.errors import DearError


@dataclass(frozen=True)
class BackboneIdentity:
    """Name and tag tell where the weights come from; activation and hash decide whether two backbones are the same."""

    model: str
    pretrained: str | None
    activation: str  # "gelu" or "quick_gelu"
    weights: str  # SHA-256 of all weights in fp32
    text_table: str | None = None  # SHA-256 of the class vectors that stand in for the text tower

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "text_table" or value}

    def require_same(self, other: dict[str, Any], what: str) -> None:
        """Refuses `what` ("The adapter in runs/pets") if `other`, the backbone it was made for, is not this one."""
        other_name = f"{other.get('model')} ({other.get('pretrained') or 'no tag'})"
        if other.get("activation") != self.activation:
            raise DearError(
                f"{what} was made for {other_name} with {other.get('activation')}, but this backbone uses "
                f"{self.activation}: load the model name with the same activation."
            )
        if other.get("weights") != self.weights:
            raise DearError(
                f"{what} was made for {other_name}, but the loaded weights are those of {self.model} "
                f"({self.pretrained or 'no tag'}): load the backbone it was made for."
            )
        if other.get("text_table") != self.text_table:
            raise DearError(f"{what} was made with another text table, or with none: give the same --text-features.")


def hash_weights(model: nn.Module) -> str:
    """SHA-256 over names, shapes and fp32 bytes of all weights; independent of device and precision casts."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
    return digest.hexdigest()
