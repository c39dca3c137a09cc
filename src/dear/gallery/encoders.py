"""What makes images into vectors, one for each component: a gallery is filled and searched with one and the same."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone, load_backbone
from dear.core.errors import DearError
from dear.core.runtime import pick_device
from dear.core.schema import Count, Name, Positive, check_shape
from dear.gallery.sources import absolute
from dear.heads.contributions import HeadReader
from dear.heads.role_map import Head
from dear.methods.shared.role_settings import find_roles
from dear.model.adapter import CONFIG

if TYPE_CHECKING:
    from dear.model.predictor import Predictor


class Encoder(Protocol):
    components: tuple[str, ...]  # "cls", the class feature, first
    centred: tuple[str, ...]  # those that are compared after the mean over all images of the gallery was taken off
    dim: int
    source: dict[str, Any]  # plain values, kept with the gallery: whose vectors these are, and how to load it again
    preprocess: Callable[[Image.Image], Tensor]  # an RGB picture -> normalised pixels [3, height, width]

    def encode_image(self, pixels: Tensor) -> dict[str, Tensor]:
        """Normalised pixels [images, 3, height, width] -> vectors [images, dim] of each component."""
        ...

    def encode_text(self, sentence: str) -> dict[str, Tensor]:
        """A vector [dim] of each component, to be compared with those of images as it is."""
        ...

    def fits(self, source: Mapping[str, Any]) -> bool:
        """Do the vectors of that source compare with these?"""
        ...


class AdapterEncoder:
    """A model adapted by `dear train`: a component for each attribute token."""

    centred: tuple[str, ...] = ()

    def __init__(self, run: str | Path, predictor: "Predictor") -> None:
        self.predictor = predictor
        self.components = tuple(predictor.model.components)
        self.dim = predictor.model.dim
        self.preprocess = predictor.model.backbone.preprocess
        # The config holds the checksum of the weights, so its own tells adapters apart.
        checksum = hashlib.sha256((Path(run) / CONFIG).read_bytes()).hexdigest()
        self.source = {"kind": "adapter", "folder": absolute(str(run)), "sha256": checksum}

    @classmethod
    def load(cls, run: str | Path, device: str = "auto") -> "AdapterEncoder":
        from dear import load

        return cls(run, load(run, device=device))

    @classmethod
    def from_source(cls, source: Mapping[str, Any], device: str) -> "AdapterEncoder":
        run = Path(source["folder"])
        if not (run / CONFIG).is_file():
            raise DearError(
                f"The adapter of this gallery is no longer in {run}: tell where it is with "
                "`dear index RUN --out GALLERY`."
            )
        return cls.load(run, device)

    @staticmethod
    def describe(source: Mapping[str, Any]) -> str:
        return f"the adapter in {source['folder']}"

    def encode_image(self, pixels: Tensor) -> dict[str, Tensor]:
        return self.predictor.features(pixels)

    def encode_text(self, sentence: str) -> dict[str, Tensor]:
        """The same for every component: training aligns them all to it."""
        return dict.fromkeys(self.components, self.predictor.encode_text([sentence])[0])

    def fits(self, source: Mapping[str, Any]) -> bool:
        return (source.get("kind"), source.get("sha256")) == ("adapter", self.source["sha256"])


class HeadEncoder:
    """A frozen backbone, without any training: for each attribute, what its heads write into the class feature.

    A head writes much that is the same for every image; what tells images apart is left once the mean is taken off.
    """

    def __init__(self, backbone: Backbone, heads: Mapping[str, Sequence[Head]]) -> None:
        """heads: attribute -> its (layer, head)."""
        self.backbone = backbone
        self.heads = {name: [(layer, head) for layer, head in of_name] for name, of_name in heads.items() if of_name}
        if not self.heads:
            raise DearError("No head is an expert in any attribute by this role map: give another one with --roles.")
        tower, all_heads = backbone.image, [at for of_name in self.heads.values() for at in of_name]
        if any(not (1 <= layer <= tower.layers and 0 <= head < tower.heads) for layer, head in all_heads):
            raise DearError(
                f"{backbone.name} has {tower.layers} layers of {tower.heads} heads, not all of those named."
            )
        self.reader = HeadReader(backbone, min(layer for layer, _ in all_heads))
        self.centred = tuple(self.heads)
        self.components = ("cls", *self.centred)
        self.dim = backbone.dim
        self.preprocess = backbone.preprocess
        named = {name: [list(at) for at in of_name] for name, of_name in self.heads.items()}
        self.source: dict[str, Any] = {"kind": "heads", "backbone": backbone.identity.to_json(), "heads": named}

    @classmethod
    def load(
        cls, model: str, pretrained: str | None = None, roles: str = "auto", device: str = "auto"
    ) -> "HeadEncoder":
        """roles: a role map by its file or name; "auto": the one that comes with the package for these weights."""
        backbone = load_backbone(model, pretrained, device=pick_device(device))
        found = find_roles(roles, backbone)
        found.check_backbone(backbone.identity.to_json(), backbone.image.layers, backbone.image.heads)
        return cls(backbone, {attribute: found.heads_for(attribute) for attribute in found.core})

    @classmethod
    def from_source(cls, source: Mapping[str, Any], device: str) -> "HeadEncoder":
        made_for = source["backbone"]
        backbone = load_backbone(made_for["model"], made_for["pretrained"], device=pick_device(device))
        backbone.identity.require_same(made_for, "The gallery")
        return cls(backbone, source["heads"])

    @staticmethod
    def describe(source: Mapping[str, Any]) -> str:
        return f"heads of {source['backbone']['model']}"

    @torch.no_grad()
    def encode_image(self, pixels: Tensor) -> dict[str, Tensor]:
        codes, feature = self.reader.read(pixels.to(self.backbone.device))
        return {"cls": feature, **{name: self.reader.sum_of(heads, codes) for name, heads in self.heads.items()}}

    @torch.no_grad()
    def encode_text(self, sentence: str) -> dict[str, Tensor]:
        """The same for every component: heads write in the space of the text."""
        return dict.fromkeys(self.components, F.normalize(self.backbone.text.encode([sentence])[0], dim=-1))

    def fits(self, source: Mapping[str, Any]) -> bool:
        """The same weights and heads; what the backbone is called does not matter."""
        if source.get("kind") != "heads" or source["heads"] != self.source["heads"]:
            return False
        return all(source["backbone"][key] == self.source["backbone"][key] for key in ("activation", "weights"))


class _AdapterSource(TypedDict):
    folder: Name
    sha256: str


class _BackboneSource(TypedDict):
    model: Name
    pretrained: str | None
    activation: str
    weights: str


class _HeadSource(TypedDict):
    backbone: _BackboneSource
    heads: dict[Name, list[tuple[Positive, Count]]]


_KINDS: dict[Any, Any] = {"adapter": (AdapterEncoder, _AdapterSource), "heads": (HeadEncoder, _HeadSource)}


def check_source(source: Mapping[str, Any], what: str) -> None:
    """Refuses what does not say which encoder it is."""
    kind = source.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise DearError(f"{what} does not say what its vectors were made with: index the images again.")
    check_shape(source, _KINDS[kind][1], what, "index the images again")


def load_encoder(source: Mapping[str, Any], device: str = "auto") -> Encoder:
    """The encoder that a gallery was filled with."""
    encoder = _KINDS[source["kind"]][0].from_source(source, device)
    if not encoder.fits(source):
        raise DearError(f"What the gallery was made with ({describe(source)}) has changed: index its images again.")
    return encoder


def describe(source: Mapping[str, Any]) -> str:
    """In a few words, for a sentence."""
    return _KINDS[source["kind"]][0].describe(source)
