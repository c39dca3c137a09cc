"""What tests of all methods share."""

import os

import pytest
import torch

from dear.methods import deep_prompts, linear_probes, tac, zero_shot


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps of L-BFGS take the same path as three hundred, two templates the same as sixty. And files need not
    have reached the disk: nobody pulls the plug."""
    for module in (deep_prompts, tac):
        monkeypatch.setattr(module, "SIXTY", module.SIXTY[:2])
    monkeypatch.setattr(zero_shot, "ENSEMBLE", zero_shot.ENSEMBLE[:1])
    monkeypatch.setattr(linear_probes, "_LPPP_EPOCHS", 20)
    lbfgs = torch.optim.LBFGS
    monkeypatch.setattr(torch.optim, "LBFGS", lambda *a, max_iter, **k: lbfgs(*a, max_iter=min(3, max_iter), **k))
    monkeypatch.setattr(os, "fsync", lambda _: None)
