"""dear evaluate: an adapted model on labelled images, class by class, beside zero-shot; as a table and a page."""

import argparse
from pathlib import Path

from dear.commands.predict import checked_gains, load_with_gain
from dear.commands.shared import DATA_ROOT, add_device_arguments, add_gain_argument, add_inference_argument
from dear.core.table import add_json_argument
from dear.data.resolve import HELP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="folder made by `dear fit` or `dear train`")
    parser.add_argument("data", metavar="DATA", help=HELP)
    parser.add_argument(
        "--split", choices=("train", "val", "test", "all"),
        help="default: test; all of images that have no split and that the run has not seen",
    )  # fmt: skip
    parser.add_argument("--data-root", metavar="DIR", help=DATA_ROOT)
    parser.add_argument("--class-names", metavar="FILE", help="JSON file to rename classes")
    parser.add_argument("--out", type=Path, default=Path("evaluation.html"), help="page (default: evaluation.html)")
    add_inference_argument(parser)
    add_gain_argument(parser)
    add_device_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    from dear.model.evaluation import evaluate_predictor
    from dear.trials.outcome import ALL
    from dear.trials.page import write_results_page

    gains = checked_gains(args.gain, args.run_folder)
    model = load_with_gain(args.run_folder, None, gains, args.precision, args.device)
    result, examples, fact = evaluate_predictor(
        model, args.data, args.split, args.data_root, args.class_names, args.inference, True
    )
    print(fact)
    part = result.parts[ALL]
    args.show("classes", part.outcome.table())
    args.show("methods", part.board.table())
    print(part.findings())
    write_results_page(args.out, Path(args.run_folder).name, result, examples, [fact])
    print(f"matrix, reliability and pictures of the mistakes: {args.out}")
