"""The one exception that users are meant to see."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST_WORD, _LONGEST = 300, 4000  # letters


def shortened(text: str) -> str:
    """Without the middle of words and texts that nobody would read to their end."""
    text = re.sub(rf"\S{{{_LONGEST_WORD + 1},}}", lambda word: _cut(word[0], _LONGEST_WORD // 2), text)
    return text if len(text) <= _LONGEST else _cut(text, _LONGEST)


def _cut(text: str, most: int) -> str:
    return f"{text[: most // 2]}...{text[-(most // 2) :]}"


class DearError(Exception):
    """Bad input, said in one sentence that tells what to do. The command line prints it and exits with 2."""

    def __init__(self, sentence: str) -> None:
        super().__init__(shortened(sentence))


@contextmanager
def os_errors_as_dear_errors() -> Iterator[None]:
    """What the machine refuses (no space, no memory, a name too long), as a sentence, wherever it comes up."""
    try:
        yield
    except BrokenPipeError:  # nobody wants to read on: no error
        raise
    except OSError as error:
        about = f" with {error.filename}" if error.filename is not None else ""
        raise DearError(f"The system refused to go on{about}: {error.strerror or error}.") from error
    except MemoryError as error:
        raise DearError(
            "There is not enough memory: use smaller images, a smaller batch or a smaller model."
        ) from error
    except RuntimeError as error:  # PyTorch's words for the same
        if not re.search("out of memory|can't allocate memory|not enough memory", str(error)):
            raise
        raise DearError("There is not enough memory: use a smaller batch or a smaller model.") from error


class TextTooLongError(DearError):
    """A text has more tokens than a backbone reads."""
