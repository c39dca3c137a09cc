"""The decision of a loaded adapter, ready to be applied."""

from pathlib import Path

import numpy as np
import torch

from dear.core.errors import DearError
from dear.decisions.decision import FULL, Decider, read_decision
from dear.decisions.ridge import RidgeSets
from dear.methods.closed_forms import ProKeRHead
from dear.training.adapter import Adapter, read_config_alone


def ridge_sets(head: ProKeRHead, text: np.ndarray, labels: np.ndarray, temperature: float) -> RidgeSets:
    """Full conformal sets with the settings of a fitted head, whose landmarks have these labels.

    Its ridge follows from its solution: (K + ridge) values = residuals.
    """
    scale, beta = float(head.mix[0]) * head.temperature, float(head.beta)
    images, values = head.landmarks.double().cpu().numpy(), head.values.double().cpu().numpy()
    rest = np.eye(len(text))[labels] - images @ text.T - np.exp(beta * (images @ images.T - 1)) @ values
    ridge = float((rest * values).sum() / (values**2).sum())
    return RidgeSets(images, labels, text, beta, ridge, float(head.mix[1]) / scale, scale / temperature)


@torch.no_grad()
def decider_of(folder: Path, adapter: Adapter) -> Decider | None:
    """The decision in a run folder, for its adapter; None if there is none."""
    found = read_decision(folder, lambda: read_config_alone(folder)["config_sha256"])
    if found is None:
        return None
    (decision, words), model, sets = found, adapter.model, None
    text = model.encode_text(model.classes).float().cpu().numpy()
    if decision.coverage is not None and decision.coverage.how == FULL:
        head, labels = getattr(model, "head", None), np.array(decision.coverage.labels)
        if not isinstance(head, ProKeRHead) or len(head.landmarks) != len(labels):
            raise DearError(f"The decision in {folder} is of another adapter: run `dear decide` again.")
        sets = ridge_sets(head, text, labels, decision.temperature)
    return Decider(decision, adapter.classes, text, words, float(model.backbone.temperature), sets)
