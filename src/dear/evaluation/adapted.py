"""DeAR as a method in a table: trained by the one loop, answering both by fusion and by its class feature alone."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dear.data.dataset import Dataset, Example
from dear.evaluation.methods import Task
from dear.evaluation.workbench import Workbench
from dear.methods.config import DearConfig
from dear.methods.dear import Dear
from dear.runtime import seed_everything
from dear.training.config import RunConfig, TrainConfig
from dear.training.loop import fit
from dear.training.roles import pick_roles
from dear.training.states import training_data

INFERENCES = ("fusion", "decoupled")


class Adapted:
    def __init__(self, model: Dear, bench: Workbench) -> None:
        self.model, self.bench = model, bench
        self.parameters = sum(p.numel() for p in model.parameters())
        self.fusion = dict(zip(model.components, model.fusion_weights().tolist(), strict=True))

    @torch.no_grad()
    def logits(self, data: Dataset, examples: Sequence[Example]) -> dict[str, Tensor]:
        model = self.model
        model.set_prompts(data.prompts)
        text = model.text_features()
        found: dict[str, list[Tensor]] = {name: [] for name in INFERENCES}
        for images, _ in self.bench.batches(model.backbone, model.first_layer, examples, data.name):
            features = model.image_features(model.trunk(images))
            for name, parts in found.items():
                parts.append(model.logits(features, text, name).cpu())
        return {name: torch.cat(parts) for name, parts in found.items()}


def dear(task: Task) -> Adapted:
    run, method = RunConfig.pick(task.settings), DearConfig.pick(task.settings)
    train = replace(TrainConfig.pick(task.settings), seed=task.seed, shots=task.shots, workers=task.bench.workers)
    backbone = task.bench.backbone(run.model, run.pretrained)
    seed_everything(task.seed)
    model = Dear(backbone, pick_roles(run, task.seed), method)
    model.set_prompts(task.data.prompts)
    data = training_data(task.data.train, backbone, model.first_layer, train, task.bench.states)
    fit(model, data, train, task.work)
    return Adapted(model, task.bench)
