"""Settings of a run: method, backbone, data and training."""

import math
from dataclasses import dataclass

from dear.core.config import Config, advanced, setting
from dear.core.errors import DearError
from dear.core.names import AUTO
from dear.data.resolve import HELP
from dear.data.splits import OWN_SPLIT, VALIDATED_SPLIT, check_rule
from dear.methods.registry import DEFAULT
from dear.training.backbone import MODEL_HELP
from dear.training.reporters import NOWHERE, REPORTERS

FRESH, NONE = "fresh", "none"


@dataclass(frozen=True)
class TaskConfig(Config):
    """Method, backbone and data."""

    method: str = setting(DEFAULT, "method, as listed by `dear methods`")
    model: str = setting(AUTO, MODEL_HELP)
    pretrained: str | None = setting(None, "OpenCLIP tag or checkpoint file")
    text_features: str | None = setting(
        None, "file of class names and their vectors (JSON, NPZ, safetensors, NPY + JSON), in place of the text tower"
    )
    data: str = setting("world:signs", HELP)
    data_root: str | None = setting(None, "folder of the known datasets, in CoOp's layout")
    template: str | None = setting(None, "prompt with one {} for the class name; default: the dataset's own")
    class_names: str | None = setting(None, 'JSON file {"name as shown": "better name", ...} to rename classes')


@dataclass(frozen=True)
class RunConfig(TaskConfig):
    """Method, backbone and data."""

    few_shot: str | None = advanced(
        None, "train on the images listed in this .jsonl instead of a random draw: as from 2SFS or `dear data few-shot`"
    )
    fast_decode: bool = advanced(
        True, "decode training photos at a reduced size if they are far larger than the backbone's input"
    )
    validate: bool = advanced(False, "also measure accuracy on the validation images after each epoch")


