"""Every image passes the image tower once in any one command.

A pass is counted where pixels enter the tower: at the patch embedding, image by image, by the pixels themselves. Layers
that a method adapts run again in every step, on states that are kept; a random crop is another image.
"""

from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch

from dear.cli import main
from dear.clip import MINI, load_backbone
from dear.clip.read_out import PlainEnds
from dear.data.dataset import Dataset
from dear.data.resolve import resolve_dataset
from dear.data.world import tasks
from dear.trials import fit

DATA = "world:colors"
SHOTS = ("--shots", "2")
BENCH = ("bench", "few-shot", "--datasets", DATA, "--seeds", "1", "--epochs", "2", "--device", "cpu", *SHOTS)
COMMANDS = {
    "train": ("train", "--data", DATA, *SHOTS),
    "train dear": ("train", "--data", DATA, *SHOTS, "--method", "dear", "--epochs", "1"),
    "train dear on kept states": (
        "train", "--data", DATA, *SHOTS, "--method", "dear", "--augment", "none", "--epochs", "2", "--validate",
    ),
    "train experts": ("train", "--data", DATA, *SHOTS, "--method", "experts", "--epochs", "2"),
    "compare": ("compare", DATA, *SHOTS, "--time-limit", "9s"),
    "fit": ("fit", DATA),
    "fit --thorough": ("fit", DATA, "--thorough"),
    "bench": (*BENCH, "--methods", "zero-shot", "tip-adapter", "head-gains", "experts"),
    "bench dear": (*BENCH, "--methods", "dear"),
}  # fmt: skip
CROPPED = ("train dear", "bench dear")  # these train on random crops, new ones in every epoch


@pytest.fixture
def whole(monkeypatch) -> Dataset:
    """The task, with four classes of few pictures."""
    for name, count in {"TRAIN": 3, "VAL": 2, "TEST": 2}.items():
        monkeypatch.setattr(tasks, name, count)
    names, template = tasks._classes("colors")
    monkeypatch.setattr(tasks, "_classes", lambda _: (dict(islice(names.items(), 4)), template))
    return resolve_dataset(DATA)


@pytest.fixture
def passes(monkeypatch) -> Counter[bytes]:
    """How often each image has passed, by its pixels."""
    seen: Counter[bytes] = Counter()
    embed = PlainEnds.embed

    def counted(self: PlainEnds, pixels: torch.Tensor) -> torch.Tensor:
        seen.update(image.numpy().tobytes() for image in pixels)
        return embed(self, pixels)

    monkeypatch.setattr(PlainEnds, "embed", counted)
    return seen


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("cached", [False, True], ids=["in memory", "on disk"])
def test_every_image_passes_once(
    command: str, cached: bool, whole: Dataset, passes: Counter[bytes], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(fit, "QUICK", ("prolip", "head-gains"))  # on CLS of views, and on head outputs
    monkeypatch.setattr(fit, "uncropped_trial", partial(fit.uncropped_trial, epochs=2))
    words = list(COMMANDS[command])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    if cached:
        if words[0] in ("compare", "fit"):
            pytest.skip("one is always in memory, the other on disk")
        words += ["--cache", str(tmp_path / "states")]
    if words[0] != "compare":
        words += ["--out", str(tmp_path / "out")]
    assert main(words) == 0
    data = whole if words[0] == "fit" else whole.few_shot(2, 1)
    clean = load_backbone(MINI).preprocess
    shown = {
        part: [clean(example.picture.open()).numpy().tobytes() for example in getattr(data, part)]
        for part in ("train", "val", "test")
    }
    assert len(shown["test"]) == 2 * len(data.classes)
    assert {passes[image] for image in shown["test"]} == {1}
    assert {passes[image] for image in (*shown["train"], *shown["val"])} <= {0, 1}
    if command not in CROPPED:
        assert {passes[image] for image in shown["train"]} == {1}


def test_every_image_passes_once_in_all_folds(whole: Dataset, passes: Counter[bytes], tmp_path: Path) -> None:
    shown = set()
    for number, example in enumerate(whole.test):
        path = tmp_path / "photos" / whole.classes[example.label] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        example.picture.open().save(path)
        shown.add(load_backbone(MINI).preprocess(example.picture.open()).numpy().tobytes())
    data = ("--data", str(tmp_path / "photos"), "--model", MINI)
    assert main(["train", *data, "--folds", "2", "--out", str(tmp_path / "out")]) == 0
    assert {passes[image] for image in shown} == {1}
    assert len(shown) == len(whole.test)
