"""Values that others may have put into a file: every part of a value left out, doubled or replaced by something odd."""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dear.core.errors import DearError

ODD = [
    None, True, -5, 0, 3, 10**9, 10**30, 0.5, -1e300, "", "x", "1", "{}", "\ud800", [], [1], [[]], {}, {"a": 1},
    {"1": {}},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value; of long lists, the first three entries."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    if isinstance(value, list):
        for index in range(min(3, len(value))):
            yield from places(value[index], (*path, index))


def mutations(value: Any, odd: list[Any]) -> Iterator[Any]:
    """The value with each of its parts in turn left out, doubled by a stranger, or replaced by every odd thing."""
    for path in places(value):
        for thing in [*odd, KeyError]:
            changed = copy.deepcopy(value)
            if not path:
                if thing is not KeyError:
                    yield thing
                continue
            parent = changed
            for step in path[:-1]:
                parent = parent[step]
            if thing is KeyError:
                del parent[path[-1]]
            else:
                parent[path[-1]] = thing
            yield changed
    if isinstance(value, dict):
        yield {**value, "stranger": 1}


def survives(use: Callable[[Any], object], value: Any, odd: Sequence[Any] = ODD) -> int:
    """How many mutations were refused; anything but a result, or a sentence that says what to do, fails the test."""
    refusals = []
    for changed in mutations(value, list(odd)):
        try:
            use(changed)
        except DearError as error:
            refusals.append(str(error))
    without_advice = [sentence for sentence in refusals if not re.search(r": | must |\. ", sentence)]
    assert not without_advice, without_advice[0]
    return len(refusals)
