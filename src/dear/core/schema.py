"""Is a value that was read from a file what it should be? One strict answer for every file, by its declared shape.

Shapes are types: TypedDicts, lists, tuples, unions, and the limited numbers below. Nothing is converted: a text is no
number, and a number no text. What is too much is let be; what is missing or of another kind is named with its place.
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


def check_shape(value: Any, shape: Any, what: str, advice: str) -> None:
    """Raises "`what` is damaged (...): `advice`." unless `value`, made of JSON's types, has the shape."""
    with damaged(what, advice):
        convert(value, shape, strict=True)


@contextmanager
def damaged(what: str, advice: str) -> Iterator[None]:
    """What a file's content makes of the code that uses it, said in a sentence.

    A shape cannot say everything (the keys of one table are the values of another): the rest fails here.
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
