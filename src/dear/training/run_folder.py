"""The run folder: every file that training writes, written and read in one place.

config.json             all settings; it is itself a valid --config
few_shot.json           the images that were drawn, {"train": [[path or scene, label], ...], "val": ...},
                        and a hash of their content
metrics.jsonl           one JSON object per finished epoch
checkpoint.safetensors  the state after the last finished epoch
adapter_*               the trained adapter (`dear.training.adapter`)
test.json               test accuracies (%), and the comparison with simpler methods (`dear.trials.run_result`)
results.html            the same as a page with the pictures of mistakes; mistakes.png: these pictures alone
fit.json                the comparison of `dear fit`
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from dear.core.errors import DearError
from dear.core.files import parse_json, read_json, read_text, to_json, write_json, write_text
from dear.core.lock import names_in
from dear.core.schema import Count, Finite, Positive, check_shape, damaged
from dear.data.dataset import Example
from dear.training.reporters import REPORTERS

T = TypeVar("T")
CONFIG, FEW_SHOT, METRICS, TEST = "config.json", "few_shot.json", "metrics.jsonl", "test.json"
RESULTS_PAGE, MISTAKES, FOLD = "results.html", "mistakes.png", "fold-"
FIT = "fit.json"
CHECKPOINT = "checkpoint.safetensors"
ADAPTER_WEIGHTS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
ADAPTER_TEXT_TABLE = "adapter_text_features.safetensors"  # if the run has --text-features
CHANGEABLE = ("workers", "device", "report_to", "compile", "deterministic")
"""Settings that a run may change when it continues."""
_AGAIN = "train the run again"
_OTHER_FOLDER = "train into another folder"


class _Settings(TypedDict, total=False):
    """Settings that are read again after training; there are more."""

    method: str
    model: str
    data: str
    data_root: str | None
    class_names: str | None
    classes: str
    epochs: Count
    precision: str
    device: str


class _Test(TypedDict, total=False):
    """Accuracies on the classes of a part, and the comparison with simpler methods."""

    all: Finite
    base: Finite
    novel: Finite
    hm: Finite
    results: dict[str, Any]


class _FewShot(TypedDict):
    train: list[tuple[str, Count]]
    val: list[tuple[str, Count]]
    content: str  # SHA-256 of the content of all drawn images


class _Needed(TypedDict):
    epoch: Positive
    loss: Finite
    accuracy: Finite


class _Epoch(_Needed, total=False):
    validation: Finite
    fusion: list[Finite]


class RunFolder:
    """A run on disk. Missing files read as empty; damaged ones raise a DearError that names the file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / CHECKPOINT

    @property
    def is_finished(self) -> bool:
        """Whether training has ended with an adapter."""
        return (self.path / ADAPTER_CONFIG).exists()

    @property
    def is_started(self) -> bool:
        """Whether there is anything to continue from, or a finished run."""
        return self.is_finished or self.checkpoint.exists() or any(self.path.glob(f"{FOLD}*/{CHECKPOINT}"))

    @property
    def uses_all_images(self) -> bool:
        """Whether images that we divide were all trained on: by `dear fit`, or with --folds."""
        return (self.path / FIT).exists() or bool(self.settings().get("folds"))

    def state(self) -> str:
        """How far an unfinished run has come, in words; empty if it has finished no epoch."""
        if self.is_finished or not self.is_started:
            return ""
        history, planned = self.history(), self.settings().get("epochs")
        if not history:
            return "some folds of the cross-validation are done"
        return f"stopped after epoch {len(history)}" + (f" of {planned}" if planned else "")

    def settings(self) -> dict[str, Any]:
        """All settings of the run."""
        return self._read(CONFIG, _Settings)

    def few_shot(self) -> dict[str, Any]:
        """The drawn images, {"train": [[path or scene, label], ...], "val": ..., "content": their hash}."""
        return self._read(FEW_SHOT, _FewShot)

    def test(self) -> dict[str, float]:
        """Test accuracies (%): {"all": ...}, or base, novel and hm."""
        return {name: value for name, value in self._read(TEST, _Test).items() if name != "results"}

    def results(self) -> dict[str, Any]:
        """The comparison with simpler methods: rows, verdicts, accuracy per class, mistakes; empty without one."""
        return self._read(TEST, _Test).get("results", {})

    def history(self, epochs: int | None = None) -> list[dict[str, Any]]:
        """The records of the first `epochs` epochs (default: all).

        A kill may leave one record more than the checkpoint has epochs.
        """
        path, advice = self.path / METRICS, f"remove it, or {_AGAIN}"
        if not path.exists():
            return []
        with damaged(str(path), advice):
            lines = [line for line in read_text(path).splitlines() if line.strip()][:epochs]
            records = [parse_json(line) for line in lines]
            for number, record in enumerate(records, 1):
                check_shape(record, _Epoch, f"{path}, line {number},", advice)
                if record["epoch"] != number:
                    raise ValueError(f"line {number} is of epoch {record['epoch']}")
                if len(record.get("fusion", ())) != len(records[0].get("fusion", ())):
                    raise ValueError(f"line {number} has another number of fusion weights than line 1")
        return records

    def write_start(self, settings: Mapping[str, Any], drawn: Mapping[str, Sequence[Example]], content: str) -> None:
        """Writes the settings, and the images that were drawn, with a hash of their content.

        A run does not continue with other images than it began with: it could not end in the same bits.
        """
        if self.is_started and self.few_shot().get("content", content) != content:
            raise DearError(
                f"The images of the run in {self.path} have changed since it was started: put them back, or "
                f"{_OTHER_FOLDER}."
            )
        write_json(self.path / CONFIG, settings)
        write_json(self.path / FEW_SHOT, {**{split: _rows(part) for split, part in drawn.items()}, "content": content})

    def write_history(self, records: Sequence[Mapping[str, Any]]) -> None:
        write_text(self.path / METRICS, "".join(to_json(record) + "\n" for record in records))

    def write_test(self, accuracies: Mapping[str, float], results: Mapping[str, Any] | None = None) -> None:
        write_json(self.path / TEST, {**accuracies, **({"results": results} if results else {})})

    def fold(self, number: int) -> Path:
        """The folder of one training of a cross-validation; only its checkpoint matters, until the run ends."""
        return self.path / f"{FOLD}{number}"

    def remove_folds(self) -> None:
        for folder in self.path.glob(f"{FOLD}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def write_fit(self, comparison: Mapping[str, Any]) -> None:
        write_json(self.path / FIT, comparison)

    def fit(self, shape: type[T]) -> T | None:
        """The comparison of `dear fit`; None for other runs."""
        path = self.path / FIT
        return check_shape(read_json(path), shape, str(path), "fit the model again") if path.exists() else None

    def check_free(self, settings: Mapping[str, Any], resume: bool) -> None:
        """Refuses to overwrite anything, and to continue a run with other settings.

        A run that ended before its first epoch has nothing to continue from and is replaced.
        """
        if not self.is_started:
            names = {name for name in names_in(self.path) if not name.startswith(FOLD)}
            if not names <= {CONFIG, FEW_SHOT, METRICS, FIT, *REPORTERS}:
                raise DearError(f"{self.path} is not empty and holds no run: choose another --out.")
            return
        if not resume:
            raise DearError(f"{self.path} already holds a run: continue it with --resume, or choose another --out.")
        before = check_shape(read_json(self.path / CONFIG), dict[str, Any], str(self.path / CONFIG), _OTHER_FOLDER)
        names = (settings.keys() | before.keys()) - set(CHANGEABLE)
        if changed := sorted(name for name in names if settings.get(name) != before.get(name)):
            raise DearError(
                f"{self.path} was started with other settings ({', '.join(changed)}): use the same, or another --out."
            )

    def _read(self, name: str, shape: Any) -> dict[str, Any]:
        path = self.path / name
        if not path.exists():
            return {}
        value = read_json(path)
        check_shape(value, shape, str(path), _AGAIN)
        return value


def _rows(examples: Sequence[Example]) -> list[list[Any]]:
    """[path or scene, label] of each example."""
    return [[str(e.picture), e.label] for e in examples]
