"""Fixtures of tests of all methods."""

import os
import sys
from pathlib import Path

import pytest
import torch

from dear.clip import Backbone, load_backbone
from dear.methods import deep_prompts, linear_probes, tac, zero_shot
from pretended_gpu import pretend_gpu

sys.path.append(str(Path(__file__).parent))  # cases and naive forms, which the tests share


@pytest.fixture(scope="module")
def backbones(model_folder: Path) -> dict[str, Backbone]:
    """One on the CPU, and one on a pretended GPU for each precision."""
    name, precisions = f"local-dir:{model_folder}", ("fp32", "fp16", "bf16")
    with pretend_gpu():
        on_gpu = {precision: load_backbone(name, device="cuda", precision=precision) for precision in precisions}
    return {"cpu": load_backbone(name), **on_gpu}


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps of L-BFGS take the same path as three hundred, two templates the same as sixty.

    Files need not have reached the disk: nobody pulls the plug.
    """
    for module in (deep_prompts, tac):
        monkeypatch.setattr(module, "SIXTY", module.SIXTY[:2])
    monkeypatch.setattr(zero_shot, "ENSEMBLE", zero_shot.ENSEMBLE[:1])
    monkeypatch.setattr(linear_probes, "_LPPP_EPOCHS", 20)
    lbfgs = torch.optim.LBFGS
    monkeypatch.setattr(torch.optim, "LBFGS", lambda *a, max_iter, **k: lbfgs(*a, max_iter=min(3, max_iter), **k))
    monkeypatch.setattr(os, "fsync", lambda _: None)
