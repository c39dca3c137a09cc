"""Every setting of every method at both ends of its range: it works, or one sentence says what to change.

The tests walk the registry: a new method, or a new setting, is tried without further code.
"""

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.clip import Backbone, load_backbone
from dear.core.config import _Field, _fields
from dear.core.errors import DearError
from dear.data.dataset import Dataset
from dear.data.resolve import resolve_dataset
from dear.methods.registry import METHODS, find_method, recipe_of
from dear.training.adapt import adapt, measure_accuracy
from dear.training.config import TrainConfig
from dear.training.images import ImageSource

pytestmark = pytest.mark.usefixtures("few_rounds")

_TEXTS = ("", "{} $ é 🦊", "color " * 99)
_ROOM = 1_500_000_000  # bytes more than the process has: three tiny images never need them
# Those that every method's training takes; the rest of TrainConfig is tried with two methods.
_OF_ALL = (
    {"batch": 1, "augment": "none"},
    {"order": "one_class", "batch": 1, "augment": "fixed:1000"},
    {"epochs": 0},
)
_ONLY_TIME = {"epochs", "images_seen", "steps_per_shot", "shots", "workers", "warmup_epochs"}  # at their upper end


@pytest.fixture(scope="module")
def tiny(model_folder: Path) -> Backbone:
    return load_backbone(f"local-dir:{model_folder}")


@pytest.fixture(scope="module")
def data() -> Dataset:
    """Three classes of one image, one of the three twice: batches of one image and of one class."""
    whole = resolve_dataset("world:colors").few_shot(2, 1)
    train = [e for e in whole.train if e.label < 3]
    few = replace(
        whole, classes=whole.classes[:3], train=tuple(train[:4]), val=tuple(train[4:6]), test=tuple(train[2:5])
    )
    return few


def ends(field: _Field) -> list[Any]:
    values: list[Any] = list(field.choices)
    if field.kind in (int, float):
        values = [field.kind(field.low), field.kind(field.high)]
        if field.name in _ONLY_TIME:
            values.pop()
    elif field.kind is bool:
        values = [True, False]
    elif not values:
        values = list(_TEXTS)
    return values + [None] * (field.default is None)


@contextmanager
def little_memory() -> Iterator[None]:
    """No setting may take more than `_ROOM` for three images of a tiny backbone."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def has_advice(error: DearError) -> bool:
    return bool(re.search(r": | must |\. ", str(error)))


def attempt(name: str, more: dict[str, Any], tiny: Backbone, data: Dataset, role_file: Path, out: Path) -> str:
    """Empty if it worked or was refused with advice; else what was wrong."""
    settings = {**recipe_of(name), "roles": str(role_file), "first_layer": 2, "batch": 3, "epochs": 1}
    settings |= {"images_seen": None, "steps_per_shot": None, "workers": 0, "device": "cpu", "warmup_epochs": 0, **more}
    kind, source = find_method(name), ImageSource(tiny, workers=0)
    torch.manual_seed(0)
    try:
        with little_memory():
            config, train = kind.Config.pick(settings), TrainConfig.pick(settings)
            model = adapt(kind, config, data, train, source, out, pool=data)
            model.set_classes(data.classes, data.template)
            measure_accuracy(model, data.test, source, "test")
    except DearError as error:
        return "" if has_advice(error) else f"{name} {more}: no advice: {error}"
    except Exception as error:
        return f"{name} {more}: {type(error).__name__}: {str(error)[:200]}"
    return ""


@pytest.mark.parametrize("name", METHODS)
def test_both_ends_of_every_setting(name: str, tiny, data, role_file: Path, tmp_path: Path) -> None:
    own = [{field.name: value} for field in _fields(find_method(name).Config) for value in ends(field)]
    wrong = [
        attempt(name, more, tiny, data, role_file, tmp_path / str(number))
        for number, more in enumerate([*own, *_OF_ALL])
    ]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("name", ["dear", "maple"])
def test_both_ends_of_the_settings_of_training(name: str, tiny, data, role_file: Path, tmp_path: Path) -> None:
    # What is compiled is traced in `test_on_gpu.py`: a code generator takes ten seconds.
    fields = [field for field in _fields(TrainConfig) if field.name not in ("device", "compile")]
    every: list[dict[str, Any]] = [{field.name: value} for field in fields for value in ends(field)]
    every += [{"optimizer": "sgd", "lr": value} for value in (0.0, 1e6)]
    wrong = [attempt(name, more, tiny, data, role_file, tmp_path / str(number)) for number, more in enumerate(every)]
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_as_many_tokens_as_a_short_context_has_no_room_for() -> None:
    """dear-mini reads 20 tokens, about a quarter of what CLIP reads."""
    mini = load_backbone()
    for kind in map(find_method, METHODS):
        for field in (field for field in _fields(kind.Config) if field.kind is int):
            wrong = ""
            try:
                model = kind(mini, kind.Config(**{field.name: field.high}))
                model.set_classes(["red", "a bird of paradise"], "a photo of {}")
            except DearError as error:
                wrong = "" if has_advice(error) else str(error)
            assert not wrong
