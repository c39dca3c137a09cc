"""metrics.jsonl: what each epoch of a run came to, one JSON object a line."""

from pathlib import Path
from typing import Any, TypedDict

from dear.core.files import parse_json, read_text
from dear.core.schema import Finite, Positive, check_shape, damaged

METRICS = "metrics.jsonl"


class _Needed(TypedDict):
    epoch: Positive
    loss: Finite
    accuracy: Finite


class _Record(_Needed, total=False):
    validation: Finite
    fusion: list[Finite]


def read_history(folder: Path, epochs: int | None = None) -> list[dict[str, Any]]:
    """The first `epochs` of them (default: all): a kill may have left one more than the checkpoint holds."""
    path = folder / METRICS
    advice = "remove it, or train the run again"
    with damaged(str(path), advice):
        lines = [line for line in read_text(path).splitlines() if line.strip()][:epochs]
        records = [parse_json(line) for line in lines]
        for number, record in enumerate(records, 1):
            check_shape(record, _Record, f"{path}, line {number},", advice)
            if record["epoch"] != number:
                raise ValueError(f"line {number} is of epoch {record['epoch']}")
    return records
