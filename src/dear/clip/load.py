"""Loads backbones by name: OpenCLIP names with a tag or a file, hf-hub:, local-dir:, transformers:, or dear-mini."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.clip.identity import hash_weights, hash_words
from dear.clip.image import ImageTower
from dear.clip.modules import activation_of, image_tower, text_side, why_different
from dear.clip.support import ConfigFile, judge, min_parameters, no_such_model, refusal, why_refused
from dear.clip.tags import check_tag, pictures_of, refuse_tag
from dear.clip.text_table import TextTable
from dear.clip.transformers_files import TRANSFORMERS
from dear.clip.transformers_models import load_transformers
from dear.core.errors import DearError, first_line
from dear.core.files import read_json
from dear.core.identity import BackboneIdentity
from dear.core.progress import phase
from dear.core.runtime import pick_device, pick_precision
from dear.core.schema import check_shape

MINI = "dear-mini"
MINI_FOLDER = Path(__file__).parent / "assets" / MINI
_MERGES = "bpe_vocab.txt.gz"  # a folder may contain its own byte-pair merges, as dear-mini's does


@dataclass(frozen=True)
class Backbone:
    """A frozen CLIP: two towers of blocks on one set of weights, or a text table in place of the text tower."""

    model: Any  # the OpenCLIP model, an nn.Module
    image: ImageTower
    text: Any  # a TextTower; where a method needs no more (`Method.needs_text`), a TextTable
    preprocess: Callable[[Any], Tensor]  # PIL image -> normalised pixels [3, height, width]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str
    pretrained: str | None
    activation: str
    pictures: Mapping[str, Any] = field(default_factory=dict)  # OpenCLIP's PreprocessCfg
    precision: torch.dtype = torch.float32  # of linear layers, convolutions and attention; all else is fp32

    @cached_property
    def identity(self) -> BackboneIdentity:
        table = self.text if isinstance(self.text, TextTable) else None
        return BackboneIdentity(
            self.name,
            self.pretrained,
            self.activation,
            hash_weights(self.model),
            table.sha256 if table else None,
            self.image.layout + ("" if table else f"; {self.text.layout}"),
            None if table else hash_words(self.text.tokenizer),
            "{size} px, {resize_mode}, {interpolation}, mean {mean}, std {std}".format(**self.pictures),
        )

    @property
    def temperature(self) -> Tensor:
        """tau of Eq. 17/18: CLIP's frozen logit scale, a scalar."""
        return self.model.logit_scale.detach().exp().reshape(())

    @property
    def bias(self) -> Tensor:
        """SigLIP's logit bias, a scalar, else 0. A softmax over classes does not depend on it; the probability of one
        text alone is sigmoid(temperature * cosine + bias)."""
        bias = getattr(self.model, "logit_bias", None)
        return torch.zeros_like(self.temperature) if bias is None else bias.detach().reshape(())

    @property
    def device(self) -> torch.device:
        return self.image.like.device

    @property
    def dim(self) -> int:
        return self.image.dim

    def normal(self, *shape: int, std: float = 0.02) -> Tensor:
        """Normal noise, the initial value of tokens, on the device and in the precision of the weights."""
        return std * torch.randn(shape, device=self.image.like.device, dtype=self.image.like.dtype)

    @property
    def states_key(self) -> str:
        """A key of cached states: all that decides them besides weights, size, mean and std; "" for a plain CLIP."""
        resize = self.pictures.get("resize_mode", "shortest"), self.pictures.get("interpolation", "bicubic")
        plain = self.image.tier == "full" and resize == ("shortest", "bicubic")
        return "" if plain else f"{self.image.tier}{resize}{self.activation}"

    def text_layer(self, image_layer: int) -> int:
        """The text layer that corresponds to an image layer: the same share of both towers is adapted."""
        if not self.text.layers:
            return 1
        adapted = round((self.image.layers - image_layer + 1) * self.text.layers / self.image.layers)
        return self.text.layers - max(1, adapted) + 1

    def with_text_table(self, table: TextTable) -> "Backbone":
        """This backbone with class features from a table instead of the text tower."""
        if table.width != self.dim:
            raise DearError(
                f"The vectors of {table.where} have {table.width} numbers, but the features of {self.name} have "
                f"{self.dim}: take a table of the same model."
            )
        return replace(self, text=table.to(self.device))


def load_backbone(
    name: str = MINI,
    pretrained: str | None = None,
    *,
    device: str | torch.device = "cpu",
    precision: str = "auto",
    random_weights: bool = False,
    text_features: str | Path | None = None,
) -> Backbone:
    """Loads a frozen backbone.

    `device`: by name, or "auto" (`pick_device`).
    `precision` of its blocks: fp32, or on CUDA bf16 and fp16; auto: half on CUDA, else fp32.
    `text_features`: a file of class names and their vectors, in place of the text tower (`dear.clip.text_table`).
    `random_weights` builds the architecture alone, for tests and benchmarks.
    """
    table, where = TextTable.read(text_features) if text_features else None, pick_device(device)
    dtype = pick_precision(precision, where)
    backbone = _load_frozen(name, pretrained, where, dtype, random_weights)
    return backbone if table is None else backbone.with_text_table(table)


