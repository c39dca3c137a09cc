"""Encoders: image -> one vector per component. A gallery is filled and searched with the same one."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone, load_backbone
from dear.core.errors import DearError
from dear.core.files import checksum_of
from dear.core.identity import BackboneIdentity
from dear.core.names import AUTO, CLS
from dear.core.progress import report
from dear.core.runtime import to_device
from dear.core.schema import Count, Finite, Name, Positive, check_shape
from dear.core.words import backbone_line
from dear.heads.contributions import HeadContributions, is_plain
from dear.heads.gains import gain_text, named_gains, require_sum, with_gains
from dear.heads.role_map import Head
from dear.methods.shared.role_settings import attribute_heads, find_roles
from dear.model.predictor import encode_pixels
from dear.training.adapter import CONFIG

if TYPE_CHECKING:
    from dear.model.predictor import Predictor


ENCODE_BATCH = 64  # images


class Encoder(ABC):
    """An image as one vector per component, each in the space of text features."""

    components: tuple[str, ...]  # "cls", the class feature, first
    centred: tuple[str, ...] = ()  # components that are compared after subtracting the mean over the gallery's images
    dim: int
    spec: dict[str, Any]  # JSON values, stored in gallery.json: identifies the encoder, and says how to load it
    preprocess: Callable[[Image.Image], Tensor]  # an RGB picture -> normalised pixels [3, height, width]

    @abstractmethod
    def encode_image(self, pixels: Tensor) -> dict[str, Tensor]:
        """Normalised pixels [images, 3, height, width] -> vectors [images, dim] of each component."""

    @abstractmethod
    def text_feature(self, sentence: str) -> Tensor:
        """The unit feature of a sentence, [dim]."""

    @abstractmethod
    def with_gain(self, gains: Mapping[str, float]) -> "Encoder":
        """Copies the encoder with gains of heads by name (`Predictor.with_gain`), which its spec then has."""

    def encode_text(self, sentence: str) -> dict[str, Tensor]:
        """A vector [dim] of each component, the same for all, compared with those of images without centring."""
        return dict.fromkeys(self.components, self.text_feature(sentence))

    def fits(self, spec: Mapping[str, Any]) -> bool:
        """Whether vectors of the encoder with this spec are comparable with these."""
        return _identity(spec) == _identity(self.spec)


def _identity(spec: Mapping[str, Any]) -> list[Any]:
    """The fields that decide the vectors: of an adapter, or the weights and heads of a backbone, not its name."""
    backbone = spec.get("backbone", {})
    return [*map(spec.get, ("kind", "sha256", "heads", "gain")), backbone.get("activation"), backbone.get("weights")]


class AdapterEncoder(Encoder):
    """An adapted model: one component per attribute token, or beside a single feature those of the frozen heads."""

    def __init__(self, run: str | Path, predictor: "Predictor") -> None:
        self.predictor, model = predictor, predictor.model
        self.heads = attribute_heads(model) if len(model.components) == 1 else {}
        if self.heads:
            lowest = min(layer for heads in self.heads.values() for layer, _ in heads)
            self.reader = HeadContributions(model.backbone, getattr(model, "heads_from", lowest))
        self.centred = tuple(self.heads)
        self.components = (*model.components, *self.centred)
        self.dim = predictor.model.backbone.dim
        self.preprocess = predictor.model.backbone.preprocess
        # The config contains the checksum of the weights, so its own checksum identifies the adapter.
        checksum = checksum_of(Path(run) / CONFIG)
        self.spec: dict[str, Any] = {"kind": "adapter", "folder": os.path.abspath(run), "sha256": checksum}

    @classmethod
    def load(cls, run: str | Path, device: str = "auto", precision: str = "auto") -> "AdapterEncoder":
        from dear import load

        return cls(run, load(run, device=device, precision=precision))

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], device: str, precision: str) -> "AdapterEncoder":
        run = Path(spec["folder"])
        if not (run / CONFIG).is_file():
            raise DearError(
                f"The adapter of this gallery is no longer in {run}: run `dear index RUN --out GALLERY` with its new "
                "folder as RUN."
            )
        return cls.load(run, device, precision)

    @staticmethod
    def describe(spec: Mapping[str, Any]) -> str:
        return f"the adapter in {spec['folder']}"

    def with_gain(self, gains: Mapping[str, float]) -> "AdapterEncoder":
        changed = AdapterEncoder(self.spec["folder"], self.predictor.with_gain(gains))
        changed.spec["gain"] = dict(gains)
        return changed

    @torch.no_grad()
    def encode_image(self, pixels: Tensor) -> dict[str, Tensor]:
        if not self.heads:
            return self.predictor.features(pixels)
        tower, images = self.predictor.model.backbone.image, to_device(pixels, self.predictor.model.backbone.device)
        if is_plain(self.predictor.model.backbone):  # one pass serves both
            images = tower.head_outputs(images, self.reader.first_layer)
        codes = self.reader.codes_and_feature(images)[0]
        features = encode_pixels(self.predictor, images).unbind(1)
        of_heads = {name: self.reader.sum_of(heads, codes) for name, heads in self.heads.items()}
        return {**dict(zip(self.components, features, strict=False)), **of_heads}

    def text_feature(self, sentence: str) -> Tensor:
        return self.predictor.encode_text([sentence])[0]


class HeadEncoder(Encoder):
    """A frozen backbone, without training: per attribute, the sum of its heads' contributions to the class feature.

    Much of a head's contribution is the same for every image; subtracting the mean leaves the part that differs.
    """

    def __init__(self, backbone: Backbone, heads: Mapping[str, Sequence[Head]], roles: str = AUTO) -> None:
        """`heads`: (layer, head) pairs of each attribute; `roles`: the role map that names gains."""
        self.backbone, self.roles = backbone, roles
        self.heads = {name: [(layer, head) for layer, head in pairs] for name, pairs in heads.items() if pairs}
        if not self.heads and backbone.image.layers:
            raise DearError("This role map assigns no head to any attribute: give another one with --roles.")
        tower, all_heads = backbone.image, [pair for pairs in self.heads.values() for pair in pairs]
        if any(not (1 <= layer <= tower.layers and 0 <= head < tower.heads) for layer, head in all_heads):
            raise DearError(
                f"{backbone.name} has {tower.layers} layers of {tower.heads} heads, but other ones are named."
            )
        self.reader = HeadContributions(backbone, min(layer for layer, _ in all_heads)) if all_heads else None
        self.centred = tuple(self.heads)
        self.components = (CLS, *self.centred)
        self.dim = backbone.dim
        self.preprocess = backbone.preprocess
        pairs = {name: [list(pair) for pair in pairs] for name, pairs in self.heads.items()}
        self.spec: dict[str, Any] = {"kind": "heads", "backbone": backbone.identity.to_json(), "heads": pairs}
        if roles != AUTO:
            self.spec["roles"] = roles

    @classmethod
    def load(
        cls,
        model: str,
        pretrained: str | None = None,
        roles: str = "auto",
        device: str = "auto",
        precision: str = "auto",
    ) -> "HeadEncoder":
        """Loads a backbone. `roles`: file or name of a role map; "auto": the map in the package for these weights."""
        backbone = load_backbone(model, pretrained, device=device, precision=precision)
        if not backbone.image.layers:  # the class feature alone
            return cls(backbone, {})
        roles = str(Path(roles).resolve()) if Path(roles).is_file() else roles  # a search may be in another folder
        role_map = find_roles(roles, backbone)
        role_map.check_backbone(backbone.identity.to_json(), backbone.image.layers, backbone.image.heads)
        return cls(backbone, {attribute: role_map.heads_for(attribute) for attribute in role_map.core}, roles)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], device: str, precision: str) -> "HeadEncoder":
        identity = spec["backbone"]
        report(backbone_line(identity["model"], identity["pretrained"]))
        backbone = load_backbone(identity["model"], identity["pretrained"], device=device, precision=precision)
        backbone.identity.require_same(identity, "The gallery")
        return cls(backbone, spec["heads"], spec.get("roles", AUTO))

    @staticmethod
    def describe(spec: Mapping[str, Any]) -> str:
        return f"heads of {spec['backbone']['model']}"

    def with_gain(self, gains: Mapping[str, float]) -> "HeadEncoder":
        require_sum(self.backbone)
        chosen = named_gains(gains, find_roles(self.roles, self.backbone))
        changed = HeadEncoder(with_gains(self.backbone, chosen), self.heads, self.roles)
        changed.spec["gain"] = dict(gains)
        return changed

    @torch.no_grad()
    def encode_image(self, pixels: Tensor) -> dict[str, Tensor]:
        pixels = to_device(pixels, self.backbone.device)
        if self.reader is None:
            return {CLS: F.normalize(self.backbone.image.encode(pixels), dim=-1)}
        codes, feature = self.reader.codes_and_feature(pixels)
        return {CLS: feature, **{name: self.reader.sum_of(heads, codes) for name, heads in self.heads.items()}}

    @torch.no_grad()
    def text_feature(self, sentence: str) -> Tensor:
        return F.normalize(self.backbone.text.encode([sentence])[0], dim=-1)


class _Gain(TypedDict, total=False):
    gain: dict[Name, Finite]
    roles: str


class _AdapterSpec(_Gain):
    folder: Name
    sha256: str


class _HeadSpec(_Gain):
    backbone: BackboneIdentity
    heads: dict[Name, list[tuple[Positive, Count]]]


_ENCODERS: dict[Any, Any] = {"adapter": (AdapterEncoder, _AdapterSpec), "heads": (HeadEncoder, _HeadSpec)}


def check_spec(spec: Mapping[str, Any], what: str) -> None:
    """Refuses a spec that does not identify an encoder. `what`: the file, for the error."""
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in _ENCODERS:
        raise DearError(f"{what} does not name the encoder of its vectors: index the images again.")
    check_shape(spec, _ENCODERS[kind][1], what, "index the images again")


def load_encoder(spec: Mapping[str, Any], device: str = "auto", precision: str = "auto") -> Encoder:
    """The encoder that filled a gallery."""
    encoder: Encoder = _ENCODERS[spec["kind"]][0].from_spec(spec, device, precision)
    if "gain" in spec:
        encoder = encoder.with_gain(spec["gain"])
    if not encoder.fits(spec):
        raise DearError(f"The encoder of the gallery ({describe_encoder(spec)}) has changed: index its images again.")
    return encoder


def describe_encoder(spec: Mapping[str, Any]) -> str:
    """The encoder as a noun phrase, for error sentences."""
    gain = f", {gain_text(spec['gain'])}" if spec.get("gain") else ""
    return f"{_ENCODERS[spec['kind']][0].describe(spec)}{gain}"
