"""Optional parts of a method, beside the members of `Method`: each is a protocol, found by `isinstance`."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from dear.core.config import Config as Settings
from dear.data.augment import RANDOM
from dear.heads.role_map import RoleMap
from dear.methods.base import LabelledImages, Loss, Method


class Gradients(Protocol):
    """Gradients of a loss with respect to all parameters, scaled for AMP and summed over processes."""

    def __call__(self, loss: Tensor, keep_graph: bool = False) -> list[Tensor | None]:
        """Gradients of a part of the loss; `keep_graph`: those of another part follow."""


@runtime_checkable
class OwnBackward(Protocol):
    def backward(self, loss: Loss, gradients: Gradients) -> None:
        """Sets the gradients of all parameters."""


def set_gradients(method: Method, loss: Loss, gradients: Gradients) -> None:
    """Sets the gradients of all parameters: those of the total loss, unless the method has a way of its own."""
    if isinstance(method, OwnBackward):
        return method.backward(loss, gradients)
    for parameter, gradient in zip(method.parameters(), gradients(loss.total), strict=True):
        parameter.grad = gradient


@runtime_checkable
class OwnTargets(Protocol):
    def targets(self, labels: Tensor) -> Tensor:
        """The second argument of `loss` for the labels [images] of a batch, on the host."""


def targets_of(method: Method, labels: Tensor) -> Tensor:
    """The second argument of `loss` for a batch: the labels, unless the method has other targets."""
    return method.targets(labels) if isinstance(method, OwnTargets) else labels


@runtime_checkable
class ManyViews(Protocol):
    views: tuple[str, ...]
    """The views of each training image that `loss` gets, one after the other along the batch."""


def views_of(method: Method) -> tuple[str, ...]:
    """The views of each training image in a step: a random one, unless the method names others."""
    return method.views if isinstance(method, ManyViews) else (RANDOM,)


@runtime_checkable
class Staged(Protocol):
    done: float
    """The finished share of the steps of a training, set before each step."""


@runtime_checkable
class Tuned(Protocol):
    def after_training(self, images: LabelledImages) -> None:
        """Chooses on validation images the values that are not trained."""


@runtime_checkable
class Telling(Protocol):
    def learned(self) -> str:
        """One sentence on what was learned, printed after training; may be empty."""


@runtime_checkable
class ForUnseen(Protocol):
    @classmethod
    def for_unseen(cls, config: Any) -> tuple[type[Method], Settings]:
        """A method and settings, cheaper to fit, with the same answers if no class has labelled images."""


@runtime_checkable
class PlainClip(Protocol):
    def merged(self) -> list[tuple[Tensor, Tensor]]:
        """Weights of the frozen model, and what takes their place: with these a plain CLIP computes the same."""


@runtime_checkable
class ReadsHeads(Protocol):
    heads_from: int
    """The first layer whose heads' outputs at CLS the method needs besides the frozen CLS state."""


@runtime_checkable
class HasRoles(Protocol):
    roles: RoleMap


class Teacher(NamedTuple):
    """A method, its backbone (empty: the student's own), and changes to its recipe."""

    method: str
    backbone: str
    pretrained: str | None
    recipe: Mapping[str, Any]


@runtime_checkable
class Student(Protocol):
    """A method that imitates a teacher on unlabelled images of all classes: it is transductive."""

    def teacher(self) -> Teacher: ...

    def set_teacher(self, names: Sequence[str], text: Tensor, logits: Tensor) -> None:
        """Before training: the teacher's class features [classes, its dim] and its logits [images, classes].

        The labels of training images are rows of the logits.
        """
