"""Small changes of the weights of all layers of both towers: CLIP-LoRA, CLIP-SVD and 2SFS.

CLIP-LoRA: Zanella and Ben Ayed, CVPR Workshops 2024. CLIP-SVD: Koleilat et al., 2025, arXiv 2509.03740. 2SFS: Farina et
al., CVPR 2025.
"""

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.image import ImageTower
from dear.clip.layer_input import LayerInput
from dear.clip.low_rank import AttentionView, BlockView, LowRank, Tower, with_blocks, with_low_rank
from dear.clip.text import ClassTexts, TextTower
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.methods.base import LabelledImages, Loss, Method, normalized
from dear.methods.recipe import Recipe
from dear.methods.shared.per_class import PerClass
from dear.methods.shared.towers import learns_texts

_BOTH_TOWERS = Recipe(
    optimizer="adamw", lr=2e-4, weight_decay=1e-2, batch=32, schedule="step", final_lr=1e-6, warmup_epochs=0, crop=0.08
)


class ChangedTowers(Method):
    """Both towers with changes in all layers; with fixed texts (`--text-features`), the image tower alone."""

    first_layer = 1
    first_text_layer = 1
    changed_image: ImageTower
    changed_text: TextTower

    def __init__(self, backbone: Backbone, config: Settings) -> None:
        super().__init__(backbone, config)
        self.learns_texts = learns_texts(backbone)

    def encode_text(self, classes: ClassTexts) -> Tensor:
        return self.changed_text.features(classes) if self.learns_texts else classes.frozen

    def encode_image(self, x: LayerInput) -> Tensor:
        tower = self.changed_image
        return normalized(tower.features(LayerInput(tower, x.layer, x.states)).cls)


@dataclass(frozen=True)
class LoraConfig(Settings):
    """Low-rank terms of the attention projections."""

    rank: int = setting(2, "rank of each term", low=1, high=1000)
    lora_alpha: float = setting(1.0, "scale of the terms, divided by the root of the rank", low=0.0, high=1e3)
    dropout: float = setting(0.25, "dropout on the input of each term", low=0.0, high=0.99)


class ClipLora(ChangedTowers):
    """W x + (alpha / sqrt(rank)) B A dropout(x) for queries, keys and values, with A and B learned.

    Differs from the official code: the template is the dataset's own (there "a photo of a {}." for all); in the text
    tower the shared prefix of the prompts is computed once, so that in training all classes share its dropout. With
    fixed texts it is the authors' `--encoder vision`.
    """

    Config = LoraConfig
    recipe = Recipe(_BOTH_TOWERS, steps_per_shot=500)
    config: LoraConfig

    def __init__(self, backbone: Backbone, config: LoraConfig) -> None:
        super().__init__(backbone, config)
        like, terms = backbone.image.like, (config.rank, config.lora_alpha, config.dropout)
        self.image_terms = LowRank(backbone.image, *terms, like)
        self.changed_image = with_low_rank(backbone.image, self.image_terms.layer_term)
        if self.learns_texts:
            self.text_terms = LowRank(backbone.text, *terms, like)
            self.changed_text = with_low_rank(backbone.text, self.text_terms.layer_term)

    def merged(self) -> list[tuple[Tensor, Tensor]]:
        towers = [(self.backbone.image, self.image_terms)]
        towers += [(self.backbone.text, self.text_terms)] if self.learns_texts else []
        return [
            (block.attn.in_proj_weight, block.attn.in_proj_weight + terms.scale * (up @ down).flatten(0, 1))
            for tower, terms in towers
            for block, up, down in zip(tower.blocks, terms.up, terms.down, strict=True)
        ]


Factors = list[list[tuple[Tensor, Tensor, Tensor]]]
"""U [out, width], s [width] and V^T [width, in] of the (usually six) matrices of each layer."""