def _load_frozen(
    name: str, pretrained: str | None, device: torch.device, dtype: torch.dtype, random_weights: bool
) -> Backbone:
    import open_clip

    if name.startswith(TRANSFORMERS):
        refuse_tag(name, pretrained)
        with phase(f"loading {name}"):
            model, tokenizer = load_transformers(name)
        return wrap(model.to(device), tokenizer, name, precision=dtype)
    if name == MINI:
        refuse_tag(name, pretrained)
    source, config = _source(name), usable_config(name)
    tag = check_tag(source, pretrained, config) if not random_weights else None
    quick_gelu = bool(config.get("quick_gelu")) or tag == "openai"
    pictures = pictures_of(source, pretrained, random_weights)
    try:
        with warnings.catch_warnings(), phase(f"loading {' '.join(filter(None, (name, pretrained)))}"):
            warnings.simplefilter("ignore")
            model = open_clip.create_model(
                source,
                tag,
                load_weights=not random_weights,
                force_quick_gelu=quick_gelu,
                device="cpu",
                pretrained_hf=False,  # the weights of the text tower are in the checkpoint
                force_preprocess_cfg=pictures,
            )
        tokenizer = _tokenizer(source)
    except ModuleNotFoundError as error:
        raise DearError(f"{name} needs the package {error.name}: pip install 'dear-vlm[hf]'.") from error
    except Exception as error:  # OpenCLIP does not validate configs, and raises many kinds
        raise DearError(f"The weights of {name} could not be loaded: {first_line(error)}.") from error
    backbone = wrap(model.to(device), tokenizer, name, pretrained, dtype)
    if (backbone.image.tier, backbone.text.tier) != (expected := judge(config))[:2]:
        raise DearError(
            f"{name} was built otherwise than its config says ({backbone.image.tier} and {backbone.text.tier}, not "
            f"{expected.image} and {expected.text}): install another version of open_clip_torch or timm."
        )
    return backbone


def wrap(
    model: Any,
    tokenizer: Callable[..., Tensor],
    name: str,
    pretrained: str | None = None,
    precision: torch.dtype = torch.float32,
) -> Backbone:
    """A backbone around an OpenCLIP model that is already in memory; the model is frozen, not copied.

    With half `precision` the weights of its linear layers are replaced.
    """
    from open_clip.transform import PreprocessCfg, image_transform_v2

    for part in ("visual", "encode_image", "encode_text", "logit_scale"):
        if not hasattr(model, part):
            raise refusal(name, f"{type(model).__name__} is no pair of image and text towers: it has no {part}")
    model.eval().requires_grad_(False)
    preprocess = PreprocessCfg(**getattr(model.visual, "preprocess_cfg", {"size": model.visual.image_size}))
    image, text = image_tower(model, _image_size(preprocess.size)), text_side(model, tokenizer)
    if reason := why_different(model, image, text):
        raise refusal(name, reason)
    # The config of ViTamin-XL-384 names 256 px, but its tower takes 384.
    preprocess = replace(preprocess, size=image.image_size)
    backbone = Backbone(
        model,
        image,
        text,
        image_transform_v2(preprocess, is_train=False),
        tuple(preprocess.mean),
        tuple(preprocess.std),
        name,
        pretrained,
        activation_of(model),
        asdict(preprocess),
        precision,
    )
    if precision is not torch.float32:
        backbone.identity  # noqa: B018 - the hash of the exact weights, before they are replaced
        backbone.image.halve(precision)
        backbone.text.halve(precision)
    return backbone


def _image_size(size: int | Sequence[int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _source(name: str) -> str:
    return f"local-dir:{MINI_FOLDER}" if name == MINI else name


def usable_config(name: str) -> dict[str, Any]:
    """The config of a model that is not one of transformers, without its weights; refuses one that cannot be used."""
    config = read_model_config(_source(name))
    if reason := why_refused(config):
        raise refusal(name, reason)
    return config


def read_model_config(source: str) -> dict[str, Any]:
    """The model part of an OpenCLIP config, from a folder, the hub or OpenCLIP itself."""
    import open_clip

    if source.startswith("local-dir:"):
        folder = Path(source.removeprefix("local-dir:"))
        config = read_json(folder / "open_clip_config.json")
        weights = [path for kind in ("*.safetensors", "*.bin", "*.pt") for path in folder.glob(kind)]
        if not weights:
            raise DearError(f"{folder} has a config but no weights: put open_clip_model.safetensors there.")
        weight_bytes = sum(path.stat().st_size for path in weights)
    elif source.startswith("hf-hub:"):
        from open_clip.factory import _get_hf_config

        try:
            config = _get_hf_config(source.removeprefix("hf-hub:"))
        except Exception as error:  # the hub client raises many kinds
            raise DearError(f"{source} could not be fetched: check the name and the network ({error}).") from error
    else:
        model = open_clip.get_model_config(source.replace("/", "-"))
        if model is None:
            raise no_such_model(source, [MINI, *open_clip.list_models()])
        return model
    check_shape(config, ConfigFile, f"The config of {source}", "it needs OpenCLIP's model_cfg with both towers")
    model = config["model_cfg"]
    if source.startswith("local-dir:") and min_parameters(model) > weight_bytes:  # at least one per parameter
        raise DearError(f"The config of {source} describes a larger model than its weights: copy both again.")
    return model


def _tokenizer(source: str) -> Callable[..., Tensor]:
    import open_clip

    if source.startswith("local-dir:"):
        folder = Path(source.removeprefix("local-dir:"))
        if (folder / _MERGES).is_file():
            context = read_model_config(source)["text_cfg"]["context_length"]
            return open_clip.SimpleTokenizer(str(folder / _MERGES), context_length=context)
    return open_clip.get_tokenizer(source)
