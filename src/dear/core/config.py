"""Settings as frozen dataclasses: help, choices and limits stand beside each field and are checked in one place.

Every field can be set from a JSON file and from the command line; the command line wins.
"""

import argparse
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dear.core.errors import DearError
from dear.core.files import read_json

if TYPE_CHECKING:
    from typing_extensions import Self


# Where a setting names no limit of its own: no number may ask for more memory or time than any machine has.
_MOST = {int: 100_000, float: 1e6}


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    advanced: bool = False,
) -> Any:
    """A dataclass field with what a user should know about it. Numbers have limits, whether they are named or not.

    `advanced`: few will ever set it; only --help-all lists it.
    """
    about = {"help": help, "choices": choices, "low": low, "high": high, "advanced": advanced}
    return dataclasses.field(default=default, metadata=about)


class Config:
    """Base of all settings: checks every field when it is made."""

    def __post_init__(self) -> None:
        for name, kind, optional, meta in _fields(type(self)):
            value = getattr(self, name)
            if value is None and optional:
                continue
            given = type(value)
            if kind is not given and not (kind is float and given is int):
                raise DearError(f"{_flag(name)} must be {_KINDS[kind]}, not {value!r}.")
            if meta["choices"] and value not in meta["choices"]:
                raise DearError(f"{_flag(name)} must be one of {', '.join(meta['choices'])}, not {value!r}.")
            if kind in _MOST:
                low = -_MOST[kind] if meta["low"] is None else meta["low"]
                high = _MOST[kind] if meta["high"] is None else meta["high"]
                if not low <= value <= high:  # nor is nan
                    raise DearError(f"{_flag(name)} must be from {low} to {high}, not {_shown(value)}.")
                object.__setattr__(self, name, kind(value))

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    @classmethod
    def pick(cls, values: Mapping[str, Any]) -> "Self":
        """The settings of this class among others."""
        return cls(**{name: values[name] for name, *_ in _fields(cls) if name in values})


_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def number(flag: str, low: float, high: float, kind: type = int) -> Callable[[str], Any]:
    """The type of a command's own argument: a number within limits."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise DearError(f"{flag} must be from {low} to {high}, not {text}.")
        return value

    parse.__name__ = kind.__name__  # argparse says "invalid int value"
    return parse


def _shown(value: float) -> str:
    return str(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number with over 30 digits"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _fields(cls: type) -> list[tuple[str, type, bool, dict[str, Any]]]:
    """(name, kind, may it be None, metadata) of every setting."""
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        hint, optional = hints[field.name], False
        if isinstance(hint, types.UnionType):  # X | None
            hint, optional = next(a for a in typing.get_args(hint) if a is not type(None)), True
        found.append((field.name, hint, optional, dict(field.metadata)))
    return found


class _HelpAll(argparse.Action):
    """Prints the help page with the flags that --help leaves out."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        for action in parser._actions:
            action.help = getattr(action, "full_help", action.help)
        parser.print_help()
        parser.exit()


def add_arguments(
    parser: argparse.ArgumentParser, *configs: type[Config], defaults: Mapping[str, Any] | None = None
) -> None:
    """One flag for each field, and --config FILE for all of them. `defaults`: other ones than the fields' own.

    A field that several classes have is one flag, which sets it in all of them.
    """
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all settings, and exit")
    parser.add_argument("--config", metavar="FILE", help="JSON file with any of the settings; flags win over it")
    added: set[str] = set()
    for cls in configs:
        group = parser.add_argument_group((cls.__doc__ or cls.__name__).splitlines()[0].rstrip("."))
        for field, (name, kind, _, meta) in zip(dataclasses.fields(cls), _fields(cls), strict=True):  # type: ignore[arg-type]
            if name in added:
                continue
            added.add(name)
            usual = (defaults or {}).get(name, field.default)
            default = "" if usual is None else f" (default: {usual})"
            help_text = (meta["help"] + default).replace("%", "%%")  # argparse formats it
            options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": help_text}
            if kind is bool:
                options["action"] = argparse.BooleanOptionalAction
            else:
                options |= {"type": kind, "choices": meta["choices"] or None}
                options["metavar"] = None if meta["choices"] else kind.__name__.upper()
            action = group.add_argument(_flag(name), **options)
            if meta["advanced"]:
                action.full_help, action.help = action.help, argparse.SUPPRESS  # type: ignore[attr-defined]


def given_arguments(args: argparse.Namespace, *configs: type[Config]) -> dict[str, Any]:
    """The settings that were asked for: in the file, then by flags. Unknown names in the file are refused."""
    known = {name for cls in configs for name, *_ in _fields(cls)}
    given: dict[str, Any] = {}
    if args.config:
        given = read_json(args.config)
        if not isinstance(given, dict):
            raise DearError(f"{args.config} must hold one JSON object of settings.")
        if unknown := sorted(set(given) - known):
            raise DearError(
                f"{args.config} has unknown settings: {', '.join(unknown)}. Known: {', '.join(sorted(known))}."
            )
    return given | {name: value for name, value in vars(args).items() if name in known}