@dataclass(frozen=True)
class SingleRunConfig(RunConfig):
    """Method, backbone and data, and how your own images are divided."""

    split: str | None = setting(
        None,
        "how to split your own images if they have no split: shares in % to train, validate and test on, such as "
        f"80/0/20 (default: {OWN_SPLIT}; with --validate {VALIDATED_SPLIT})",
    )
    folds: int | None = setting(
        None,
        "measure accuracy on all images by cross-validation with this number of folds, then train the final model on "
        "all of them: one training per fold, and one more",
        low=2,
        high=100,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split is not None:
            check_rule(self.split)
        if self.folds and (self.split or self.validate):
            raise DearError("--folds uses every image to train and to test: leave out --split and --validate.")


@dataclass(frozen=True)
class TrainConfig(Config):
    """Training. The defaults are DeAR's (paper, supplement A); the recipes of methods override them."""

    shots: int = setting(16, "training images per class", low=1)
    seed: int = setting(1, "seed of the few-shot draw, initial values and order of images", low=0, high=2**32 - 1)
    classes: str = setting("all", "train on all classes, or on the first half (base)", choices=("all", "base"))
    epochs: int = setting(10, "passes over the training images", low=0)
    images_seen: int | None = advanced(
        None, "length of the training as a number of images, instead of --epochs", low=1, high=10**10
    )
    steps_per_shot: int | None = advanced(
        None, "number of training steps per shot, instead of --epochs", low=1, high=10**7
    )
    batch: int = setting(16, "images per step", low=1)
    drop_last: bool = advanced(False, "drop the last batch of an epoch if it is not full")
    order: str = advanced(
        "shuffled",
        "order of the training images; one_class: each batch has images of one class, if the class has enough",
        choices=("shuffled", "one_class"),
    )
    optimizer: str = advanced("adamw", "optimizer", choices=("adamw", "adam", "sgd"))
    lr: float = setting(1e-3, "learning rate", low=0.0)
    weight_decay: float = advanced(5e-4, "weight decay", low=0.0)
    momentum: float = advanced(0.9, "momentum of SGD", low=0.0, high=1.0)
    eps: float = advanced(1e-8, "eps of Adam and AdamW", low=0.0)
    schedule: str = advanced(
        "epoch",
        "cosine schedule of the learning rate: per epoch after a warm-up (CoOp's), or per step down to --final-lr",
        choices=("epoch", "step"),
    )
    warmup_epochs: int = advanced(1, "number of epochs at the start with the rate --warmup-lr", low=0)
    warmup_lr: float = advanced(1e-5, "learning rate of the warm-up", low=0.0)
    final_lr: float = advanced(0.0, "final learning rate of --schedule step", low=0.0)
    restart: float | None = advanced(
        None, "share of the steps after which --schedule step begins again", low=0.01, high=0.99
    )
    average: str = advanced(
        "none",
        "average the weights of all epochs: uniform, or gaussian (--average-peak, --average-width)",
        choices=("none", "uniform", "gaussian"),
    )
    average_peak: float = advanced(15.0, "epoch with the largest weight in the average", low=0.0)
    average_width: float = advanced(1.0, "standard deviation of the gaussian average, in epochs", low=0.01)
    crop: float = advanced(0.5, "smallest share of the image in a random crop", low=0.01, high=1.0)
    augment: str = setting(
        "fresh",
        "fresh: new random crops in every epoch; fixed:N: N random crops per image, with cached states (cheaper, not "
        "equivalent); none: the image as in evaluation, with cached states",
    )
    workers: int | None = advanced(
        None, "worker processes that decode images; default: as many as there are cores", low=0, high=256
    )
    precision: str = advanced(
        "auto",
        "precision of the towers; auto: bf16 on CUDA, fp16 where the card has no bf16, else fp32",
        choices=("auto", "fp32", "bf16", "fp16"),
    )
    device: str = setting("auto", "device: cpu, cuda, cuda:N, mps, auto")
    deterministic: bool = advanced(False, "on a GPU, use only operations that give the same bits in every run (slower)")
    compile: bool = advanced(False, "compile the training step with torch.compile (slow to start, faster on a GPU)")
    report_to: str = advanced(
        NOWHERE, "tool that also gets the numbers of each epoch (its package is needed)", choices=(NOWHERE, *REPORTERS)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        fixed_views(self.augment)


def fixed_views(augment: str) -> int:
    """N of "fixed:N", 0 for fresh and none; refuses other values."""
    kind, _, number = augment.partition(":")
    if augment in (FRESH, NONE):
        return 0
    if kind != "fixed" or not number.isdecimal() or not 1 <= int(number) <= 1000:
        raise DearError(f"--augment must be fresh, none, or fixed:N with N from 1 to 1000, not {augment!r}.")
    return int(number)


def training_length(config: TrainConfig, images: int, steps_per_epoch: int) -> tuple[int, int]:
    """Epochs and steps of a run; the last epoch may be cut short."""
    if config.images_seen is not None:
        epochs = max(1, round(config.images_seen / images))
    elif config.steps_per_shot is not None:
        steps = config.steps_per_shot * config.shots
        return -(-steps // steps_per_epoch), steps
    else:
        epochs = config.epochs
    return epochs, epochs * steps_per_epoch


def learning_rate(config: TrainConfig, full: float, epochs: int, epoch: int, done: float = 0.0) -> float:
    """Rate of a parameter group whose highest rate is `full`; `epoch` counts from 0, `done` is the finished share of
    all steps.

    Per epoch: CoOp's constant warm-up, the same for all groups, then its cosine, whose period is all epochs, so that it
    never reaches zero.
    """
    if not full:
        return 0.0
    if config.schedule == "step":
        if config.restart is not None:
            first = config.restart
            done = done / first if done < first else (done - first) / (1 - first)
        return config.final_lr + (full - config.final_lr) * 0.5 * (1 + math.cos(math.pi * done))
    warmup = min(config.warmup_epochs, epochs - 1)  # a short run must not be warm-up only
    if epoch < warmup:
        return config.warmup_lr
    return full * 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / epochs))
