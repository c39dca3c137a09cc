"""dear compare: a leaderboard of methods on your images, under a time limit."""

import argparse
import shlex

_SHOTS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.commands.zero_shot import add_backbone_arguments, add_text_features_argument
    from dear.core.config import number
    from dear.core.table import add_json_argument
    from dear.data.resolve import HELP
    from dear.trials.compare import DEFAULT_METHODS

    parser.add_argument("data", metavar="DATA", help=HELP)
    add_backbone_arguments(parser)
    add_text_features_argument(parser)
    parser.add_argument("--data-root", metavar="DIR", help="folder of the known datasets")
    parser.add_argument("--template", help="prompt with one {} for the class name; default: the dataset's own")
    parser.add_argument("--class-names", metavar="FILE", help="JSON file to rename classes")
    parser.add_argument("--split", metavar="SHARES", help="shares to train, validate and test on, such as 80/0/20")
    parser.add_argument(
        "--methods", nargs="+", metavar="METHOD",
        help=f"names from `dear methods` (default: {', '.join(DEFAULT_METHODS)})",
    )  # fmt: skip
    parser.add_argument(
        "--shots",
        type=number("--shots", 1, 10**6),
        default=_SHOTS,
        help=f"training images per class (default: {_SHOTS})",
    )
    parser.add_argument("--seed", type=number("--seed", 0, 2**32 - 1), default=1, help="random seed (default: 1)")
    parser.add_argument(
        "--time-limit", default="5m", metavar="TIME",
        help="end after about this time: trained methods have fewer epochs (default: 5m)",
    )  # fmt: skip
    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    from dear.commands.zero_shot import chosen_backbone
    from dear.data.check import check_before_training
    from dear.data.resolve import resolve_dataset
    from dear.methods.registry import find_method
    from dear.training.config import TrainConfig
    from dear.training.estimate import parse_duration
    from dear.training.images import ImageSource
    from dear.trials.compare import compare_methods, default_methods

    limit = parse_duration(args.time_limit)
    for name in args.methods or ():
        find_method(name)
    whole = resolve_dataset(args.data, args.template, args.class_names, args.data_root, args.split)
    backbone, choice = chosen_backbone(args, [args.data])
    train = TrainConfig(shots=args.shots, seed=args.seed, device=args.device)
    drawn = whole.few_shot(train.shots, train.seed)
    choice.say()
    check_before_training(drawn, train.shots, whole)
    methods = list(dict.fromkeys(args.methods or default_methods(backbone)))
    board, skipped = compare_methods(drawn, ImageSource(backbone), methods, train, limit)
    print(f"\n{len(drawn.test)} test images, the same for all; best first")
    args.show("leaderboard", board.table())
    print(board.advice())
    if skipped:
        print(f"no time for {', '.join(skipped)}: raise --time-limit")
    model = {"model": choice.model, "pretrained": choice.pretrained}
    print(f"then: {_train_command(args, {**model, 'method': board.advised().method})}")


def _train_command(args: argparse.Namespace, settings: dict[str, str | None]) -> str:
    """`dear train` with the same data and settings."""
    names = ("text_features", "data_root", "template", "class_names", "split")
    settings = {"data": args.data, **settings, **{name: getattr(args, name) for name in names}}
    if args.shots != _SHOTS:
        settings["shots"] = args.shots
    flags = [f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in settings.items() if value]
    return f"dear train {' '.join(flags)} --out RUN"
