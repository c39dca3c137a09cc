"""What is trained on what, and by which recipe."""

import math
from dataclasses import dataclass

from dear.config import Config, setting
from dear.data.resolve import HELP


@dataclass(frozen=True)
class RunConfig(Config):
    """What is trained on what."""

    model: str = setting("dear-mini", "OpenCLIP name, hf-hub:NAME, local-dir:FOLDER, or dear-mini")
    pretrained: str | None = setting(None, "OpenCLIP tag or checkpoint file")
    data: str = setting("world:signs", HELP)
    data_root: str | None = setting(None, "folder that holds the known datasets, as CoOp lays them out")
    template: str | None = setting(None, "prompt with one {} for the class name; default: the dataset's own")
    class_names: str | None = setting(None, 'JSON file {"name as shown": "better name", ...} to rename classes')
    roles: str = setting("auto", "role map: a file of `dear roles`, or paper, dear-mini; auto: the one that fits")
    role_strategy: str = setting(
        "as_found",
        "for ablations: replace the roles by all_mixed, all_generalization, or a shuffle by the seed",
        choices=("as_found", "all_mixed", "all_generalization", "shuffled"),
    )
    shuffle_seed: int | None = setting(None, "seed of that shuffle; default: the run's own", low=0)
    role_quantile: float | None = setting(
        None, "for ablations: judge the heads again with this share at either end of the entropy", low=0.01, high=0.5
    )
    attributes: int | None = setting(None, "for ablations: 3, 5 or 7 core attributes; default: those of the role map")
    validate: bool = setting(False, "also measure accuracy on the validation images after each epoch")


@dataclass(frozen=True)
class TrainConfig(Config):
    """The recipe (paper, supplement A)."""

    shots: int = setting(16, "training images a class", low=1)
    seed: int = setting(1, "seed of the few-shot draw, the start and the order", low=0)
    epochs: int = setting(10, "passes over the training images", low=1)
    batch: int = setting(16, "images a step", low=1)
    lr: float = setting(1e-3, "learning rate, cosine, stepped once an epoch", low=0.0)
    fusion_lr: float | None = setting(None, "learning rate of the fusion weights; default: the same", low=0.0)
    warmup_epochs: int = setting(1, "first epochs at a constant small rate", low=0)
    warmup_lr: float = setting(1e-5, "that rate", low=0.0)
    weight_decay: float = setting(5e-4, "AdamW's weight decay", low=0.0)
    classes: str = setting("all", "train on all classes, or on the first half (base)", choices=("all", "base"))
    fixed_views: int = setting(
        0,
        "keep the trunk's states for so many fixed views of each image (in --states) and train on these: cheaper, "
        "not the same as fresh crops; 0: fresh crops",
        low=0,
    )
    workers: int = setting(2, "processes that decode images", low=0)
    precision: str = setting(
        "auto", "bf16 or fp16 on CUDA; auto: bf16 there, fp32 on the CPU", choices=("auto", "fp32", "bf16", "fp16")
    )
    device: str = setting("auto", "cpu, cuda, cuda:N")
    tensorboard: bool = setting(False, "also write TensorBoard logs (needs the tensorboard package)")


def learning_rate(config: TrainConfig, epoch: int) -> float:
    """Of an epoch, counted from 0, as a share of the full rate: CoOp's constant warm-up, then its cosine."""
    if epoch < config.warmup_epochs:
        return config.warmup_lr / config.lr if config.lr else 0.0
    return 0.5 * (1 + math.cos(math.pi * (epoch - config.warmup_epochs) / config.epochs))
