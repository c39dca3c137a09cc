"""The identity of a backbone: an adapter or a role map fits one backbone only."""

from dataclasses import asdict, dataclass
from typing import Any

from dear.core.errors import DearError, warn
from dear.core.schema import Name


@dataclass(frozen=True)
class BackboneIdentity:
    """Name and tag tell where the weights come from; activation and hash decide whether two backbones are the same.

    The same weights give other features with other words or in another layout, and worse ones with other pictures.
    """

    model: Name
    pretrained: str | None
    activation: str  # of the image tower, "/" and that of the text tower, if it has another
    weights: str  # SHA-256 of all weights in fp32
    text_table: str | None  # SHA-256 of the class vectors that stand in for the text tower
    layout: str  # what the towers are, beside their weights
    words: str | None  # SHA-256 of the tokens of some texts; with a text table, none
    pictures: str  # size, resizing, mean and std
    precision: str | None = None  # in which a CPU computes it, if that is not fp32

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

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
        for key, name in (("layout", "another layout of the towers"), ("words", "another tokenizer")):
            if other.get(key) != getattr(self, key):
                raise DearError(f"{what} was made for {other_name} with {name}: load the backbone it was made for.")
        if other.get("pictures") != self.pictures:
            warn(
                f"{what} was made with other picture settings ({other.get('pictures')}) than those of "
                f"{self.model} ({self.pictures}): its answers may be worse."
            )
