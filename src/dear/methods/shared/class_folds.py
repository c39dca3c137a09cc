"""Class folds: which classes are left out of a fit, so that the labelled images say what unseen classes will get."""

from itertools import combinations
from math import comb

import torch
from torch import Tensor

LEAST = 4  # classes of which some can be left out
_ALL = 20  # with fewer ways to leave so many classes out, each is taken


def class_folds(classes: int, share: float = 0.5, most: int = _ALL) -> list[Tensor]:
    """Numbers of the classes that each fold leaves out, in order; empty if there are fewer than four classes.

    `share`: of the classes, about so many are left out; at least two stay. With few classes each way to do it is a
    fold; of more, every deal leaves each class out (or in, if more than half are out) once. `most`: folds at most.
    """
    if classes < LEAST:
        return []
    size = min(max(1, round(share * classes)), classes - 2)
    if comb(classes, size) <= min(_ALL, most):
        return [torch.tensor(out) for out in combinations(range(classes), size)]
    parts = min(round(classes / min(size, classes - size)), classes // 2 if size > classes / 2 else classes)
    folds: list[Tensor] = []
    chance = torch.Generator().manual_seed(0)
    while len(folds) < min(4, most):
        for part in torch.randperm(classes, generator=chance).tensor_split(max(2, parts)):
            left = torch.zeros(classes, dtype=torch.bool).index_fill(0, part, True)
            folds.append((left if size <= classes / 2 else ~left).nonzero()[:, 0])
    return folds[:most]
