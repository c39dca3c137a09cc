"""PromptSRC: deep prompts regularised towards frozen CLIP, and averaged over the epochs (ICCV 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip.layer_input import LayerInput
from dear.clip.text import ClassTexts
from dear.core.config import setting
from dear.methods.base import Loss
from dear.methods.deep_prompts import DASSL, DeepPromptConfig, DeepPrompts
from dear.methods.recipe import Recipe
from dear.methods.shared.templates import SIXTY
from dear.methods.zero_shot import ensemble


@dataclass(frozen=True)
class PromptSrcConfig(DeepPromptConfig):
    """Tokens in both towers, regularised towards frozen CLIP."""

    lambda_text: float = setting(25.0, "weight of the distance of text features to frozen CLIP's", low=0.0, high=1e6)
    lambda_image: float = setting(10.0, "weight of the distance of image features to frozen CLIP's", low=0.0, high=1e6)
    lambda_logits: float = setting(1.0, "weight of the divergence from frozen CLIP's predictions", low=0.0, high=1e6)


class PromptSrc(DeepPrompts):
    """L = CE + 25 |w - W0| + 10 |f - f0| + KL(p0 || p), |.| the mean over all elements, KL over batch and classes.

    W0 is the mean of raw frozen text features over sixty templates, f0 and p0 are frozen CLIP's on the same view.
    Differs from the official code: only learned weights are averaged, in fp32 (there the whole state in half precision,
    frozen weights included).
    """

    Config = PromptSrcConfig
    recipe = (
        Recipe(DASSL, lr=0.0025, epochs=20, batch=4, average="gaussian", average_peak=15.0, average_width=1.0)
        .on("few-shot", epochs=50, average_peak=30.0, average_width=30.0)
        .on("cross-dataset", "domain", image_depth=3, text_depth=3, average_peak=6.0, average_width=10.0)
    )
    config: PromptSrcConfig

    def encode_classes(self, names: Sequence[str], template: str) -> ClassTexts:
        return super().encode_classes(names, template)._replace(frozen=ensemble(self, names, SIXTY, normalised=False))

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        features, text = self.encode_image(x), self.encode_text(self.classes)
        frozen, target = self.backbone.image.frozen_feature(x), self.classes.frozen
        logits = self.logits(features, text)
        with torch.no_grad():
            expected = self.logits(frozen[:, None], target).log_softmax(-1)
        parts = {
            "cross_entropy": F.cross_entropy(logits, labels),
            "text": self.config.lambda_text * (text - target).abs().mean(),
            "image": self.config.lambda_image * (features[:, 0] - frozen).abs().mean(),
            "answers": self.config.lambda_logits
            * F.kl_div(logits.log_softmax(-1), expected, reduction="sum", log_target=True)
            / logits.numel(),
        }
        return Loss(torch.stack(list(parts.values())).sum(), parts, logits)
