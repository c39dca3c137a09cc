"""Left-out classes: the folds of a task, what is expected of classes without images, and where it is printed."""

import itertools
import json
from pathlib import Path

import pytest
import torch

import dear
from dear.core.metrics import interval_text
from dear.data.dataset import Example, make_dataset
from dear.trials import unseen
from dear.trials.outcome import NOVEL
from dear.trials.task import Task
from dear.trials.unseen import (
    best_strength,
    expected_accuracies,
    interval_of,
    right_among,
    without_bias,
    zero_shot_by_length,
)
from noisy_pictures import noisy_folders


def dataset(classes: int, images: int = 2):
    examples = [Example(Path(f"{c}-{i}.png"), c) for c in range(classes) for i in range(images)]
    return make_dataset("d", [f"class {c}" for c in range(classes)], "a {}.", (examples, (), ()))


@pytest.mark.parametrize("classes", [4, 5, 9, 26])
def test_a_fold_is_asked_about_classes_it_was_not_fitted_to(classes: int) -> None:
    data = dataset(classes)
    task, often = Task.left_out_classes(data), torch.zeros(classes)
    for fitted, parts in task.rounds:
        left = parts[NOVEL]
        assert set(fitted.classes).isdisjoint(left.classes)
        assert set(fitted.classes) | set(left.classes) == set(data.classes)
        of_class = {e.picture: data.classes[e.label] for e in data.train}
        assert all(fitted.classes[e.label] == of_class[e.picture] for e in fitted.train)
        assert len(left.test) == len(data.train)
        for e in left.test:
            assert (e.label < 0) == (of_class[e.picture] in fitted.classes)
            assert e.label < 0 or left.classes[e.label] == of_class[e.picture]
        often[[data.classes.index(name) for name in left.classes]] += 1
    assert often.min() == often.max() > 0
    assert Task.left_out_classes(dataset(3)).rounds == ()


@pytest.mark.parametrize("names", [1, 2, 4, 6])
def test_right_among_is_the_mean_over_all_lists(names: int) -> None:
    logits, labels = torch.randn(9, 6, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 6
    chance, by_class = right_among(logits, labels, names)
    for row, (scores, own) in enumerate(zip(logits, labels.tolist(), strict=True)):
        others = [name for name in range(6) if name != own]
        lists = [[own, *rest] for rest in itertools.combinations(others, names - 1)]
        assert chance[row] == pytest.approx(sum(scores[a].argmax().item() == 0 for a in lists) / len(lists))
    assert by_class[0] == pytest.approx(chance[[0, 6]].mean().item())


def test_an_expected_accuracy_is_that_of_zero_shot_if_the_method_is_zero_shot() -> None:
    """Halves of 12 classes: what they foretell for 12 names is zero-shot's accuracy among 12, but for chance."""
    chance, labels = torch.Generator().manual_seed(1), torch.arange(12).repeat(40)
    logits = torch.randn(480, 12, generator=chance) + 2 * torch.nn.functional.one_hot(labels, 12)
    plain = zero_shot_by_length(logits, labels)
    folds = [torch.randperm(12, generator=chance)[:6] for _ in range(30)]
    rows = [torch.isin(labels, out) for out in folds]
    places = [(labels[r][:, None] == out).int().argmax(1) for r, out in zip(rows, folds, strict=True)]
    scores = [logits[r][:, out] for r, out in zip(rows, folds, strict=True)]
    for names in (3, 6, 9, 12):
        expected = expected_accuracies(scores, places, [labels[r] for r in rows], plain, names).mean().item()
        assert expected == pytest.approx(plain(names), abs=0.01), names
    assert plain(3) > plain(6) + 0.05 > plain(12) + 0.1


def test_the_bias_of_names_is_found_where_there_is_one() -> None:
    truth = torch.cat([torch.arange(4).repeat(25), torch.full((100,), -1)])
    logits = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    logits[:100] += 3 * torch.nn.functional.one_hot(truth[:100], 4)
    bias = torch.tensor([3.0, 0, 0, -3])
    assert best_strength([logits + bias], [truth]) == 1
    right = without_bias([logits + bias], [truth], 1.0)[0][:100].argmax(1) == truth[:100]
    assert right.float().mean() > 0.75 > ((logits + bias)[:100].argmax(1) == truth[:100]).float().mean()
    logits[100:] -= bias  # images of the classes fitted to say something wrong about the names
    assert best_strength([logits], [truth]) == 0


def test_an_interval_is_never_empty_and_shrinks_with_images() -> None:
    sure = torch.ones(5, dtype=torch.float64)
    (low, high), (later, _) = interval_of(sure, 5, 5), interval_of(sure, 500, 5)
    assert 0 <= low < later < high == 100


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return noisy_folders(tmp_path_factory.mktemp("unseen") / "photos", ("cat", "dog", "fox", "owl", "bee"), 3)


@pytest.mark.parametrize("method", ["gda", "proker", "head-gains"])
def test_a_run_keeps_the_bias_of_names_it_never_saw(
    photos: Path, model_folder: Path, tmp_path: Path, method: str, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(unseen, "best_strength", lambda logits, truth: 0.5)
    options: dict = {"model": f"local-dir:{model_folder}", "device": "cpu"}
    if method == "head-gains":
        dear.train(data=photos, method=method, out=tmp_path / "run", shots=3, split="50/0/50", **options)
        said = json.loads((tmp_path / "run" / "test.json").read_text())["results"]["unseen"]
    else:
        dear.fit(photos, method=method, out=tmp_path / "run", cache=tmp_path / "cache", **options)
        said = json.loads((tmp_path / "run" / "fit.json").read_text())["unseen"]
    line = f"classes without images: about {said['accuracy']:.0f}% ({interval_text(said['interval'])}) among 5"
    assert line in capsys.readouterr().out
    names, pictures = ["ant", "cow", "pig"], sorted(photos.rglob("*.png"))
    model = dear.load(tmp_path / "run", classes=names, device="cpu").model
    fitted = json.loads((tmp_path / "run" / "few_shot.json").read_text())["train"]
    used = [photo for photo in pictures if any(str(photo) == str(photos / path) for path, _ in fitted)]
    assert len(used) == len(fitted)
    encode = dear.load(tmp_path / "run", device="cpu").features
    mean, features, text = encode(used)["cls"].mean(0), encode(pictures)["cls"], model.encode_text(model.classes)
    expected = model.backbone.temperature * (features - 0.5 * mean) @ text.T
    assert torch.allclose(model.logits(features[:, None], text), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "classes", "sentence"),
    [("linear-probe", 5, "cannot answer"), ("zero-shot", 3, "at least 4 classes"), ("zero-shot", 5, "about")],
)
def test_what_cannot_be_foreseen_is_said(
    method: str, classes: int, sentence: str, model_folder: Path, tmp_path: Path, capsys
) -> None:
    folder = noisy_folders(tmp_path / "photos", ("cat", "dog", "fox", "owl", "bee")[:classes], 2)
    dear.fit(folder, method=method, cache=tmp_path / "cache", model=f"local-dir:{model_folder}", device="cpu")
    (line,) = [row for row in capsys.readouterr().out.splitlines() if row.startswith("classes without images")]
    assert sentence in line
