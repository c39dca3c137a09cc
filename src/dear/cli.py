"""The command line: finds the command, runs it, and turns bad input into one sentence and exit code 2.

Only the chosen command is imported, so that `dear --help` answers at once.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from dear.errors import DearError, said_plainly, shortened
from dear.version import __version__

COMMANDS = {
    "demo": "the main job on the embedded model and world: a first look in minutes",
    "backbones": "which CLIP backbones are supported, and what is embedded",
    "train": "adapt a backbone to your classes from a few images each",
    "predict": "classify images with an adapted model, with what each component said",
    "explain": "draw why an image got its answer",
    "export": "write an adapted model as ONNX, to run without PyTorch",
    "index": "embed images into a gallery, to search them by attribute",
    "search": "find images that are alike in color, shape, texture, object or place",
    "app": "a local page: classify, look at heads, search, compare runs",
    "data": "what datasets are known and found, and whether yours is in order",
    "zero-shot": "accuracy of a backbone without any training",
    "roles": "find out what each attention head does, show it, and test whether it is causal",
    "report": "tables and figures of finished benchmarks, next to the paper's numbers",
    "bench": "methods, datasets and seeds under a protocol of the paper, one result a cell",
    "ablate": "what each choice of the method is worth, next to its default",
    "world": "a contact sheet of Attribute World, the embedded picture world",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(shortened(message))


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a name that the terminal has no letters for is shown as \u1f98a
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        with said_plainly():
            try:
                args = _parser(argv).parse_args(argv)
                args.run(args)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()  # here, where a closed pipe or a full disk is still ours to handle
    except DearError as error:
        _forget_output()
        with suppress(OSError):
            print("dear:", " ".join(str(error).split()), file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("dear: interrupted; what was finished is kept.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `dear ... | head`
        _forget_output()
        return 0
    return 0


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dear", description="Adapt a frozen CLIP to your own classes, and see why it answers as it does."
    )
    parser.add_argument("--version", action="version", version=f"dear {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".")
        if name in argv:  # only what may be asked for is imported
            module = importlib.import_module(f"dear.commands.{name.replace('-', '_')}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def _forget_output() -> None:
    """What could not be written now would be tried again when Python ends, and fail with a traceback."""
    try:
        sys.stdout.flush()
    except (AttributeError, ValueError):  # there is none
        pass
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
