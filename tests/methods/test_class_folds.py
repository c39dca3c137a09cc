"""Class folds leave the right share of classes out, each class about as often as the others."""

import pytest
import torch

from dear.methods.shared.class_folds import class_folds


@pytest.mark.parametrize("classes", [4, 5, 6, 7, 10, 26, 37, 101])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_folds_leave_out_each_class_about_as_often(classes: int, share: float) -> None:
    folds = class_folds(classes, share, most=1000)
    sizes = torch.tensor([len(out) for out in folds], dtype=torch.float)
    often = torch.bincount(torch.cat(folds), minlength=classes)
    wanted = min(max(1, round(share * classes)), classes - 2)
    assert len(folds) >= 4
    assert (sizes - wanted).abs().max() <= max(1, wanted / 3)
    assert sizes.max() <= classes - 2
    assert often.max() == often.min()
    assert all((out[1:] > out[:-1]).all() for out in folds)
    assert [out.tolist() for out in class_folds(classes, share, most=1000)] == [out.tolist() for out in folds]


@pytest.mark.parametrize("classes", [0, 1, 2, 3])
def test_few_classes_have_no_folds(classes: int) -> None:
    assert class_folds(classes) == []
