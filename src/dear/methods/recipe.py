"""Published settings of a method: those that differ from the defaults, and changes under a protocol."""

from collections.abc import Mapping
from typing import Any


class Recipe:
    """`Recipe(epochs=10, batch=4).on("few-shot", epochs=50).on("few-shot", shots=1, epochs=20)`.

    A mapping or another recipe may come first; keywords override its settings. Settings are those of training and of
    the method.
    """

    def __init__(self, base: "Recipe | Mapping[str, Any] | None" = None, /, **settings: Any) -> None:
        inherited = base.settings if isinstance(base, Recipe) else base or {}
        self.settings: dict[str, Any] = {**inherited, **settings}
        self.changes: dict[str, dict[str, Any]] = {}

    def on(self, *protocols: str, shots: int | None = None, **settings: Any) -> "Recipe":
        """A copy with other settings under some protocols, or under them with this number of shots."""
        recipe = Recipe(self.settings)
        names = [name if shots is None else f"{name} {shots}" for name in protocols]
        recipe.changes = {**self.changes, **{name: {**self.changes.get(name, {}), **settings} for name in names}}
        return recipe

    def under(self, protocol: str | None = None, shots: int | None = None) -> dict[str, Any]:
        """The settings under a protocol and number of shots."""
        return {**self.settings, **changes_under(self.changes, protocol, shots)}


def changes_under(changes: Mapping[str, Any], protocol: str | None, shots: int | None) -> dict[str, Any]:
    """The changes of the protocol, then those of the protocol with this number of shots."""
    return {**changes.get(f"{protocol}", {}), **changes.get(f"{protocol} {shots}", {})}
