"""dear predict: class predictions for images, one or thousands."""

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dear.commands.shared import (
    add_device_arguments,
    add_fast_decode_argument,
    add_gain_argument,
    add_inference_argument,
)
from dear.core.config import number
from dear.core.errors import DearError
from dear.core.files import read_text
from dear.core.progress import Progress
from dear.parallel.cluster import add_ray_arguments, cluster_from_args

if TYPE_CHECKING:
    from dear.data.decode import Decoder
    from dear.model.answer import Answer
    from dear.model.predictor import Predictor

_FILES_AT_ONCE = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="folder made by `dear fit` or `dear train`")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files, folders, or quoted globs")
    parser.add_argument(
        "--topk", type=number("--topk", 1, 10_000), default=3, help="number of classes to show (default: 3)"
    )
    parser.add_argument("--classes", type=Path, metavar="FILE", help="file of novel class names, one per line")
    add_inference_argument(parser)
    add_gain_argument(parser)
    add_fast_decode_argument(parser)
    add_device_arguments(parser)
    add_ray_arguments(parser, "worker")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object per image")
    form.add_argument("--csv", action="store_true", help="print CSV: path, class, probability")
    form.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write, .csv or .jsonl; the same command adds what is missing"
    )


def run(args: argparse.Namespace) -> None:
    from dear.data.folder import find_images
    from dear.heads.gains import gain_text
    from dear.model.answer_file import AnswerFile

    files, gains = find_images(args.images), checked_gains(args.gain, args.run_folder)
    in_json, in_text = ({"gain": gains}, f"  (gain {gain_text(gains)})") if gains else ({}, "")
    out = sys.stdout
    writer = csv.writer(out, lineterminator="\n")
    unreadable, file_out = 0, None
    with ExitStack() as stack:
        if args.out is not None:
            file_out = stack.enter_context(AnswerFile(args.out, _model_and_settings(args, gains)))
            whole, files = len(files), [file for file in files if str(file) not in file_out.done]
            if len(files) < whole:
                print(f"{whole - len(files)} of {whole} images have their answers in {args.out}")
        stack.enter_context(redirect_stdout(sys.stderr))  # for predictions only: Ray prints messages of its own
        for number, (file, answer) in enumerate(_answers(args, files, gains)):
            if args.csv and not number:
                writer.writerow(["path", "class", "probability"])
            if isinstance(answer, DearError):
                print(f"dear: skipped: {answer}", file=sys.stderr)
                unreadable += 1
            elif file_out is not None:
                file_out.add(str(file), {**in_json, **answer.to_json()})
            elif args.json:
                print(json.dumps({"path": str(file), **in_json, **answer.to_json()}), file=out)
            elif args.csv:
                writer.writerow([file, answer.choice, f"{answer.probability:.6f}"])
            else:
                print(f"{file}{in_text}\n{answer}\n", file=out)
    if args.out is not None:
        print(f"answers: {args.out}")
    if unreadable:
        print(f"dear: {unreadable} of {len(files)} images could not be read and were skipped.", file=sys.stderr)
    if unreadable == len(files) > 0:
        raise DearError("No image could be read: check the files.")


def _model_and_settings(args: argparse.Namespace, gains: Mapping[str, float]) -> str:
    """Equal for equal models with equal settings: the start of a hash."""
    from dear.training.adapter import read_config_alone

    names = read_classes(args.classes)
    settings = read_config_alone(Path(args.run_folder))["config_sha256"], names, sorted(gains.items()), args.inference
    return hashlib.sha256(repr((*settings, args.topk, args.fast_decode)).encode()).hexdigest()[:16]


def read_classes(file: Path | None) -> list[str] | None:
    if file is None:
        return None
    names = [line.strip() for line in read_text(file).splitlines() if line.strip()]
    if not names:
        raise DearError(f"The class file {file} is empty: write one class name per line.")
    return names


def _answers(
    args: argparse.Namespace, files: list[Path], gains: Mapping[str, float]
) -> "Iterator[tuple[Path, Answer | DearError]]":
    """Answers, batch by batch; the error for an unreadable image."""
    cluster, classes = cluster_from_args(args, args.device), read_classes(args.classes)
    parts = [files[start : start + _FILES_AT_ONCE] for start in range(0, len(files), _FILES_AT_ONCE)]
    decode = args.topk, args.inference, args.fast_decode
    make = partial(_answerer, args.run_folder, classes, gains, args.precision, decode)
    with Progress("predict", len(files)) as bar, ExitStack() as stack:
        if cluster is None:
            results: Iterable[Any] = map(make(args.device), parts)
        else:
            results = stack.enter_context(cluster.workers(make, len(parts)))(parts)
        for part, answers in zip(parts, results, strict=True):
            yield from zip(part, answers, strict=True)
            bar.update(len(part))


def checked_gains(texts: list[str], run: str | None = None) -> dict[str, float]:
    """Gains as given; refuses wrong names before weights are loaded, unless the run has a role map of its own."""
    from dear.heads.gains import parse_gains, require_measured
    from dear.training.adapter import read_config_alone

    gains = parse_gains(texts)
    if gains and (run is None or (Path(run).is_dir() and "roles" not in read_config_alone(Path(run))["extra_state"])):
        require_measured(gains)
    return gains


def load_with_gain(
    folder: str, classes: list[str] | None, gains: Mapping[str, float], precision: str, device: str
) -> "Predictor":
    from dear import load

    model = load(folder, classes=classes, device=device, precision=precision)
    return model.with_gain(gains) if gains else model


def _answerer(
    folder: str,
    classes: list[str] | None,
    gains: Mapping[str, float],
    precision: str,
    settings: tuple[int, str | None, bool],
    device: str,
) -> "Callable[[list[Path]], list[Answer | DearError]]":
    """A function that answers for a batch of files, for this process or a worker; `settings`: topk, inference, and
    whether to decode fast."""
    from dear.data.decode import Decoder

    topk, inference, fast = settings
    model = load_with_gain(folder, classes, gains, precision, device)
    return partial(_answer_files, model, Decoder(model.preprocess, fast), topk, inference)


def _answer_files(
    model: "Predictor", decoder: "Decoder", topk: int, inference: str | None, files: list[Path]
) -> "list[Answer | DearError]":
    """Answers for image files as one batch, with the error in place of an unreadable one."""
    import torch

    decoded: list[Any] = []
    for file in files:
        try:
            decoded.append(decoder(file))
        except DearError as error:
            decoded.append(error)
    pixels = [one for one in decoded if isinstance(one, torch.Tensor)]
    answers = iter(model.predict_batch(torch.stack(pixels), topk, inference) if pixels else ())
    return [next(answers) if isinstance(one, torch.Tensor) else one for one in decoded]
