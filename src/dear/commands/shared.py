"""Arguments that several commands share, and what they stand for."""

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dear.core.config import number
from dear.core.names import DECOUPLED, FUSION, PLAIN

if TYPE_CHECKING:
    from dear.clip import Backbone
    from dear.training.backbone import BackboneChoice

DATA_ROOT = "folder of the known datasets, in CoOp's layout"


def add_action(
    actions: Any, name: str, action: Callable[[argparse.Namespace], None], what: str
) -> argparse.ArgumentParser:
    """The parser of one part of a command, such as `dear data get`; `what` it does, for both help pages."""
    parser = actions.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    parser.set_defaults(action=action)
    return parser


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N, mps (default: auto)")
    parser.add_argument(
        "--precision", choices=("auto", "fp32", "bf16", "fp16"), default="auto",
        help="precision of the towers; auto: half on CUDA, else fp32 (default: auto)",
    )  # fmt: skip


def add_backbone_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.training.backbone import MODEL_HELP

    parser.add_argument("--model", default="auto", metavar="MODEL", help=f"{MODEL_HELP} (default: auto)")
    parser.add_argument("--pretrained", help="OpenCLIP tag or checkpoint file, for a model given by its OpenCLIP name")
    add_device_arguments(parser)


def add_draw_arguments(parser: argparse.ArgumentParser, shots: str = "training images per class") -> None:
    number_of_shots = number("--shots", 1, 10**6)
    parser.add_argument("--shots", type=number_of_shots, default=16, help=f"{shots} (default: 16)")
    parser.add_argument("--seed", type=number("--seed", 0, 2**32 - 1), default=1, help="seed of the draw (default: 1)")


def add_seeds_argument(parser: argparse.ArgumentParser, default: Sequence[int] | None, says: str) -> None:
    parser.add_argument(
        "--seeds", nargs="+", type=number("--seeds", 0, 2**32 - 1), default=default, metavar="SEED",
        help=f"seeds of the few-shot draw and the training (default: {says})",
    )  # fmt: skip


def add_limit_argument(parser: argparse.ArgumentParser, of: str = "") -> None:
    limit = number("--limit", 2, 10**9)
    parser.add_argument("--limit", type=limit, metavar="N", help=f"at most N images{of}, spread evenly")


def add_inference_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--inference", choices=(PLAIN, FUSION, DECOUPLED),
        help="fusion of the components, or decoupled: the class feature alone (default: the method's own)",
    )  # fmt: skip


def add_gain_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gain", action="append", default=[], metavar="NAME=NUMBER",
        help="scale what some heads add to image features beyond their mean, can be repeated: an attribute or role of "
        "the role map (texture=0), one head (12.10=2: layer 12, head 10), or all=2; 1 is as it was",
    )  # fmt: skip


def add_fast_decode_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fast-decode", action="store_true",
        help="decode large photos at a reduced size: faster, features agree to about 0.98",
    )  # fmt: skip


def chosen_backbone(args: argparse.Namespace, data: Sequence[str]) -> "tuple[Backbone, BackboneChoice]":
    """Loads the backbone that --model names, or one that suits the data; `say` its name when all else is accepted."""
    from dear.training.backbone import choose_backbone

    choice = choose_backbone(args.model, args.pretrained, data)
    return choice.load(args.device, args.precision, getattr(args, "text_features", None)), choice
