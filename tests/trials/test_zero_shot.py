"""Zero-shot accuracies against the textbook way: OpenCLIP's own features, one picture and one class at a time."""

import pytest
import torch
from torch.nn import functional as F

from dear.data.dataset import Dataset
from dear.data.world.tasks import world_task
from dear.data.world.vocabulary import Scene
from dear.training.images import ImageSource
from dear.trials.outcome import Outcome
from dear.trials.task import Task
from dear.trials.trial import Trial


def zero_shot(backbone, dataset: Dataset) -> dict[str, Outcome]:
    trial = Trial("zero-shot", Task.on_halves(dataset)).run(ImageSource(backbone))
    return {outcome.part: outcome for outcome in trial.outcomes()}


def small_task(classes: int) -> Dataset:
    task = world_task("places")
    test = tuple(e for e in task.test if e.label < classes)[::9]
    return Dataset("small", task.classes[:classes], task.template, (), (), test)


@torch.no_grad()
def textbook(backbone, dataset: Dataset, allowed: range) -> tuple[float, set[int]]:
    """Accuracy (%) of the pictures of `allowed` classes when only these are offered, and the answers given."""
    prompts = {label: dataset.template.format(dataset.classes[label]) for label in allowed}
    texts = {label: backbone.model.encode_text(backbone.text.tokenizer([p])) for label, p in prompts.items()}
    right, answers = [], []
    for example in dataset.test:
        if example.label not in allowed:
            continue
        image = backbone.model.encode_image(backbone.preprocess(example.picture.open())[None])
        scores = {label: F.cosine_similarity(image, text).item() for label, text in texts.items()}
        answers.append(max(scores, key=scores.__getitem__))
        right.append(answers[-1] == example.label)
    return 100 * sum(right) / len(right), set(answers)


@pytest.mark.parametrize("classes", [7, 8])
def test_accuracies_equal_the_textbook(tiny, classes: int) -> None:
    backbone, dataset = tiny(seed=1), small_task(classes)
    with torch.no_grad():  # let CLS see more of the picture, so that answers differ
        for block in backbone.image.blocks:
            block.attn.out_proj.weight *= 8
    half = (classes + 1) // 2
    result = zero_shot(backbone, dataset)
    assert result["all"].images == len(dataset.test)
    expected = {"all": range(classes), "base": range(half), "novel": range(half, classes)}
    for name, allowed in expected.items():
        share, answers = textbook(backbone, dataset, allowed)
        assert result[name].accuracy == pytest.approx(share), name
        assert len(answers) > 1, name  # otherwise this test could not tell right from wrong


def test_every_image_is_opened_once(tiny, monkeypatch) -> None:
    dataset, opened, draw = small_task(4), [], Scene.open
    monkeypatch.setattr(Scene, "open", lambda scene: opened.append(scene) or draw(scene))
    zero_shot(tiny(seed=1), dataset)
    assert len(opened) == len(set(opened)) == len(dataset.test)


def test_a_half_without_images_has_no_accuracy(tiny) -> None:
    result = zero_shot(tiny(seed=1), small_task(1))
    assert {part: outcome.accuracy for part, outcome in result.items()} == {"all": 100.0, "base": 100.0}
