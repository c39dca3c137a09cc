"""dear export: an adapted model as ONNX, for machines without PyTorch, or as a checkpoint of another library."""

import argparse
from pathlib import Path

from dear.core.config import number
from dear.core.errors import DearError
from dear.core.table import Table, add_json_argument

_FORMS = ("openclip", "transformers", "peft", "class-weights")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_argument(parser)
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder made by `dear fit` or `dear train`")
    parser.add_argument("--onnx", type=Path, metavar="OUT", help="the same as --format onnx --out OUT")
    parser.add_argument(
        "--format", choices=("onnx", *_FORMS), default="onnx",
        help="onnx: runs without PyTorch; openclip, transformers: a checkpoint that these load, of a method that is a "
        "plain CLIP after training; peft: the terms of clip-lora; class-weights: the classifier as NPY and JSON",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="new folder for the exported model")
    parser.add_argument("--int8", action="store_true", help="also write a smaller 8-bit model, and show its accuracy")
    parser.add_argument(
        "--check", type=number("--check", 1, 10**6), default=100, metavar="N",
        help="number of the run's test images for the comparison with PyTorch (default: 100)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    out = args.onnx or args.out
    if out is None or (args.onnx and (args.out or args.format != "onnx")):
        raise DearError("Name one new folder: --onnx OUT, or --format and --out OUT.")
    if args.format != "onnx":
        if args.int8:
            raise DearError("--int8 belongs to --onnx: leave it out.")
        from dear.model.export.checkpoint import export_checkpoint

        print(*export_checkpoint(args.run_folder, out, args.format), f"wrote {out}", sep="\n")
        return
    from dear.model.export.export import export_run

    agreement = export_run(args.run_folder, out, args.int8, args.check)
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
    print(f"wrote {out}    try: python {out / 'classify.py'} IMAGE_OR_FOLDER...")
