"""CoOp's few-shot pickles (split_fewshot/shot_N-seed_S.pkl) -> lists as of 2SFS (.jsonl), without running them.

    python scripts/convert_few_shot.py DATA/oxford_pets/split_fewshot/*.pkl

A pickle is a program: loading one can run anything. Here it may build dicts, lists, texts and numbers, and one class,
Dassl's Datum, for which an empty one stands in. Any other name ends the conversion.
"""

import argparse
import io
import json
import pickle
import sys
from pathlib import Path
from typing import Any

_LARGEST = 2**28  # bytes


class Datum:
    """Holds what a pickle sets: _impath, _label, _domain, _classname."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name == "Datum" and module.split(".")[0] in ("dassl", "datasets"):
            return Datum
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it asks for something outside of it")


def rows_of(data: bytes) -> dict[str, list[dict[str, Any]]]:
    """{"train": [{"_impath": ...}, ...], "val": ...} of a pickle."""
    content = _Reader(io.BytesIO(data)).load()
    if not isinstance(content, dict) or "train" not in content:
        raise pickle.UnpicklingError("it has no list of training images")
    rows: dict[str, list[dict[str, Any]]] = {}
    for split in ("train", "val"):
        rows[split] = [_row(item) for item in content.get(split) or []]
    return rows


def _row(item: Any) -> dict[str, Any]:
    values = vars(item) if type(item) is Datum else {}
    kinds = {"_impath": str, "_label": int, "_domain": int, "_classname": str}
    if any(type(values.get(name)) is not kind for name, kind in kinds.items()):
        raise pickle.UnpicklingError("an image has no path, label or class name")
    return {name: values[name] for name in kinds}


def convert(file: Path) -> list[Path]:
    """Writes the lists beside the pickle."""
    if file.stat().st_size > _LARGEST:
        raise pickle.UnpicklingError("it is too large for a list")
    written = []
    for split, rows in rows_of(file.read_bytes()).items():
        if rows:
            written.append(file.with_name(f"{file.stem}_{split}.jsonl"))
            written[-1].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="PICKLE")
    for file in parser.parse_args().files:
        try:
            print(", ".join(map(str, convert(file))))
        except Exception as error:  # a damaged pickle raises anything
            print(f"{file} was not converted: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
