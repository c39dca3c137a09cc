"""The exception and the warning that users are meant to see."""

import errno
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_UP = "\x1b[A"
_CONTROL = re.compile(r"\x1b\[A|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LONGEST_WORD, _LONGEST = 300, 4000  # letters
_OF_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}  # errors that only a writer gets


def printable(text: str) -> str:
    """The text with control characters as \\x1b, which a terminal would obey: a file's name may have any.

    New lines, tabs and tqdm's own "one line up" stay.
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] == _UP else f"\\x{ord(found[0]):02x}", text)


def shortened(text: str) -> str:
    """The text, with an ellipsis in the middle of every word or text that is too long to read."""
    text = printable(text)
    text = re.sub(rf"\S{{{_LONGEST_WORD + 1},}}", lambda word: _cut(word[0], _LONGEST_WORD // 2), text)
    return text if len(text) <= _LONGEST else _cut(text, _LONGEST)


def _cut(text: str, most: int) -> str:
    return f"{text[: most // 2]}...{text[-(most // 2) :]}"


class DearError(Exception):
    """Bad input, in one sentence that says what to do. The command line prints it and exits with 2."""

    def __init__(self, sentence: str) -> None:
        super().__init__(shortened(sentence))


class DearWarning(UserWarning):
    """Something about the user's data or settings that is worth a look. The command line prints it to stderr."""


def warn(sentence: str) -> None:
    """Warns the caller of the library; Python's `warnings` can filter it or turn it into an error."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "dear":
        frame, level = frame.f_back, level + 1
    warnings.warn(shortened(sentence), DearWarning, stacklevel=level)


@cache
def warn_once(sentence: str) -> None:
    """Warns at the first call with this sentence, which would be the same in every cell of a benchmark."""
    warn(sentence)


@contextmanager
def printing_warnings() -> Iterator[None]:
    """Prints every DearWarning as a line on stderr, as the command line does, and other warnings as Python does."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def print_line(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, DearWarning):
                print("dear: warning:", " ".join(str(message).split()), file=sys.stderr, flush=True)
            else:
                show(message, category, *where)

        warnings.showwarning = print_line  # type: ignore[assignment]
        warnings.simplefilter("always", DearWarning)
        yield


def reason_of(error: Exception) -> str:
    """The system's reason, as the end of a sentence: "no space left on device"."""
    text = str(getattr(error, "strerror", None) or error)
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def first_line(error: Exception) -> str:
    """The first line of a library's error message, without its full stop; the kind of error if it has no message."""
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


@contextmanager
def naming_killed_workers() -> Iterator[None]:
    """Turns the death of a process that decodes images into one sentence, whatever it was turned into before.

    PyTorch raises it from a handler of signals, wherever the main thread happens to be: also where any error of a
    decoder becomes that of an image.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not (isinstance(cause, RuntimeError) and "DataLoader worker" in str(cause)):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise DearError(
            "A process that decodes images was killed, most likely for lack of memory: free memory and run the same "
            "again, with --workers 0 where there is such a flag."
        ) from cause


@contextmanager
def os_errors_as_dear_errors() -> Iterator[None]:
    """Turns errors of the machine (no space, no memory, a name too long) into a sentence, wherever they come up."""
    try:
        with naming_killed_workers():
            yield
    except BrokenPipeError:  # nobody wants to read on: no error
        raise
    except OSError as error:
        act, what = ("write", "the output") if error.errno in _OF_WRITING else ("use", "a file")
        raise DearError(f"Cannot {act} {error.filename or what}: {reason_of(error)}.") from error
    except MemoryError as error:
        raise DearError(
            "There is not enough memory: use smaller images, a smaller batch or a smaller model."
        ) from error
    except NotImplementedError as error:  # PyTorch's, of an operation that Apple's GPUs do not have
        if "MPS" not in str(error):
            raise
        raise DearError(
            f"PyTorch cannot do this on a Mac's GPU ({first_line(error)[:200]}): use --device cpu, or set "
            "PYTORCH_ENABLE_MPS_FALLBACK=1."
        ) from error
    except RuntimeError as error:  # PyTorch's words for the same
        if "use_deterministic_algorithms" in str(error):
            raise DearError(
                f"An operation has no deterministic form ({first_line(error)[:80]}...): leave out --deterministic."
            ) from error
        if not re.search("out of memory|can't allocate memory|not enough memory", str(error)):
            raise
        raise DearError("There is not enough memory: use a smaller batch or a smaller model.") from error


@contextmanager
def library_errors(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turns a library's errors, of these kinds or all, into "`what`: the first line of the error."."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DearError) or (kinds and not isinstance(error, kinds)):
            raise
        raise DearError(f"{what}: {first_line(error)}.") from error


@contextmanager
def needing(what: str, install: str) -> Iterator[None]:
    """Turns a missing package into the sentence "`what`: pip install `install`."."""
    try:
        yield
    except ImportError:
        raise DearError(f"{what}: pip install {install}.") from None


class TextTooLongError(DearError):
    """A text has more tokens than a backbone reads."""
