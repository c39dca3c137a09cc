"""Settings as frozen dataclasses: help, choices and limits stand beside each field.

Every field can be set from a JSON file and from the command line; the command line wins. Each field's limits become a
type (`dear.core.schema.limited`), so that settings and files are checked by the same validator.
"""

import argparse
import dataclasses
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import ValidationError, convert

from dear.core.errors import DearError
from dear.core.files import read_json
from dear.core.schema import limited

if TYPE_CHECKING:
    from typing_extensions import Self


# Limits where a setting names none: no number may ask for more memory or time than any machine has.
_DEFAULT_LIMITS = {int: 100_000, float: 1e6}
_KIND_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    advanced: bool = False,
) -> Any:
    """A dataclass field with its help text. Every number has limits, named or not."""
    about = {"help": help, "choices": choices, "low": low, "high": high, "advanced": advanced}
    return dataclasses.field(default=default, metadata=about)


advanced = partial(setting, advanced=True)
"""A setting that only --help-all lists."""


class Config:
    """Base of all settings: checks every field when it is made."""

    def __post_init__(self) -> None:
        for field in _fields(type(self)):
            object.__setattr__(self, field.name, field.check(getattr(self, field.name)))

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in _fields(cls))

    @classmethod
    def pick(cls, values: Mapping[str, Any]) -> "Self":
        """The settings of this class among others."""
        return cls(**{name: values[name] for name in cls.names() if name in values})


class _Field(NamedTuple):
    """One setting: its type with and without its limits, and how to describe them."""

    name: str
    kind: type
    limits: Any  # `kind` with its limits or choices, as a type; with None where that is allowed
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    default: Any
    help: str
    advanced: bool

    def check(self, value: Any) -> Any:
        """The value, as its kind; a sentence for one of another kind or beyond the limits."""
        try:
            return convert(value, self.limits, strict=True)
        except (ValidationError, UnicodeEncodeError):  # the latter: letters that have no place in UTF-8
            pass
        if type(value) is not self.kind and not (self.kind is float and type(value) is int):
            raise DearError(f"{_flag(self.name)} must be {_KIND_NAMES[self.kind]}, not {value!r}.")
        if self.choices:
            raise DearError(f"{_flag(self.name)} must be one of {', '.join(self.choices)}, not {value!r}.")
        raise DearError(f"{_flag(self.name)} must be from {self.low} to {self.high}, not {_readable(value)}.")


def _read_fields(cls: type) -> tuple[_Field, ...]:
    """Every setting of a class, in order."""
    hints = typing.get_type_hints(cls)
    return tuple(_field(field, hints[field.name]) for field in dataclasses.fields(cls))


_fields: Callable[[type], tuple[_Field, ...]] = cache(_read_fields)


def _field(field: "dataclasses.Field[Any]", hint: Any) -> _Field:
    meta, optional = field.metadata, isinstance(hint, types.UnionType)  # X | None
    kind = next(a for a in typing.get_args(hint) if a is not type(None)) if optional else hint
    low, high, limits = meta["low"], meta["high"], kind
    if kind in _DEFAULT_LIMITS:
        low, high = (-_DEFAULT_LIMITS[kind] if low is None else low), (_DEFAULT_LIMITS[kind] if high is None else high)
        limits = limited(kind, low, high)
    elif meta["choices"]:
        limits = Literal[meta["choices"]]
    limits = limits | None if optional else limits
    return _Field(
        field.name, kind, limits, low, high, meta["choices"], field.default, meta["help"], meta["advanced"]
    )  # fmt: skip


def number(flag: str, low: float, high: float, kind: type = int) -> Callable[[str], Any]:
    """The type of a command's own argument: a number within limits."""

    def parse(text: str) -> Any:
        try:
            return convert(kind(text), limited(kind, low, high), strict=True)
        except ValidationError:
            raise DearError(f"{flag} must be from {low} to {high}, not {text}.") from None

    parse.__name__ = kind.__name__  # argparse says "invalid int value"
    return parse


def whole_number(variable: str, default: int) -> int:
    """A number from a variable of the environment, which may hold anything."""
    value = os.environ.get(variable, str(default))
    if not value.isdecimal() or len(value) > 9:
        raise DearError(f"The environment variable {variable} must be a whole number, not {value!r}: unset it.")
    return int(value)


def _readable(value: Any) -> str:
    return str(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number with over 30 digits"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class _HelpAll(argparse.Action):
    """Prints the help page with the flags that --help leaves out."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        for action in parser._actions:
            action.help = getattr(action, "full_help", action.help)
        parser.print_help()
        parser.exit()


def add_arguments(
    parser: argparse.ArgumentParser,
    *configs: type[Config],
    defaults: Mapping[str, Any] | None = None,
    without: Sequence[str] = (),
) -> None:
    """One flag per field but those in `without`, and --config FILE for all of them. `defaults` replace the fields' own.

    A field that several classes have is one flag, which sets it in all of them.
    """
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all settings, and exit")
    parser.add_argument("--config", metavar="FILE", help="JSON file with any of the settings; flags win over it")
    names = set(without)
    for cls in configs:
        group = parser.add_argument_group((cls.__doc__ or cls.__name__).splitlines()[0].rstrip("."))
        for field in _fields(cls):
            if field.name in names:
                continue
            names.add(field.name)
            default = (defaults or {}).get(field.name, field.default)
            note = "" if default is None else f" (default: {default})"
            help_text = (field.help + note).replace("%", "%%")  # argparse formats it
            options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": help_text}
            if field.kind is bool:
                options["action"] = argparse.BooleanOptionalAction
            else:
                options |= {"type": field.kind, "choices": field.choices or None}
                options["metavar"] = None if field.choices else field.kind.__name__.upper()
            action = group.add_argument(_flag(field.name), **options)
            if field.advanced:
                action.full_help, action.help = action.help, argparse.SUPPRESS  # type: ignore[attr-defined]


def given_arguments(args: argparse.Namespace, *configs: type[Config]) -> dict[str, Any]:
    """The settings in the config file, then those given by flags. Unknown names in the file are refused."""
    names = {name for cls in configs for name in cls.names()}
    settings: dict[str, Any] = {}
    if args.config:
        settings = read_json(args.config)
        if not isinstance(settings, dict):
            raise DearError(f"{args.config} must hold one JSON object of settings.")
        if unknown := sorted(set(settings) - names):
            raise DearError(
                f"{args.config} has unknown settings: {', '.join(unknown)}. Known: {', '.join(sorted(names))}."
            )
    return settings | {name: value for name, value in vars(args).items() if name in names}
