"""Answers for many images in one CSV or JSON Lines file, to which the same command adds what is missing."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from dear.core.errors import DearError
from dear.core.files import parse_json, read_text
from dear.core.lock import only_writer

_COLUMNS = ("path", "class", "probability", "model")


class AnswerFile:
    """A context manager; `done` has the paths that the file answers already. `model`: an identity of the model.

    A line that a kill has cut is taken away, and its image answered again.
    """

    def __init__(self, path: Path, model: str) -> None:
        if path.suffix.lower() not in (".csv", ".jsonl"):
            raise DearError(f"{path} must end in .csv or .jsonl: answers are written in one of these forms.")
        self.path, self.model, self.is_csv = path, model, path.suffix.lower() == ".csv"
        self._lock = only_writer(path.with_name(f".{path.name}.writing"))
        self._lock.__enter__()
        try:
            self.done = self._read()
            self._file = path.open("a", encoding="utf-8", errors="backslashreplace", newline="")
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        if self.is_csv and not path.stat().st_size:
            self._write(_COLUMNS)

    def _read(self) -> set[str]:
        if not self.path.exists():
            return set()
        text = read_text(self.path)
        whole = text[: text.rfind("\n") + 1]
        try:
            lines: Any = csv.reader(io.StringIO(whole)) if self.is_csv else map(parse_json, whole.splitlines())
            rows: list[Any] = list(lines)
            if self.is_csv and rows and tuple(rows.pop(0)) != _COLUMNS:
                raise ValueError("its first line is another")
            models = {row[3] if self.is_csv else row["model"] for row in rows}
            done = {row[0] if self.is_csv else row["path"] for row in rows}
        except (ValueError, KeyError, IndexError, TypeError, csv.Error) as error:
            raise DearError(f"{self.path} holds no answers of dear predict ({error}): choose another --out.") from None
        if models - {self.model}:
            raise DearError(f"{self.path} holds answers of another model or other settings: choose another --out.")
        if len(whole) < len(text):
            with self.path.open("r+b") as file:
                file.truncate(len(whole.encode()))
        return done

    def add(self, path: str, answer: Mapping[str, Any]) -> None:
        if self.is_csv:
            self._write((path, answer["choice"], f"{answer['probability']:.6f}", self.model))
        else:
            self._file.write(json.dumps({"path": path, **answer, "model": self.model}, ensure_ascii=False) + "\n")

    def _write(self, row: tuple[str, ...]) -> None:
        csv.writer(self._file, lineterminator="\n").writerow(row)

    def __enter__(self) -> "AnswerFile":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        self._lock.__exit__(kind, error, trace)
