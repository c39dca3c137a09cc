"""The role map: the role of every head, immutable, with a validated JSON form. Layers count from 1, heads from 0.

No heavy imports here, so that reading a role map is fast everywhere.
"""

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from msgspec import Meta, Struct

from dear.core.errors import DearError
from dear.core.files import read_json, write_json
from dear.core.names import AUTO
from dear.core.schema import Finite, check_shape, damaged
from dear.heads.head_role import (
    CORE_ATTRIBUTE,
    GENERALIZATION,
    MIXED,
    HeadFile,
    HeadRole,
    demand,
    listed,
)

if TYPE_CHECKING:
    from dear.clip import Backbone

Head = tuple[int, int]  # (layer, head)
MEASURED = ("dear-mini", "openai-vit-b-16")  # shipped maps that `auto` chooses from
_PRECISION = 5e-3  # largest difference of a weight of CLIP from itself in lower precision
_MOST_HEADS = 1000  # layers, and heads per layer: more than any backbone has, and few enough to list
_REMAKE = "make it again with `dear roles`"
_PRESETS = Path(__file__).parent / "assets"


@dataclass(frozen=True)
class RoleMap:
    """The role of every head in some layers of one backbone.

    `backbone` is the identity of the weights that the map is valid for, and `origin` says how it was made; both are
    stored unchanged. `heads` is the number of heads per layer.
    """

    backbone: Mapping[str, str | None]
    layers: tuple[int, ...]
    heads: int
    concepts: tuple[str, ...]
    core: tuple[str, ...]
    roles: Mapping[Head, HeadRole]
    origin: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("layers", "concepts", "core"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "roles", dict(sorted(self.roles.items())))
        for name in ("backbone", "roles", "origin"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        self._validate()

    def __reduce__(self) -> tuple[Callable[[Any], "RoleMap"], tuple[Any]]:
        return RoleMap.from_json, (self.to_json(),)  # read-only mappings can be neither pickled nor copied

    def __getitem__(self, head: Head) -> HeadRole:
        return self.roles[head]

    @property
    def means(self) -> list[list[tuple[float, ...]]] | None:
        """Mean output of each head at CLS, [layers, heads, head_dim]; None if a head has none."""
        means = [[self.roles[layer, head].mean for head in range(self.heads)] for layer in self.layers]
        return None if any(mean is None for row in means for mean in row) else means  # type: ignore[return-value]

    def part_of(self, head: Head) -> str:
        """The name by which gains refer to a head: its attribute if it has a core attribute, else its role."""
        role = self.roles[head]
        return role.concept if role.role == CORE_ATTRIBUTE and role.concept else role.role

    def heads_for(self, attribute: str) -> list[Head]:
        """The heads for an attribute: core attribute heads with this concept, perhaps none."""
        return [at for at, head in self.roles.items() if head.role == CORE_ATTRIBUTE and head.concept == attribute]

    # --- maps derived from this one ----------------------------------------------------------------------

    def for_layers(self, first_layer: int) -> "RoleMap":
        """Only the heads from `first_layer` to the last layer."""
        layers = tuple(layer for layer in self.layers if layer >= first_layer)
        if not layers or layers != tuple(range(first_layer, layers[-1] + 1)):
            raise DearError(
                f"The role map has no roles for layer {first_layer} and all after it, only for layers "
                f"{listed(self.layers)}: adapt from one of these, or analyse more layers."
            )
        return replace(self, layers=layers, roles={at: r for at, r in self.roles.items() if at[0] in layers})

    def all_mixed(self) -> "RoleMap":
        return self.with_roles([(MIXED, None)] * len(self.roles), strategy="all_mixed")

    def all_generalization(self) -> "RoleMap":
        return self.with_roles([(GENERALIZATION, None)] * len(self.roles), strategy="all_generalization")

    def shuffled(self, seed: int) -> "RoleMap":
        """The same roles with their concepts, assigned to the heads at random."""
        roles = [(head.role, head.concept) for head in self.roles.values()]
        random.Random(seed).shuffle(roles)
        return self.with_roles(roles, strategy="shuffled", seed=seed)

    def with_roles(self, roles: Sequence[tuple[str, str | None]], **origin: Any) -> "RoleMap":
        """New roles in order of layer and head. The evidence stays: it does not depend on the role."""
        pairs = zip(self.roles.items(), roles, strict=True)
        changed = {at: replace(head, role=role, concept=concept) for (at, head), (role, concept) in pairs}
        return replace(self, roles=changed, origin={**self.origin, **origin})

    # --- checks ------------------------------------------------------------------------------------------

    def is_of(self, identity: Mapping[str, str | None], class_embedding: Sequence[float]) -> bool:
        """Whether the map was made for these weights, which their hash tells.

        A map that is valid in any precision has no hash: the published name decides, or the first numbers of the CLS
        embedding, which identify a renamed copy.
        """
        if self.backbone.get("activation") != identity["activation"]:
            return False
        if (numbers := self.backbone.get("class_embedding")) is None:
            return self.backbone.get("weights") == identity["weights"]
        model, tag = self.backbone.get("model"), self.backbone.get("pretrained")
        if tag and identity["pretrained"] == tag and str(identity["model"]).startswith(str(model)):
            return True
        pairs = zip(map(float, numbers.split()), class_embedding, strict=False)
        return len(class_embedding) > 0 and all(abs(a - b) < _PRECISION for a, b in pairs)

    def check_backbone(self, identity: Mapping[str, str | None], layers: int, heads: int) -> None:
        """Refuses another backbone than the map's; a field that is missing on either side is not compared.

        Names and tags only say where weights came from, so activation and weights decide. A map that is valid in any
        precision has no hash of weights; then the tag decides, if the backbone has one.
        """
        tag = identity.get("pretrained")
        by_tag = self.backbone.get("weights") is None and tag is not None and not Path(tag).suffix
        for key in ("activation", "weights", *(["pretrained"] if by_tag else [])):
            expected, actual = self.backbone.get(key), identity.get(key)
            if None not in (expected, actual) and expected != actual:
                raise DearError(
                    f"The role map was made for another backbone: its {key} is {expected}, and this one's is "
                    f"{actual}; make a role map for this backbone with `dear roles`."
                )
        if self.heads != heads:
            raise DearError(
                f"The role map has {self.heads} heads per layer, and the backbone has {heads}; "
                "make a role map for this backbone with `dear roles`."
            )
        if self.layers[-1] != layers:
            raise DearError(
                f"The role map ends at layer {self.layers[-1]}, and the backbone has {layers} layers; "
                "make a role map that reaches its last layer."
            )

    def _validate(self) -> None:
        demand(
            len(self.layers) <= _MOST_HEADS and self.heads <= _MOST_HEADS,
            f"at most {_MOST_HEADS} layers and heads are allowed",
        )
        increasing = list(self.layers) == sorted(set(self.layers))
        demand(bool(self.layers) and increasing and self.layers[0] >= 1, "layers must increase, from 1 up")
        demand(self.heads >= 1, "a layer needs at least one head")
        demand(len(set(self.concepts)) == len(self.concepts), "a concept is listed twice")
        demand(bool(self.core) and len(set(self.core)) == len(self.core), "the core needs concepts, without duplicates")
        unknown = [concept for concept in self.core if concept not in self.concepts]
        demand(not unknown, f"core concept {listed(unknown)} is not among its concepts")
        expected = [(layer, head) for layer in self.layers for head in range(self.heads)]
        missing = [at for at in expected if at not in self.roles]
        demand(not missing, f"no role for (layer, head) {listed(missing)}")
        extra = sorted(set(self.roles) - set(expected))
        demand(not extra, f"(layer, head) {listed(extra)} is outside of its layers and {self.heads} heads per layer")
        head_dim = len(self.roles[self.layers[0], 0].mean or ())
        for at, head in self.roles.items():
            head.require_valid(f"head {at}", self.concepts, self.core)
            demand(head.mean is None or len(head.mean) == head_dim, f"head {at} has a mean of another length")

    # --- files -------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """JSON values; missing evidence of a head is left out."""
        roles: dict[str, dict[str, Any]] = {str(layer): {} for layer in self.layers}
        for (layer, number), head in self.roles.items():
            roles[str(layer)][str(number)] = head.to_json(self.concepts)
        return {
            "backbone": dict(self.backbone),
            "origin": dict(self.origin),
            "layers": list(self.layers),
            "heads": self.heads,
            "concepts": list(self.concepts),
            "core": list(self.core),
            "roles": roles,
        }

    @classmethod
    def from_json(cls, value: Any) -> "RoleMap":
        file: _MapFile = check_shape(value, _MapFile, "The role map", _REMAKE)
        with damaged("The role map", _REMAKE):
            roles = {
                (int(layer), int(number)): HeadRole.from_file(entry, file.concepts)
                for layer, row in file.roles.items()
                for number, entry in row.items()
            }
            layers, concepts, core = tuple(file.layers), tuple(file.concepts), tuple(file.core)
            return cls(file.backbone, layers, file.heads, concepts, core, roles, value.get("origin", {}))

    @classmethod
    def load(cls, path: str | Path) -> "RoleMap":
        value = read_json(path)
        try:
            return cls.from_json(value)
        except DearError as error:
            raise DearError(f"{path}: {error}") from None

    def save(self, path: str | Path) -> None:
        write_json(path, self.to_json())

    @classmethod
    def preset(cls, name: str) -> "RoleMap":
        """A map shipped with the package; `paper` is Table 2 of the paper, for OpenAI's ViT-B/16."""
        if name not in (known := _preset_names()):
            raise DearError(f"There is no role map named {name}; known: {listed(known)}.")
        return cls.load(_PRESETS / f"rolemap_{name}.json")

    def other_presets(self) -> list[str]:
        """Names of the other shipped maps of the same backbone."""

        def published(role_map: RoleMap) -> tuple[str | None, str | None]:
            return role_map.backbone.get("model"), role_map.backbone.get("pretrained")

        others = {name: RoleMap.preset(name) for name in _preset_names()}
        return [name for name, other in others.items() if published(other) == published(self) and other != self]


def find_role_map(name: str, backbone: "Backbone | None" = None) -> RoleMap:
    """A role map by name: a file, a map shipped with the package, or "auto" for the measured map of a backbone."""
    if name == AUTO:
        if backbone is None:
            raise DearError(f'The role map "{AUTO}" depends on the backbone: name one of {listed(_preset_names())}.')
        identity, embedding = backbone.identity.to_json(), backbone.image.class_embedding
        measured = (RoleMap.preset(preset) for preset in MEASURED)
        if role_map := next((each for each in measured if each.is_of(identity, embedding)), None):
            return role_map
        raise DearError(f"There is no ready role map for {backbone.name}: make one with `dear roles`.")
    is_file = os.path.isfile(name) or any(mark in name for mark in "./\\")
    return RoleMap.load(name) if is_file else RoleMap.preset(name)


def _preset_names() -> list[str]:
    return sorted(path.stem.removeprefix("rolemap_") for path in _PRESETS.glob("rolemap_*.json"))


class _ProbeFile(TypedDict):
    attributes: list[str]
    source: str
    kind: str
    used: int


class _Origin(TypedDict, total=False):
    images: dict[str, Any]
    probes: list[_ProbeFile]
    note: str
    skipped_images: list[str]
    quantile: Finite | None


class _MapFile(Struct):
    backbone: dict[str, str | None]
    layers: Annotated[list[int], Meta(max_length=_MOST_HEADS)]
    heads: Annotated[int, Meta(le=_MOST_HEADS)]
    concepts: list[str]
    core: list[str]
    roles: dict[str, dict[str, HeadFile]]
    origin: _Origin = {}
