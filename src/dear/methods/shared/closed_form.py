"""Methods that are computed at once from the frozen features of the labelled images: zero-shot plus a correction."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.core.config import Config as Settings
from dear.core.runtime import with_fp64
from dear.methods.base import LabelledImages, Method
from dear.methods.shared.fair_lists import SHARES, Refit, fair_offsets
from dear.methods.shared.leave_one_out import BLOCK
from dear.methods.shared.per_class import PerClass, frozen_features
from dear.methods.shared.stacking import stack

_MAX_CHOOSING, _MAX_WEIGHING = 500_000, 2_000_000  # logits by which settings are chosen, and then a and b
Choice = TypeVar("Choice")
LeftOut = Callable[[Tensor], list[Tensor]]
"""Positions of labelled images -> parts of their logits, [rows, classes] each, every row by the fit without it."""


class CorrectionHead(nn.Module, ABC):
    """Logits a tau cos(f, w) + b correction(f) of features f [images, dim], for class texts w [classes, dim].

    a, b and the settings of the correction are those with the least cross entropy on the labelled images themselves,
    each left out of its own fit (exactly, `leave_one_out`; with few, one of every class at once), so no validation
    image is used and the probabilities are calibrated. All classes count alike there, however many images they have;
    one without a second image does not count. If no class has two images, nothing can be left out: a head says what it
    is then.
    """

    mix: Tensor  # a, b
    offsets: Tensor  # of classes without images in lists beside others, for each of `SHARES`
    left_out: Tensor | None = None
    """Logits [labelled images, classes], each by the fit without that image; only after `fit`."""

    def __init__(self, dim: int, temperature: float, like: Tensor) -> None:
        """All buffers get the dtype and device of the tensor `like`."""
        super().__init__()
        self.dim, self.temperature = dim, temperature
        self.register_buffer("mix", like.new_tensor([1.0, 0.0]))
        self.register_buffer("offsets", like.new_zeros(len(SHARES)))
        self.set_sizes(0, 0)

    @property
    def stored(self) -> int:
        """Number of labelled images whose features are kept."""
        return 0

    @abstractmethod
    def set_sizes(self, classes: int, stored: int) -> None:
        """Sets empty buffers for this number of training classes and stored images."""

    @abstractmethod
    def fit(self, features: Tensor, labels: Tensor, text: Tensor) -> Refit:
        """Sets the buffers from features [images, dim], labels [images] and texts [classes, dim].

        Returns a function that gives corrections, in place of logits, by fits to some of the images.
        """

    @abstractmethod
    def correction(self, features: Tensor) -> Tensor:
        """Features [batch, dim] -> [batch, training classes]."""

    def zero_shot(self, features: Tensor, text: Tensor) -> Tensor:
        return self.temperature * features @ text.T

    def forward(self, features: Tensor, text: Tensor) -> Tensor:
        """Logits [batch, training classes]."""
        return self.mix[0] * self.zero_shot(features, text) + self.mix[1] * self.correction(features)

    def be_fair(self, features: Tensor, labels: Tensor, text: Tensor, refit: Refit) -> None:
        """Sets `offsets`; the arguments are those of `fit`, and what it returned."""
        plain, (a, b) = self.zero_shot(features, text), self.mix.tolist()
        offsets = fair_offsets(plain, labels, lambda used, rows: a * plain[rows] + b * refit(used, rows))
        self.offsets = self.mix.new_tensor(offsets)

    def choose(
        self,
        choices: Mapping[Choice, LeftOut],
        labels: Tensor,
        start: Choice,
        start_mix: Sequence[float],
        rounds: Tensor | None = None,
    ) -> Choice:
        """Sets `mix` and `left_out` by the best of some settings, and returns it.

        `choices`: the parts of the left-out logits under each setting: zero-shot and correction, or their sum alone,
        if both have one weight. `start`: what is taken if no class has two images. `rounds`: of `rounds_of`.
        """
        everything = torch.arange(len(labels), device=labels.device)
        classes = next(iter(choices.values()))(everything[:1])[0].shape[1]
        own = torch.bincount(labels)[labels]  # images of the class of each
        rows = everything[own > 1]
        best, mix = start, torch.tensor(start_mix)
        if len(rows):
            rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).to(rows.device)]
            if rounds is not None:  # first whole rounds, which are computed at once
                rows = rows[rounds[rows].argsort(stable=True)]
            few, more = (rows[: size // classes] for size in (_MAX_CHOOSING, _MAX_WEIGHING))

            def weighed(name: Choice, rows: Tensor) -> tuple[Tensor, float]:
                return stack([part.float() for part in choices[name](rows)], labels[rows], 1 / own[rows])

            best = min(choices, key=lambda name: weighed(name, few)[1])
            mix = weighed(best, more)[0]
        self.mix = self.mix.new_tensor(mix.expand(2).tolist())
        self.left_out = torch.zeros(len(labels), classes, device=labels.device)
        for block, answer in zip(everything.split(BLOCK), self.left_out.split(BLOCK), strict=True):
            for weight, part in zip(mix.tolist(), choices[best](block), strict=True):
                answer += weight * part.float()
        return best


class Corrected(PerClass):
    """Logits of the class feature plus a head's correction.

    Classes without labelled images are answered by `fair_lists.beside` in a list with others. Alone they get
    tau cos(f, w) less their bias, `strength` times what the mean labelled image gets; `trials.unseen` chooses it.
    """

    Head: ClassVar[type[CorrectionHead]]
    fair = True
    common: Tensor  # the mean feature of the labelled images, [dim]
    strength: Tensor  # []

    def set_sizes(self, classes: int, shots: int = 0) -> None:
        backbone = self.backbone
        self.head = self.Head(backbone.dim, float(backbone.temperature), backbone.image.like)
        self.head.set_sizes(classes, shots)
        self.register_buffer("common", self.head.mix.new_zeros(backbone.dim))
        self.register_buffer("strength", self.head.mix.new_zeros(()))

    def sizes(self) -> dict[str, int]:
        return {"shots": self.head.stored}

    def novel_correction(self, features: Tensor) -> Tensor | None:
        """The correction [batch, classes] if none of the current classes was trained; None: there is none."""
        return None

    def logits(self, features: Tensor, text: Tensor, inference: str | None = None) -> Tensor:
        features, names = features[:, 0], self.classes.names
        if set(names).isdisjoint(self.trained):
            return self.unseen_logits(features, text) - self.strength * self.unseen_logits(self.common[None], text)
        plain = self.head.zero_shot(features, text)
        correction = self.head.correction(features)
        if names != self.trained:
            correction = F.pad(correction, (0, 1))[:, self.trained_rows(names)]  # the last: of a name without
        return self.fair_logits(self.head.mix[0] * plain + self.head.mix[1] * correction, plain, self.head.offsets)

    def unseen_logits(self, features: Tensor, text: Tensor) -> Tensor:
        """Logits [batch, classes] if none of the current classes was trained, with the bias of their names."""
        plain, correction = self.head.zero_shot(features, text), self.novel_correction(features)
        return plain if correction is None else self.head.mix[0] * plain + self.head.mix[1] * correction


class ClosedForm(Corrected):
    """A head on the frozen class feature."""

    @classmethod
    def for_unseen(cls, config: Any) -> tuple[type[Method], Settings]:
        return Method, config

    @torch.no_grad()
    def before_training(self, images: LabelledImages) -> None:
        self.trained = images.classes
        features, labels = frozen_features(self, images.train())
        given = with_fp64(features), with_fp64(labels), with_fp64(self.encode_text(self.classes))
        self.head.be_fair(*given, self.head.fit(*given))
