"""dear predict: answers for images, one or thousands."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.commands.index import add_exact_argument
    from dear.config import number

    parser.add_argument("run_folder", metavar="RUN", help="folder made by `dear train`")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files, folders, or quoted globs")
    parser.add_argument(
        "--topk", type=number("--topk", 1, 10_000), default=3, help="how many classes to show (default: 3)"
    )
    parser.add_argument("--classes", type=Path, metavar="FILE", help="other class names, one a line: novel classes")
    parser.add_argument(
        "--inference",
        choices=("plain", "fusion", "decoupled"),
        help="decoupled: the class feature alone; default: the method's usual way",
    )
    add_exact_argument(parser)
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N (default: auto)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object a line")
    form.add_argument("--csv", action="store_true", help="path, class, probability")


def run(args: argparse.Namespace) -> None:
    import csv

    from dear import load
    from dear.data.folder import find_images
    from dear.errors import DearError

    files = find_images(args.images)
    model = load(args.run_folder, classes=read_classes(args.classes), device=args.device)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if args.csv:
        writer.writerow(["path", "class", "probability"])
    unreadable = 0
    for file, answer in _answers(model, files, args.topk, args.inference, args.exact):
        if isinstance(answer, DearError):
            print(f"dear: skipped: {answer}", file=sys.stderr)
            unreadable += 1
        elif args.json:
            print(json.dumps({"path": str(file), **answer.to_json()}))
        elif args.csv:
            writer.writerow([file, answer.choice, f"{answer.probability:.6f}"])
        else:
            print(f"{file}\n{answer}\n")
    if unreadable:
        print(f"dear: {unreadable} of {len(files)} images could not be read and were skipped.", file=sys.stderr)
    if unreadable == len(files):
        raise DearError("No image could be read: check the files.")


def read_classes(file: Path | None) -> list[str] | None:
    from dear.errors import DearError
    from dear.files import read_text

    if file is None:
        return None
    names = [line.strip() for line in read_text(file).splitlines() if line.strip()]
    if not names:
        raise DearError(f"The class file {file} is empty: write one class name a line.")
    return names


def _answers(
    model: Any, files: list[Path], topk: int, inference: str | None, exact: bool, batch: int = 32
) -> Iterator[tuple[Path, Any]]:
    """Streams: a batch is decoded, answered and forgotten. An unreadable image comes with its error."""
    import torch

    from dear.data.quick import FileReader
    from dear.errors import DearError
    from dear.progress import Progress

    reader = FileReader(model.model.backbone.preprocess, exact)
    with Progress("predict", len(files)) as bar:
        for start in range(0, len(files), batch):
            part, results, pixels = files[start : start + batch], {}, {}
            for file in part:
                try:
                    pixels[file] = reader.read(file)
                except DearError as error:
                    results[file] = error
            if pixels:
                answers = model.predict_batch(torch.stack(list(pixels.values())), topk, inference)
                results |= zip(pixels, answers, strict=True)
            yield from ((file, results[file]) for file in part)
            bar.update(len(part))
