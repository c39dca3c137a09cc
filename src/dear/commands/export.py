"""dear export: an adapted model as ONNX, for machines without PyTorch."""

import argparse
from pathlib import Path

from dear.core.config import number
from dear.core.table import Table, add_json_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_argument(parser)
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder made by `dear fit` or `dear train`")
    parser.add_argument("--onnx", type=Path, required=True, metavar="OUT", help="new folder for the exported model")
    parser.add_argument("--int8", action="store_true", help="also write a smaller 8-bit model, and show its accuracy")
    parser.add_argument(
        "--check", type=number("--check", 1, 10**6), default=100, metavar="N",
        help="number of the run's test images for the comparison with PyTorch (default: 100)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    from dear.model.export.export import export_run

    agreement = export_run(args.run_folder, args.onnx, args.int8, args.check)
    if agreement.models[0].accuracy is None:
        print("The run's test images are not on this machine: compared on other pictures, without labels.")
    print(f"compared with PyTorch on {agreement.images} {agreement.source}: largest difference")
    print("", *(f"{name} {value:.1e}" for name, value in agreement.largest_difference.items()), sep="  ", end="\n\n")
    table = Table(["model", "MB", "same answer as fp32 (%)", "accuracy (%)"])
    for model in agreement.models:
        table.add(model.file, model.megabytes, model.same_answer, model.accuracy)
    args.show("models", table)
    print()
    if agreement.models[-1].same_answer < 95:
        print("In 8 bits more than 5% of the predictions differ: prefer model.onnx.")
    print(f"wrote {args.onnx}    try: python {args.onnx / 'classify.py'} IMAGE_OR_FOLDER...")
