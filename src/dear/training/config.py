"""What is trained on what, and by which recipe."""

import math
from dataclasses import dataclass

from dear.core.config import Config, setting
from dear.data.resolve import HELP


@dataclass(frozen=True)
class RunConfig(Config):
    """What is trained on what."""

    method: str = setting("dear", "how: see `dear methods`")
    model: str = setting(
        "dear-mini", "OpenCLIP name, transformers:FOLDER_OR_NAME, hf-hub:NAME, local-dir:FOLDER, or dear-mini"
    )
    pretrained: str | None = setting(None, "OpenCLIP tag or checkpoint file")
    data: str = setting("world:signs", HELP)
    data_root: str | None = setting(None, "folder that holds the known datasets, as CoOp lays them out")
    template: str | None = setting(None, "prompt with one {} for the class name; default: the dataset's own")
    class_names: str | None = setting(None, 'JSON file {"name as shown": "better name", ...} to rename classes')
    exact: bool = setting(
        False, "decode training photos far larger than the backbone's input at their full size: slower", advanced=True
    )
    validate: bool = setting(False, "also measure accuracy on the validation images after each epoch", advanced=True)


@dataclass(frozen=True)
class TrainConfig(Config):
    """The recipe. The defaults are DeAR's (paper, supplement A); a method names where its own differs."""

    shots: int = setting(16, "training images a class", low=1)
    seed: int = setting(1, "seed of the few-shot draw, the start and the order", low=0, high=2**32 - 1)
    classes: str = setting("all", "train on all classes, or on the first half (base)", choices=("all", "base"))
    epochs: int = setting(10, "passes over the training images", low=0)
    images_seen: int | None = setting(
        None, "stop after so many training images instead of --epochs", low=1, high=10**10, advanced=True
    )
    batch: int = setting(16, "images a step", low=1)
    drop_last: bool = setting(False, "leave out an epoch's last batch if it is not full", advanced=True)
    order: str = setting(
        "shuffled",
        "one_class: each batch holds one class",
        choices=("shuffled", "one_class"),
        advanced=True,
    )
    optimizer: str = setting("adamw", "optimizer", choices=("adamw", "adam", "sgd"), advanced=True)
    lr: float = setting(1e-3, "learning rate", low=0.0)
    weight_decay: float = setting(5e-4, "weight decay", low=0.0, advanced=True)
    momentum: float = setting(0.9, "of sgd", low=0.0, high=1.0, advanced=True)
    eps: float = setting(1e-8, "of adam and adamw", low=0.0, advanced=True)
    schedule: str = setting(
        "epoch",
        "cosine stepped once an epoch, behind a warm-up (CoOp's); or at every step, to --final-lr",
        choices=("epoch", "step"),
        advanced=True,
    )
    warmup_epochs: int = setting(1, "first epochs at a constant small rate", low=0, advanced=True)
    warmup_lr: float = setting(1e-5, "that rate", low=0.0, advanced=True)
    final_lr: float = setting(0.0, "where the cosine of every step ends", low=0.0, advanced=True)
    average: str = setting(
        "none",
        "weights of all epochs, averaged: alike, or by a bell over the epochs (--average-peak, --average-width)",
        choices=("none", "uniform", "gaussian"),
        advanced=True,
    )
    average_peak: float = setting(15.0, "of --epochs, the one that counts most", low=0.0, advanced=True)
    average_width: float = setting(1.0, "standard deviation of that bell, in epochs", low=0.01, advanced=True)
    crop: float = setting(0.5, "smallest share of the image a random crop keeps", low=0.01, high=1.0, advanced=True)
    views: int = setting(1, "random views of each image; 0: only --clean-view", low=0, high=100, advanced=True)
    clean_view: bool = setting(False, "and one more, as evaluation sees it", advanced=True)
    fixed_views: int = setting(
        0,
        "train on so many fixed views of each image, whose constant states are kept (in --states, or in memory): "
        "cheaper, not the same as fresh crops; 0: fresh crops",
        low=0,
    )
    workers: int = setting(2, "processes that decode images", low=0, high=256, advanced=True)
    precision: str = setting(
        "auto",
        "bf16 or fp16 on CUDA; auto: bf16 there, fp32 on the CPU",
        choices=("auto", "fp32", "bf16", "fp16"),
        advanced=True,
    )
    device: str = setting("auto", "cpu, cuda, cuda:N")
    tensorboard: bool = setting(False, "also write TensorBoard logs (needs the tensorboard package)", advanced=True)


def learning_rate(config: TrainConfig, epochs: int, epoch: int, step: int = 0, steps: int = 1) -> float:
    """Of a step (from 0, of `steps` in the epoch, from 0), as a share of the full rate.

    By epoch: CoOp's constant warm-up, then its cosine, which keeps the period of all epochs and so never reaches zero.
    """
    if not config.lr:
        return 0.0
    if config.schedule == "step":
        end = config.final_lr / config.lr
        return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * (epoch * steps + step) / (epochs * steps)))
    warmup = min(config.warmup_epochs, epochs - 1)  # a shortened run must not be warm-up alone
    if epoch < warmup:
        return config.warmup_lr / config.lr
    return 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / epochs))
