"""dear compare: a leaderboard of methods on your images, under a time limit; or the backbone alone, before training."""

import argparse
import shlex

from dear.commands.predict import checked_gains
from dear.commands.shared import (
    DATA_ROOT,
    add_backbone_arguments,
    add_draw_arguments,
    add_gain_argument,
    chosen_backbone,
)
from dear.core.errors import DearError, warn
from dear.core.metrics import interval_text
from dear.core.names import AUTO
from dear.core.table import Table, add_json_argument
from dear.data.check import check_before_training
from dear.data.dataset import Dataset
from dear.data.resolve import HELP, resolve_dataset
from dear.data.world.tasks import TASKS
from dear.heads.gains import gain_text, named_gains, require_sum, with_gains
from dear.methods.registry import ZERO_SHOT, find_method
from dear.methods.shared.role_settings import find_roles
from dear.training.config import TrainConfig
from dear.training.estimate import parse_duration
from dear.training.images import ImageSource
from dear.trials.compare import DEFAULT_METHODS, compare_methods, default_methods
from dear.trials.outcome import ALL, BASE, NOVEL
from dear.trials.task import Task
from dear.trials.trial import Trial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", nargs="*", metavar="DATA", help=HELP)
    parser.add_argument("--data", nargs="+", dest="named", default=[], help=argparse.SUPPRESS)  # of dear zero-shot
    add_backbone_arguments(parser)
    parser.add_argument(
        "--text-features", metavar="FILE",
        help="class names and their vectors (JSON, NPZ, safetensors, NPY + JSON), in place of the text tower",
    )  # fmt: skip
    parser.add_argument("--data-root", metavar="DIR", help=DATA_ROOT)
    parser.add_argument("--template", help="prompt with one {} for the class name; default: the dataset's own")
    parser.add_argument("--class-names", metavar="FILE", help="JSON file to rename classes")
    parser.add_argument("--split", metavar="SHARES", help="shares to train, validate and test on, such as 80/0/20")
    parser.add_argument(
        "--methods", nargs="+", metavar="METHOD",
        help=f"names from `dear methods` (default: {', '.join(DEFAULT_METHODS)})",
    )  # fmt: skip
    add_draw_arguments(parser)
    parser.add_argument(
        "--time-limit", default="5m", metavar="TIME",
        help="end after about this time: trained methods have fewer epochs (default: 5m)",
    )  # fmt: skip
    parser.add_argument(
        "--zero-shot", action="store_true",
        help="only the accuracy of the backbone, without training, on any number of datasets and on each half of their "
        "classes (default: all tasks of Attribute World)",
    )  # fmt: skip
    add_gain_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    names = [*args.data, *args.named]
    if args.zero_shot:
        if args.methods:
            raise DearError("--zero-shot measures the backbone alone: leave out --methods, or leave out --zero-shot.")
        names = names or [f"world:{task}" for task in TASKS]
        _zero_shot([_resolve(args, name) for name in names], names, args)
        return
    if args.gain:
        raise DearError("--gain changes the backbone alone: add --zero-shot.")
    if len(names) != 1:
        raise DearError("Methods are compared on one dataset: name one, or add --zero-shot.")
    limit = parse_duration(args.time_limit)
    for name in args.methods or ():
        find_method(name)
    _leaderboard(_resolve(args, names[0]), names[0], limit, args)


def _resolve(args: argparse.Namespace, name: str) -> Dataset:
    return resolve_dataset(name, args.template, args.class_names, args.data_root, args.split)


def _leaderboard(whole: Dataset, name: str, limit: float, args: argparse.Namespace) -> None:
    backbone, choice = chosen_backbone(args, [name])
    train = TrainConfig(shots=args.shots, seed=args.seed, device=args.device)
    drawn = whole.few_shot(train.shots, train.seed)
    choice.say()
    check_before_training(drawn, train.shots, whole)
    methods = list(dict.fromkeys(args.methods or default_methods(backbone)))
    board, skipped, unseen = compare_methods(drawn, ImageSource(backbone), methods, train, limit)
    print(f"\n{len(drawn.test)} test images, the same for all; best first")
    args.show("leaderboard", board.table())
    print(board.advice())
    if skipped:
        print(f"no time for {', '.join(skipped)}: raise --time-limit")
    settings = {"data": name, "model": choice.model, "pretrained": choice.pretrained, "method": board.advised().method}
    args.show("unseen", unseen)
    print(f"then: {_train_command(args, settings)}")


def _train_command(args: argparse.Namespace, settings: dict[str, str | None]) -> str:
    """`dear train` with the same data and settings."""
    names = ("text_features", "data_root", "template", "class_names", "split")
    settings = {**settings, **{name: getattr(args, name) for name in names}}
    if args.shots != TrainConfig().shots:
        settings["shots"] = args.shots
    flags = [f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in settings.items() if value]
    return f"dear train {' '.join(flags)} --out RUN"


def _zero_shot(datasets: list[Dataset], names: list[str], args: argparse.Namespace) -> None:
    """Accuracy of a backbone before any training, as a table."""
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
