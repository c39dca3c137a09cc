"""Baselines that reviewers ask for, on what was kept of the images (`kept.py`): none is worth shipping, all are rows.

ResiDual (Basile et al., TMLR 2025), the class bias of Frolic (Zhu et al., NeurIPS 2024), ridge regression on all head
outputs, and support vectors and nearest neighbours as scikit-learn fits them.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from kept import Kept
from sklearn.linear_model import RidgeClassifierCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC
from torch import Tensor
from torch.nn import functional as F

from dear.clip.image import ImageTower
from dear.clip.layer_input import CachedHeads

# --- ResiDual ------------------------------------------------------------------------------------------------


@torch.no_grad()
def head_units(tower: ImageTower, images: CachedHeads) -> Tensor:
    """Additions of each late head to the class feature before its length is taken away, [images, heads, dim].

    The last LayerNorm is made linear by the mean and deviation of each image. Its mean and bias are shared equally
    among 2 L + 1 blocks and then among the heads of a block, and so is the bias of a block's output projection.
    """
    layers, blocks = images.outputs.shape[1], 2 * tower.layers + 1
    norm, first = tower.visual.ln_post, tower.layers - layers + 1
    written = torch.einsum("nlhd,lhdw->nlhw", images.outputs, tower.head_maps(first))
    bias = torch.stack([block.attn.out_proj.bias for block in tower.blocks[first - 1 :]])
    mean = images.frozen_cls.mean(1) / (blocks * tower.heads)
    deviation = (images.frozen_cls.var(1, correction=0) + norm.eps).sqrt()
    parts = (written + bias[:, None] / tower.heads - mean[:, None, None, None]) / deviation[:, None, None, None]
    return (parts * norm.weight + norm.bias / (blocks * tower.heads)).flatten(1, 2) @ tower.head_matrix


def principal(units: Tensor, share: float = 0.9, most: int = 64) -> tuple[Tensor, Tensor]:
    """Mean [heads, dim] and the fewest principal directions of each head that explain more than `share` of its variance
    [heads, components, dim], zeros behind them."""
    mean = units.mean(0)
    _, lengths, rows = torch.linalg.svd((units - mean).transpose(0, 1), full_matrices=False)
    explained = lengths.square().cumsum(1) / lengths.square().sum(1, keepdim=True)
    wanted = ((explained > share).float().argmax(1) + 1).clamp(max=most)
    width = min(most, rows.shape[1])
    return mean, rows[:, :width] * (torch.arange(width) < wanted[:, None])[..., None]


class ResiDual:
    """Class features as a sum over heads alone: coarse, sum_h l_h x_h; full, sum_h B_h diag(l_h) B_h (x_h - m_h).

    l starts at 1 + N(0, 1) and is trained by schedule-free AdamW at a rate of 0.8 in batches of 64 for 30 epochs, as
    published. All else of the feature (MLPs, embedding, in the full form the means too) is dropped: l = 1 is not CLIP.
    Differs from the official code: late heads alone (there all layers), directions from the labelled images (there from
    ImageNet), few images and the last epoch (there whole training sets and the best on validation images).
    """

    def __init__(self, units: Tensor, labels: Tensor, texts: Tensor, temperature: float, full: bool) -> None:
        self.texts, self.temperature, self.basis = texts, temperature, None
        if full:
            self.mean, self.basis = principal(units)
        chance = torch.Generator().manual_seed(0)
        shape = self.basis.shape[:2] if self.basis is not None else units.shape[1:2]
        self.values = 1 + torch.randn(shape, generator=chance)
        inputs = self.coordinates(units)

        def gradient(values: Tensor, rows: Tensor) -> Tensor:
            values = values.clone().requires_grad_()
            loss = F.cross_entropy(self.of_coordinates(inputs[rows], values), labels[rows])
            return torch.autograd.grad(loss, values)[0]

        batches = [rows for _ in range(30) for rows in torch.randperm(len(labels), generator=chance).split(64)]
        self.values = schedule_free(self.values, gradient, batches, rate=0.8)

    def coordinates(self, units: Tensor) -> Tensor:
        """[images, heads, components], or the units themselves."""
        return units if self.basis is None else torch.einsum("nhd,hkd->nhk", units - self.mean, self.basis)

    def of_coordinates(self, inputs: Tensor, values: Tensor) -> Tensor:
        if self.basis is None:
            features = torch.einsum("nhd,h->nd", inputs, values)
        else:
            features = torch.einsum("nhk,hk,hkd->nd", inputs, values, self.basis)
        return self.temperature * F.normalize(features, dim=1) @ self.texts.T

    def __call__(self, units: Tensor, texts: Tensor | None = None) -> Tensor:
        """Logits [images, classes], of other classes by their texts."""
        trained, self.texts = self.texts, self.texts if texts is None else texts
        logits = self.of_coordinates(self.coordinates(units), self.values)
        self.texts = trained
        return logits


def schedule_free(
    start: Tensor, gradient: Callable[[Tensor, Tensor], Tensor], batches: Sequence[Tensor], rate: float
) -> Tensor:
    """Schedule-free AdamW (Defazio et al., 2024) without decay: the average of the fast iterates."""
    fast, average, second = start.clone(), start.clone(), torch.zeros_like(start)
    for step, rows in enumerate(batches, 1):
        found = gradient(0.1 * fast + 0.9 * average, rows)
        second = 0.999 * second + 0.001 * found.square()
        fast = fast - rate * found / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
        average = average.lerp(fast, 1 / step)
    return average


# --- class bias ----------------------------------------------------------------------------------------------


def class_bias(logits: Tensor, rounds: int = 11) -> Tensor:
    """Frolic's bias [classes], to be taken from logits: the logarithm of the prior p that the classifier seems to have.

    p solves p = P p, where column c of P is the mean probability of the images that are called c; images whose two best
    classes are within 1 / classes are left out. Then again with what is left, and the logarithms add up.
    """
    classes, total = logits.shape[1], torch.zeros(logits.shape[1])
    for _ in range(rounds):
        left = logits - total
        best = left.topk(2, dim=1).values
        left = left[best[:, 0] - best[:, 1] > 1 / classes]
        members = F.one_hot(left.argmax(1), classes).float()
        columns = left.softmax(1).T @ members / members.sum(0).clamp(min=1)
        prior = torch.full((classes,), 1 / classes)
        for _ in range(100):
            new = columns @ prior
            new = new / new.sum()
            if (new - prior).abs().sum() < 1e-3:
                break
            prior = new
        total = total + (prior + 1e-12).log()
    return total


# --- classifiers of scikit-learn -----------------------------------------------------------------------------


def head_vectors(images: Kept) -> np.ndarray:
    """Outputs of all late heads, side by side, [images, layers * heads * head_dim]."""
    assert isinstance(images, CachedHeads)
    return images.outputs.float().flatten(1).numpy()


SKLEARN: dict[str, Callable[[], object]] = {
    "svm": SVC,  # radial basis functions, C = 1
    "svm-linear": lambda: SVC(kernel="linear"),
    "nearest": lambda: KNeighborsClassifier(1),
    "five-nearest": lambda: KNeighborsClassifier(5, weights="distance"),
    "ridge": lambda: RidgeClassifierCV(10.0 ** np.arange(-3, 4)),  # the penalty by exact leave-one-out
}
