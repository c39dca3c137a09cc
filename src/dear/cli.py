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
from typing import Any, NoReturn

from dear.core.config import whole_number
from dear.core.errors import DearError, os_errors_as_dear_errors, printable, printing_warnings, shortened
from dear.core.lean import import_lean
from dear.core.version import __version__

COMMAND_GROUPS = {
    "look around": {
        "demo": "train, evaluate, explain and search with the bundled model and data, in minutes",
        "backbones": "list the supported CLIP backbones, and the bundled one",
        "data": "list the known datasets, check a dataset for problems, draw the bundled one",
        "doctor": "check the installation, and the files of runs, galleries, results and exports",
    },
    "adapt, and use it": {
        "fit": "a model in seconds: the best of the methods without training, checked on your own images",
        "train": "adapt a backbone to your classes from a few images each",
        "decide": "let a model say none of these, a set with a promise, or not sure enough; calibrate it",
        "predict": "classify images with an adapted model, with the vote of each component",
        "evaluate": "measure an adapted model on labelled images, class by class, with a page of its mistakes",
        "several": "images with several labels, or none: fit, predict and evaluate",
        "explain": "draw the reasons for the prediction of an image",
        "classes": "add, remove or rename classes of an adapted model",
        "export": "write an adapted model as ONNX, to run without PyTorch",
        "serve": "serve an adapted or exported model over HTTP: predict, search, embed; --page: a page for people",
        "push": "share an adapted model on the Hugging Face hub",
    },
    "search by attribute": {
        "index": "embed images into a gallery, to search them by attribute",
        "search": "find images that are similar in color, shape, texture, object or place",
    },
    "analyse heads": {
        "roles": "find the role of each attention head, show it, and test whether it is causal",
    },
    "compare methods": {
        "methods": "list all methods to adapt a backbone",
        "compare": "which method suits your images? A leaderboard under a time limit; --zero-shot: the backbone alone",
        "bench": "run methods, datasets and seeds under a protocol of the paper",
        "ablate": "measure the effect of each choice of a method, against its default",
        "reproduce": "run a table or figure of the paper, at full size or small, and judge each number",
        "report": "make tables and figures of finished benchmarks, next to the paper's numbers",
    },
}
COMMANDS = {name: what for group in COMMAND_GROUPS.values() for name, what in group.items()}
ALIASES = {"world": ("data", "world"), "app": ("serve", "--page"), "zero-shot": ("compare", "--zero-shot")}
ALIASES |= {action: ("classes", action) for action in ("add", "remove", "rename")}
"""Other names of parts of commands, which work and are not listed."""
_PATIENCE = 20  # seconds that a silent rank waits before it exits
_WHAT = "Adapt a frozen CLIP to your own classes, and see the reasons for its predictions."
_FIRST_STEPS = {
    "dear demo": "all steps on the bundled model and data; nothing is downloaded",
    "dear data check PHOTOS": "PHOTOS: a folder with one folder of images per class",
    "dear compare PHOTOS --model ViT-B-16 --pretrained openai": "compare methods in five minutes",
    "dear train --model ViT-B-16 --pretrained openai --data PHOTOS --out RUN": "learns from 16 images per class",
    "dear predict RUN IMAGE": "the prediction, and the vote of each attribute",
    "dear explain RUN IMAGE": "the same as a picture",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(shortened(message))


def main(argv: Sequence[str] | None = None) -> int:
    if argv is None and sys.argv[1:2] != ["backbones"]:  # a process of its own, and not one about all models
        import_lean()
    argv = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # characters that the terminal cannot show appear as \u1f98a
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        with suppress(AttributeError, ValueError):
            _keep_from_terminal(stream)
    argv = [*ALIASES.get(argv[0], argv[:1]), *argv[1:]] if argv else []
    try:
        with os_errors_as_dear_errors(), _silence_other_ranks(), printing_warnings():
            try:
                if not all(word.strip() for word in argv):  # most likely an unset variable of a script
                    raise DearError("An argument is empty: give it a value, or leave it out.")
                if argv or _completing():
                    _run_command(argv)
                else:
                    print(_first_steps())
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()  # here, where a closed pipe or a full disk is still ours to handle
    except DearError as error:
        _discard_output()
        with suppress(OSError):
            print("dear:", " ".join(str(error).split()), file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"dear: interrupted; {interrupt.args[0] if interrupt.args else 'nothing was finished'}.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `dear ... | head`
        _discard_output()
        return 0
    return 0


def _open_streams() -> None:
    """Opens standard streams that the caller has closed (`>&-`, pythonw) to nowhere.

    Else the next file that is opened would take their number, and get what libraries print.
    """
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (file := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(file)
    nowhere = open(os.devnull, "w")  # noqa: SIM115 - it stays open
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere


def _keep_from_terminal(stream: Any) -> None:
    """Escapes control characters that names of files may bring to a terminal; a file gets them as they are."""
    if stream.isatty() and "write" not in vars(stream):
        write = stream.write
        stream.write = lambda text: write(printable(text))


def _discard_output() -> None:
    """Drops unwritten output: Python would try to write it again at exit, and fail with a traceback."""
    try:
        sys.stdout.flush()
    except (AttributeError, ValueError):  # there is none
        pass
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_command(argv: Sequence[str]) -> None:
    args = _parser(argv).parse_args(argv)
    if args.command != "train" and _by_torchrun():
        raise DearError(f"Only `dear train` runs in several processes: start `dear {args.command}` without torchrun.")
    from dear.core.progress import reporting_phases
    from dear.core.table import showing  # `--help` needs none of it

    with reporting_phases(), showing(getattr(args, "json_tables", False)) as args.show:
        try:
            args.run(args)
        except KeyboardInterrupt:
            after = getattr(importlib.import_module(args.run.__module__), "after_interrupt", None)
            raise KeyboardInterrupt(*([after(args)] if after else [])) from None


@contextmanager
def _silence_other_ranks() -> Iterator[None]:
    """Only rank 0 prints, unless `dear.parallel.processes` lets another rank report a failure."""
    if not _by_torchrun() or whole_number("RANK", 0) == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        try:
            yield
        except BaseException as error:
            if sys.stderr is nowhere and getattr(error, "code", True):
                time.sleep(_PATIENCE)  # torchrun ends all ranks when one exits: let the reporting rank exit first
            raise
        finally:
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


def _by_torchrun() -> bool:
    """Whether this is one of several processes."""
    return "TORCHELASTIC_RUN_ID" in os.environ and whole_number("WORLD_SIZE", 1) != 1


def _completing() -> bool:
    """Whether the shell asks for completions, through argcomplete."""
    return "_ARGCOMPLETE" in os.environ


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dear", description=_WHAT, epilog=_command_list(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"dear {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, help="one of the commands below")
    words = os.environ.get("COMP_LINE", "").split() if _completing() else argv
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, description=what[0].upper() + what[1:] + "." * (not what.endswith("?")))
        if name in words:  # other commands are not imported
            module = importlib.import_module(f"dear.commands.{name.replace('-', '_')}")
            module.add_arguments(command)
            if hasattr(module, "add_settings"):  # flags that depend on other arguments
                module.add_settings(command, words)
            command.set_defaults(run=module.run)
    if _completing():
        import argcomplete

        argcomplete.autocomplete(parser)
    return parser


def _command_list() -> str:
    width = max(map(len, COMMANDS))
    parts = []
    for title, commands in COMMAND_GROUPS.items():
        parts.append("\n".join([f"{title}:", *(f"  {name:{width}}  {what}" for name, what in commands.items())]))
    return "\n\n".join(parts)


def _first_steps() -> str:
    first = "\n".join(f"  {command}\n      {what}" for command, what in _FIRST_STEPS.items())
    return f"{_WHAT}\n\nfirst:\n{first}\n\n{_command_list()}\n\n`dear COMMAND --help` shows the options of each."


if __name__ == "__main__":
    sys.exit(main())
