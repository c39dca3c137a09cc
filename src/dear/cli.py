"""The command line: finds the command, runs it, and turns bad input into one sentence and exit code 2.

Only the chosen command is imported, so that `dear --help` answers at once.
"""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from dear.core.errors import DearError, os_errors_as_dear_errors, shortened
from dear.core.version import __version__

GROUPS = {
    "look around": {
        "demo": "the main job on the embedded model and world: a first look in minutes",
        "backbones": "which CLIP backbones are supported, and what is embedded",
        "world": "a contact sheet of Attribute World, the embedded picture world",
        "data": "what datasets are known and found, and whether yours is in order",
        "doctor": "is this installation all right, and is this run, gallery or result folder intact?",
    },
    "adapt, and use it": {
        "train": "adapt a backbone to your classes from a few images each",
        "predict": "classify images with an adapted model, with what each component said",
        "explain": "draw why an image got its answer",
        "export": "write an adapted model as ONNX, to run without PyTorch",
        "serve": "an HTTP API around an adapted or exported model: predict, search, embed",
        "push": "share an adapted model on the Hugging Face hub",
        "app": "a local page: classify, look at heads, search, compare runs",
    },
    "search by attribute": {
        "index": "embed images into a gallery, to search them by attribute",
        "search": "find images that are alike in color, shape, texture, object or place",
    },
    "find out what heads do": {
        "roles": "find out what each attention head does, show it, and test whether it is causal",
    },
    "compare methods": {
        "methods": "every way to adapt a backbone that dear knows, one line each",
        "zero-shot": "accuracy of a backbone without any training",
        "bench": "methods, datasets and seeds under a protocol of the paper, one result a cell",
        "ablate": "what each choice of the method is worth, next to its default",
        "report": "tables and figures of finished benchmarks, next to the paper's numbers",
    },
}
COMMANDS = {name: what for group in GROUPS.values() for name, what in group.items()}
_PATIENCE = 20  # seconds
_WHAT = "Adapt a frozen CLIP to your own classes, and see why it answers as it does."
_FIRST = {
    "dear demo": "all of it on what is embedded; nothing is downloaded",
    "dear data check PHOTOS": "PHOTOS: a folder with one folder of images for each class",
    "dear train --model ViT-B-16 --pretrained openai --data PHOTOS --out RUN": "learns from 16 images of each class",
    "dear predict RUN IMAGE": "the answer, and what each attribute said",
    "dear explain RUN IMAGE": "the same as a picture",
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
        with os_errors_as_dear_errors(), _silence_other_ranks():
            try:
                if not all(word.strip() for word in argv):  # an unset variable of a script, most likely
                    raise DearError("An argument is empty: write what it should be, or leave it out.")
                if argv or _completing():
                    _run(argv)
                else:
                    print(_first_steps())
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


def _forget_output() -> None:
    """What could not be written now would be tried again when Python ends, and fail with a traceback."""
    try:
        sys.stdout.flush()
    except (AttributeError, ValueError):  # there is none
        pass
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str]) -> None:
    args = _parser(argv).parse_args(argv)
    if args.command != "train" and _by_torchrun():
        raise DearError(f"Only `dear train` is shared by processes: start `dear {args.command}` without torchrun.")
    from dear.core.table import showing  # `--help` needs none of it

    with showing(getattr(args, "json_tables", False)) as args.show:
        args.run(args)


@contextmanager
def _silence_other_ranks() -> Iterator[None]:
    """Only rank 0 prints, unless `dear.parallel.processes` lets another rank report a failure."""
    if not _by_torchrun() or os.environ["RANK"] == "0":
        yield
        return
    with open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        try:
            yield
        except BaseException as error:
            if sys.stderr is nowhere and getattr(error, "code", True):
                time.sleep(_PATIENCE)  # as soon as one has ended, torchrun ends all: that must be who speaks
            raise
        finally:
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


def _by_torchrun() -> bool:
    """Is this one of several processes?"""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def _completing() -> bool:
    """Does the shell ask what may come next? As argcomplete does."""
    return "_ARGCOMPLETE" in os.environ


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dear", description=_WHAT, epilog=_groups(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"dear {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, help="one of those below")
    words = os.environ.get("COMP_LINE", "").split() if _completing() else argv
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, description=what[0].upper() + what[1:] + ".")
        if name in words:  # only what may be asked for is imported
            module = importlib.import_module(f"dear.commands.{name.replace('-', '_')}")
            module.add_arguments(command)
            if hasattr(module, "add_settings"):  # flags that depend on what else was asked for
                module.add_settings(command, words)
            command.set_defaults(run=module.run)
    if _completing():
        import argcomplete

        argcomplete.autocomplete(parser)
    return parser


def _groups() -> str:
    width = max(map(len, COMMANDS))
    parts = []
    for title, commands in GROUPS.items():
        parts.append("\n".join([f"{title}:", *(f"  {name:{width}}  {what}" for name, what in commands.items())]))
    return "\n\n".join(parts)


def _first_steps() -> str:
    first = "\n".join(f"  {command}\n      {what}" for command, what in _FIRST.items())
    return f"{_WHAT}\n\nfirst:\n{first}\n\n{_groups()}\n\n`dear COMMAND --help` says more about each."


if __name__ == "__main__":
    sys.exit(main())
