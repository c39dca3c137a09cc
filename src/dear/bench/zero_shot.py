"""What a backbone can do before any training: class feature against text feature."""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.core.metrics import accuracy
from dear.data.dataset import Dataset
from dear.data.loading import evaluation_batches


@dataclass(frozen=True)
class ZeroShotResult:
    """Accuracies in %: over all classes, and over each half of the classes alone."""

    classes: int
    images: int
    all: float
    base: float
    novel: float


@torch.no_grad()
def zero_shot(backbone: Backbone, dataset: Dataset) -> ZeroShotResult:
    """Every test image is encoded once; the three accuracies come from one matrix of similarities."""
    if not dataset.test:
        raise DearError(f"{dataset.name} has no test images: add a test split.")
    text = F.normalize(backbone.text.encode(dataset.prompts), dim=-1)
    similar, labels = [], []
    for pixels, label in evaluation_batches(dataset.test, backbone.preprocess, dataset.name):
        image = F.normalize(backbone.image.encode(pixels.to(backbone.device)), dim=-1)
        similar.append((image @ text.T).cpu())
        labels.append(label)
    similarity, label = torch.cat(similar), torch.cat(labels)  # [images, classes], [images]
    half = math.ceil(len(dataset.classes) / 2)
    base = label < half
    return ZeroShotResult(
        len(dataset.classes),
        len(label),
        accuracy(similarity, label),
        accuracy(similarity[base, :half], label[base]),
        accuracy(similarity[~base, half:], label[~base] - half),
    )