class ClipSvd(ChangedTowers):
    """W = U diag(s) V^T for queries, keys, values, output and both MLP matrices of all blocks; s is learned.

    92,160 numbers on ViT-B/16. Weight decay pulls s to zero, as published, not to its start. Differs from the official
    code: fp32 (there half precision); the dataset's own template (there another for Food-101 with few shots, and for
    DTD, EuroSAT and UCF101 from base to novel); from base to novel one cosine over the whole training, 10 epochs (there
    the rate swings up and down once in every 2 * epochs *steps*, with the same mean, and epochs are 20 on five
    datasets: --published-constants).
    """

    recipe = Recipe(_BOTH_TOWERS, lr=5e-4, steps_per_shot=200).on(
        "base-to-novel", lr=4e-4, steps_per_shot=None, epochs=10
    )

    def __init__(self, backbone: Backbone, config: Settings) -> None:
        super().__init__(backbone, config)
        self._image_factors = factors_of(backbone.image.visual, backbone.image)
        self.image_values = nn.Parameter(_values(self._image_factors))  # [layers, matrices, width]
        if self.learns_texts:
            self._text_factors = factors_of(backbone.text.module, backbone.text)
            self.text_values = nn.Parameter(_values(self._text_factors))

    def merged(self) -> list[tuple[Tensor, Tensor]]:
        towers = [(self.backbone.image, self._image_factors, self.image_values)]
        towers += [(self.backbone.text, self._text_factors, self.text_values)] if self.learns_texts else []
        pairs: list[tuple[Tensor, Tensor]] = []
        for tower, factors, values in towers:
            for block, layer, numbers in zip(tower.blocks, factors, values, strict=True):
                q, k, v, *rest = (u * s @ vt for (u, _, vt), s in zip(layer, numbers, strict=True))
                frozen = [block.attn.in_proj_weight, block.attn.out_proj.weight, *_mlp(block).values()]
                pairs += zip(frozen, [torch.cat([q, k, v]), *rest], strict=True)
        return pairs

    @property
    def changed_image(self) -> ImageTower:  # type: ignore[override]
        return with_values(self.backbone.image, self._image_factors, self.image_values)

    @property
    def changed_text(self) -> TextTower:  # type: ignore[override]
        return with_values(self.backbone.text, self._text_factors, self.text_values)


def _values(factors: Factors) -> Tensor:
    return torch.stack([torch.stack([s for _, s, _ in layer]) for layer in factors])


_KNOWN_FACTORS: WeakKeyDictionary[nn.Module, Factors] = WeakKeyDictionary()
"""They take half a minute for ViT-B/16, so cells of a benchmark on one backbone share them."""


@torch.no_grad()
def factors_of(module: nn.Module, tower: Any) -> Factors:
    """The factors of a tower, kept for its `module`."""
    if module not in _KNOWN_FACTORS:
        _KNOWN_FACTORS[module] = [
            [
                torch.linalg.svd(matrix.float() if matrix.dtype.itemsize < 4 else matrix, full_matrices=False)
                for matrix in _matrices(block)
            ]
            for block in tower.blocks
        ]
    return _KNOWN_FACTORS[module]


def _matrices(block: Any) -> list[Tensor]:
    """Queries, keys, values, output, and those of the MLP."""
    return [*block.attn.in_proj_weight.chunk(3), block.attn.out_proj.weight, *_mlp(block).values()]


def _mlp(block: Any) -> dict[str, Tensor]:
    """The matrices of the MLP by name."""
    linear = {name: part for name, part in block.mlp.named_modules() if isinstance(part, nn.Linear)}
    return {f"{name}.weight": part.weight for name, part in linear.items()}


def with_values(tower: Tower, factors: Factors, values: Tensor) -> Tower:
    """Copies a tower with other singular values [layers, matrices, width]; biases and all else are shared."""
    return with_blocks(tower, [_with_factors(*parts) for parts in zip(tower.blocks, factors, values, strict=True)])


class _Linear:
    """A layer of nn.Linear with another weight."""

    def __init__(self, frozen: nn.Linear, weight: Tensor) -> None:
        self.weight, self.bias, self.in_features = weight, frozen.bias, frozen.in_features

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def _with_factors(block: Any, factors: list[tuple[Tensor, Tensor, Tensor]], values: Tensor) -> Any:
    frozen = block.attn
    q, k, v, out, *mlp = ((u * s @ vt).to(frozen.in_proj_weight) for (u, _, vt), s in zip(factors, values, strict=True))
    weights = dict(zip(_mlp(block), mlp, strict=True))
    attn = AttentionView(frozen, in_proj_weight=torch.cat([q, k, v]), out_proj=_Linear(frozen.out_proj, out))
    return BlockView(block, attn=attn, mlp=lambda x: functional_call(block.mlp, weights, (x,)))


