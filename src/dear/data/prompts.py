"""Checks class names and templates, and makes prompts of them."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from dear.core.errors import DearError

_MAX_LENGTH = 1000  # characters; CLIP reads 77 tokens


def check_template(template: object) -> str:
    """The template, which must have one {} for the class name and no other braces: it is never a format string."""
    text = _check_text(template, "The template")
    if text.count("{}") != 1 or re.search("[{}]", text.replace("{}", "", 1)):
        raise DearError(f"The template {text!r} must have one {{}} where the class name goes, and no other braces.")
    return text


def fill(template: str, name: str) -> str:
    """The prompt of a class; `template` has passed `check_template`."""
    return template.replace("{}", name, 1)


def check_class_names(names: object) -> tuple[str, ...]:
    """The names without surrounding spaces; there must be at least one, and no two that CLIP reads as one."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise DearError(f"Class names must be a list of texts, such as ['cat', 'dog'], not {names!r}.")
    stripped = tuple(check_name(name).strip() for name in names)
    if not stripped:
        raise DearError("There are no class names: give at least one.")
    if (duplicate := first_duplicate(list(map(as_read, stripped)))) is not None:
        raise DearError(f"The class name {duplicate!r} is given twice: make the names differ, not only in capitals.")
    return stripped


def check_name(name: object) -> str:
    return _check_text(name, "A class name")


def as_read(name: str) -> str:
    """The name as CLIP's tokenizer reads it: without capitals, with composed accents and single spaces."""
    return " ".join(unicodedata.normalize("NFC", name).lower().split())


def first_duplicate(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def _check_text(text: object, what: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise DearError(f"{what} must be a non-empty text, not {text!r}.")
    if len(text) > _MAX_LENGTH:
        raise DearError(f"{what} has {len(text)} characters: at most {_MAX_LENGTH} are allowed.")
    if any(ord(char) < 32 or "\ud800" <= char <= "\udfff" for char in text.strip()):
        raise DearError(f"{what} contains control characters or invalid Unicode: {text!r}.")
    return text
