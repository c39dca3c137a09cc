"""Frozen CLIP: the class feature against class texts, of one template or of several."""

from collections.abc import Sequence

import torch
from open_clip import OPENAI_IMAGENET_TEMPLATES, SIMPLE_IMAGENET_TEMPLATES
from torch import Tensor
from torch.nn import functional as F

from dear.clip.text import ClassTexts
from dear.core.errors import TextTooLongError
from dear.data.prompts import fill
from dear.methods.base import Method

ENSEMBLE = tuple(template("{}") for template in SIMPLE_IMAGENET_TEMPLATES)
"""The seven templates that CLIP's authors chose for ImageNet, as in Tip-Adapter and many others."""


class ZeroShot(Method):
    """Frozen CLIP, which `Method` itself is."""

    def merged(self) -> list[tuple[Tensor, Tensor]]:
        return []


class ZeroShotEnsemble(Method):
    """Class texts are means over the dataset's own template and CLIP's seven for ImageNet."""

    def encode_classes(self, names: Sequence[str], template: str) -> ClassTexts:
        classes = super().encode_classes(names, template)
        return classes._replace(frozen=ensemble(self, names, (template, *ENSEMBLE)))


@torch.no_grad()
def ensemble(method: Method, names: Sequence[str], templates: Sequence[str], normalised: bool = True) -> Tensor:
    """Frozen text features averaged over templates, normalised, [names, dim].

    `normalised`: normalise each template's feature before the mean, as CLIP does; else only the mean, as PromptSRC.
    Templates that are too long for a small backbone's context are left out, unless all are.
    """
    text, by_template = method.backbone.text, []
    for template in templates:
        try:
            by_template.append(text.encode([fill(template, name) for name in names]))
        except TextTooLongError:
            if not by_template and template == templates[-1]:
                raise
    if normalised:
        by_template = [F.normalize(features, dim=-1) for features in by_template]
    return F.normalize(torch.stack(by_template).mean(0), dim=-1)


SIXTY = tuple(template("{}") for template in OPENAI_IMAGENET_TEMPLATES[:60])
"""PromptSRC's choice for every dataset: the first sixty of the eighty that CLIP's authors wrote for ImageNet."""
