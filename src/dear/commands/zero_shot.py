"""dear zero-shot: accuracy of a backbone before any training, as a table."""

import argparse
from typing import TYPE_CHECKING

from dear.commands.device import add_device_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dear.clip import Backbone
    from dear.training.backbone import BackboneChoice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.commands.predict import add_gain_argument
    from dear.core.table import add_json_argument
    from dear.data.resolve import HELP

    add_backbone_arguments(parser)
    add_text_features_argument(parser)
    add_gain_argument(parser)
    add_json_argument(parser)
    parser.add_argument("--data-root", metavar="DIR", help="folder of the known datasets")
    parser.add_argument("--data", nargs="+", metavar="DATA", help=f"{HELP} (default: all tasks of Attribute World)")


def add_backbone_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.training.backbone import MODEL_HELP

    parser.add_argument("--model", default="auto", metavar="MODEL", help=f"{MODEL_HELP} (default: auto)")
    parser.add_argument("--pretrained", help="OpenCLIP tag or checkpoint file, for a model given by its OpenCLIP name")
    add_device_arguments(parser)


def add_text_features_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--text-features",
        metavar="FILE",
        help="class names and their vectors (JSON, NPZ, safetensors, NPY + JSON), in place of the text tower",
    )


def run(args: argparse.Namespace) -> None:
    from dear.commands.predict import checked_gains
    from dear.core.errors import warn
    from dear.core.metrics import interval_text
    from dear.core.table import Table
    from dear.data.resolve import resolve_dataset
    from dear.data.world.tasks import TASKS
    from dear.heads.gains import gain_text, named_gains, require_sum, with_gains
    from dear.heads.role_map import AUTO
    from dear.methods.registry import ZERO_SHOT
    from dear.methods.shared.role_settings import find_roles
    from dear.training.images import ImageSource
    from dear.trials.outcome import ALL, BASE, NOVEL
    from dear.trials.task import Task
    from dear.trials.trial import Trial

    names = args.data or [f"world:{task}" for task in TASKS]
    datasets = [resolve_dataset(name, root=args.data_root) for name in names]
    gains = checked_gains(args.gain)
    backbone, choice = chosen_backbone(args, names)
    if gains:
        require_sum(backbone)
        backbone = with_gains(backbone, named_gains(gains, find_roles(AUTO, backbone)))
    choice.say()
    table = Table(["data", "classes", "images", "chance", "all", "95% interval", "base", "novel"])
    guessed = []
    for dataset in datasets:
        trial = Trial(ZERO_SHOT, Task.on_halves(dataset)).run(ImageSource(backbone))
        outcomes = {outcome.part: outcome for outcome in trial.outcomes()}
        whole, classes = outcomes[ALL], len(dataset.classes)
        halves = [outcomes[part].accuracy if part in outcomes else None for part in (BASE, NOVEL)]
        interval = interval_text(whole.interval)
        table.add(dataset.name, classes, whole.images, 100 / classes, whole.accuracy, interval, *halves)
        if whole.could_be_guessed:
            guessed.append(dataset.name)
    what = f"{backbone.name} with gain {gain_text(gains)}" if gains else backbone.name
    print(f"zero-shot accuracy of {what} on test images (%); base and novel: each half of the classes alone")
    args.show("accuracy", table)
    for name in guessed:
        warn(f"{name}: this is not above chance; try better class names, or another --model")


def chosen_backbone(args: argparse.Namespace, data: "Sequence[str]") -> "tuple[Backbone, BackboneChoice]":
    """Loads the backbone that --model names, or one that suits the data; `say` its name when all else is accepted."""
    from dear.clip import load_backbone
    from dear.core.runtime import pick_device
    from dear.training.backbone import choose_backbone

    device, choice = pick_device(args.device), choose_backbone(args.model, args.pretrained, data)
    table = getattr(args, "text_features", None)
    backbone = load_backbone(
        choice.model, choice.pretrained, device=device, precision=args.precision, text_features=table
    )
    return backbone, choice
