"""dear export: an adapted model as ONNX, for machines without PyTorch."""

import argparse
from pathlib import Path

from dear.core.config import number
from dear.core.table import Table, add_json_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_argument(parser)
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder made by `dear train`")
    parser.add_argument("--onnx", type=Path, required=True, metavar="OUT", help="new folder for the exported model")
    parser.add_argument("--int8", action="store_true", help="also write a smaller 8-bit model, and show its accuracy")
    parser.add_argument(
        "--check",
        type=number("--check", 1, 10**6),
        default=100,
        metavar="N",
        help="number of the run's test images for the comparison with PyTorch (default: 100)",
    )


def run(args: argparse.Namespace) -> None:
    from dear.model.export.export import export_run

    exported = export_run(args.run_folder, args.onnx, args.int8, args.check)
    pictures, difference = exported.pictures, exported.difference
    if not pictures.labelled:
        print("The run's test images are not on this machine: compared on other pictures, without labels.")
    print(f"compared with PyTorch on {len(pictures.examples)} {pictures.source}: largest difference")
    print(
        f"  pixels {difference.pixels:.1e}  features {difference.features:.1e}  logits {difference.logits:.1e}",
        end="\n\n",
    )
    table = Table(["model", "MB", "same answer as fp32 (%)", "accuracy (%)"])
    for variant in exported.variants:
        table.add(variant.file, variant.megabytes, variant.same_answer, variant.accuracy)
    args.show("models", table)
    print()
    if exported.variants[-1].same_answer < 95:
        print("In 8 bits more than 5% of the predictions differ: prefer model.onnx.")
    print(f"wrote {args.onnx}    try: python {args.onnx / 'classify.py'} IMAGE_OR_FOLDER...")
