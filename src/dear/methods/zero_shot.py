"""CLIP as it is: the class feature against the text features of the classes."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip.text import ClassTexts
from dear.core.errors import TextTooLongError
from dear.data.prompts import fill
from dear.methods.base import Method

ENSEMBLE = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
"""The seven templates that CLIP's authors chose for ImageNet, as in Tip-Adapter and many others."""


class ZeroShot(Method):
    """All of its answers are frozen CLIP's."""


class ZeroShotEnsemble(Method):
    """The text feature of a class is the mean over the dataset's own template and CLIP's seven for ImageNet."""

    def encode_classes(self, names: Sequence[str], template: str) -> ClassTexts:
        classes = super().encode_classes(names, template)
        return classes._replace(frozen=ensemble(self, names, (template, *ENSEMBLE)))


@torch.no_grad()
def ensemble(method: Method, names: Sequence[str], templates: Sequence[str], normalised: bool = True) -> Tensor:
    """Frozen text features averaged over templates, normalised, [names, dim].

    `normalised`: each template's feature before they are averaged, as CLIP does; else only their mean, as PromptSRC.
    A small backbone may read fewer tokens than CLIP: templates that are too long for it are left out, if not all are.
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