@dataclass(frozen=True)
class TwoStageConfig(Settings):
    """The two stages."""

    restart: float = setting(
        0.6, "share of the steps that train LayerNorms; the others train the classifier", low=0.01, high=0.99
    )


class TwoStage(PerClass, ChangedTowers):
    """Stage 1 trains the two LayerNorms of every block, 61,440 numbers on ViT-B/16; stage 2 a vector per class, which
    starts as its adapted text, against the adapted image feature. Each stage has its own cosine schedule.

    A class that has a vector is answered by it, any other by the adapted text tower. As in effect in the official code,
    the LayerNorms before and after the blocks stay frozen: it visits them twice, and the second visit freezes them.
    Differs from it: fp32 (there half precision with loss scaling); the dataset's own template (there one for all); the
    epoch goes on when stage 2 begins (there a new one begins); two training classes of one name, as in ImageNet, keep
    their own vectors (there both are answered by the second's). Cross-dataset is ours, with the same settings. Where
    texts are fixed (`--text-features`) stage 1 trains the image tower alone.
    """

    Config = TwoStageConfig
    recipe = Recipe(_BOTH_TOWERS, steps_per_shot=300, restart=0.6)
    config: TwoStageConfig
    done = 0.0
    classifier: nn.Parameter  # [training classes, dim]
    second: Tensor  # 1 from the first step of stage 2 on

    def __init__(self, backbone: Backbone, config: TwoStageConfig) -> None:
        super().__init__(backbone, config)
        self.image_norms, self.changed_image = with_own_norms(backbone.image)
        if self.learns_texts:
            self.text_norms, self.changed_text = with_own_norms(backbone.text)
        self.register_buffer("second", backbone.image.like.new_zeros(()))
        self.in_second = False  # the same, known to the host without waiting for the device
        self.register_load_state_dict_post_hook(lambda module, _: setattr(module, "in_second", bool(module.second)))

    def set_sizes(self, classes: int) -> None:
        self.classifier = nn.Parameter(self.backbone.image.like.new_zeros(classes, self.backbone.dim))

    def before_training(self, images: LabelledImages) -> None:
        self.trained = images.classes
        self.set_sizes(len(self.trained))

    def merged(self) -> list[tuple[Tensor, Tensor]]:
        towers = [(self.backbone.image, self.image_norms)]
        towers += [(self.backbone.text, self.text_norms)] if self.learns_texts else []
        pairs: list[tuple[Tensor, Tensor]] = []
        for tower, norms in towers:
            for block, own in zip(tower.blocks, norms, strict=True):
                pairs += zip(nn.ModuleList([block.ln_1, block.ln_2]).parameters(), own.parameters(), strict=True)
        return pairs

    def encode_text(self, classes: ClassTexts) -> Tensor:
        adapted = partial(super().encode_text, classes)
        if not self.in_second:
            return adapted()
        return self.own_or(F.normalize(self.classifier, dim=1), classes.names, adapted)

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        if self.done >= self.config.restart and not self.in_second:
            with torch.no_grad():
                self.classifier.copy_(self.encode_text(self.classes))
                self.second.fill_(1)
            self.in_second = True
        with torch.set_grad_enabled(not self.in_second):
            features = self.encode_image(x)
        logits = self.logits(features, self.encode_text(self.classes))
        total = F.cross_entropy(logits, labels)
        return Loss(total, {"cross_entropy": total}, logits)


def with_own_norms(tower: Tower) -> tuple[nn.ModuleList, Tower]:
    """Trainable copies of the LayerNorms of all blocks, and the same tower with them."""
    copies = [deepcopy([block.ln_1, block.ln_2]) for block in tower.blocks]
    blocks = [BlockView(block, ln_1=a, ln_2=b) for block, (a, b) in zip(tower.blocks, copies, strict=True)]
    return nn.ModuleList(map(nn.ModuleList, copies)).requires_grad_(True), with_blocks(tower, blocks)
