"""Variables of the environment, which may hold anything."""

import os

from dear.core.errors import DearError


def whole_number(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    if not value.isdecimal() or len(value) > 9:
        raise DearError(f"The environment variable {name} must be a whole number, not {value!r}: unset it.")
    return int(value)
