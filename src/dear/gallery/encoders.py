"""What makes images into vectors, one for each component: a gallery is filled and searched with one and the same."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from PIL import Image
from torch import Tensor

from dear.adapter import CONFIG
from dear.errors import DearError
from dear.gallery.sources import absolute

if TYPE_CHECKING:
    from dear.predictor import Predictor


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
        self.dim = predictor.model.backbone.dim
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
        run = Path(str(source.get("folder")))
        if not (run / CONFIG).is_file():
            raise DearError(
                f"The adapter of this gallery is no longer in {run}: tell where it is with "
                "`dear index RUN --out GALLERY`."
            )
        return cls.load(run, device)

    def encode_image(self, pixels: Tensor) -> dict[str, Tensor]:
        return self.predictor.encode_image(pixels)

    def encode_text(self, sentence: str) -> dict[str, Tensor]:
        """The same for every component: training aligns them all to it."""
        return dict.fromkeys(self.components, self.predictor.encode_text([sentence])[0])

    def fits(self, source: Mapping[str, Any]) -> bool:
        return {**source, "folder": None} == {**self.source, "folder": None}


_KINDS = {"adapter": AdapterEncoder.from_source}


def load_encoder(source: Mapping[str, Any], device: str = "auto") -> Encoder:
    """The encoder that a gallery was filled with."""
    kind = source.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise DearError("The gallery does not say what its vectors were made with: index its images again.")
    encoder = _KINDS[kind](source, device)
    if not encoder.fits(source):
        raise DearError(f"What the gallery was made with ({describe(source)}) has changed: index its images again.")
    return encoder


def describe(source: Mapping[str, Any]) -> str:
    return f"the adapter in {source.get('folder')}"
