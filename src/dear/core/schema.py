"""The one validator: values read from files, and settings, are checked against types (msgspec).

A type may be a TypedDict, a Struct, a list, a tuple, a union, or one of the limited numbers below. No coercion. Extra
fields are ignored; missing or mistyped ones are reported with their path.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from msgspec import Meta, ValidationError, convert

from dear.core.errors import DearError

Count = Annotated[int, Meta(ge=0, le=10**12)]
Positive = Annotated[int, Meta(ge=1, le=10**9)]
Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]  # and so neither infinite nor NaN
Percent = Annotated[float, Meta(ge=0, le=100)]
Name = Annotated[str, Meta(min_length=1, max_length=10_000)]


def limited(kind: type, low: float, high: float) -> Any:
    """The type of numbers from `low` to `high`, which are neither infinite nor NaN."""
    return Annotated[kind, Meta(ge=low, le=high)]


def check_shape(value: Any, shape: Any, what: str, advice: str) -> Any:
    """The value, made of JSON's types, as `shape`; raises "`what` is damaged (...): `advice`." if it is another."""
    with damaged(what, advice):
        return convert(value, shape, strict=True)


@contextmanager
def damaged(what: str, advice: str) -> Iterator[None]:
    """Turns errors in the code that uses a file's content into a sentence.

    A type cannot say everything (the keys of one table are the values of another): the rest fails here.
    """
    try:
        yield
    except ValidationError as error:
        reason, _, place = str(error).replace("`", "").partition(" - at ")
        where = f"{place.removeprefix('$.').removeprefix('$')}: " if place else ""
        raise DearError(f"{what} is damaged ({where}{reason[0].lower()}{reason[1:]}): {advice}.") from None
    except (KeyError, IndexError) as error:
        raise DearError(f"{what} is damaged (it lacks {error}): {advice}.") from None
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise DearError(f"{what} is damaged ({error}): {advice}.") from None
