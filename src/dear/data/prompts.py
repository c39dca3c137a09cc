"""Class names and templates: what they may be, and how a prompt is made of them."""

import re
from collections.abc import Iterable, Sequence

from dear.core.errors import DearError

_LONGEST = 1000  # letters; CLIP reads 77 tokens


def check_template(template: object) -> str:
    """One {} where the class name goes, and no other brace: nothing in it is ever taken for more than text."""
    text = _plain(template, "The template")
    if text.count("{}") != 1 or re.search("[{}]", text.replace("{}", "", 1)):
        raise DearError(f"The template {text!r} must have one {{}} where the class name goes, and no other braces.")
    return text


def fill(template: str, name: str) -> str:
    """The prompt of a class; for templates that `check_template` let through."""
    return template.replace("{}", name, 1)


def check_class_names(names: object) -> tuple[str, ...]:
    """At least one; each a text of its own, without the spaces around it."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise DearError(f"Class names must be a list of texts, such as ['cat', 'dog'], not {names!r}.")
    plain = tuple(check_name(name).strip() for name in names)
    if not plain:
        raise DearError("There are no class names: give at least one.")
    if twice := first_twice(plain):
        raise DearError(f"The class name {twice!r} is given twice: make the names differ.")
    return plain


def check_name(name: object) -> str:
    return _plain(name, "A class name")


def first_twice(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def _plain(text: object, what: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise DearError(f"{what} must be a text that is not empty, not {text!r}.")
    if len(text) > _LONGEST:
        raise DearError(f"{what} has {len(text)} letters: at most {_LONGEST} are read.")
    if any(ord(letter) < 32 or "\ud800" <= letter <= "\udfff" for letter in text.strip()):
        raise DearError(f"{what} has letters that are none (not UTF-8, or control characters): {text!r}.")
    return text
