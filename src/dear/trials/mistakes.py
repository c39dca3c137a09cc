"""Mistakes: the images with the largest losses, as a list and as one sheet of pictures."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from msgspec import Struct
from PIL import Image, ImageDraw
from torch import Tensor

from dear.core.errors import DearError
from dear.core.files import atomic_path
from dear.core.sheet import INK, PAPER, RULE, SOFT, fit_text, font, paste
from dear.data.dataset import Example, Picture

_MOST = 24
_CELL, _GAP, _CAPTION, _COLUMNS = 168, 12, 54, 6
ALARM = (170, 40, 40)


class Mistake(Struct, frozen=True):
    """An image with a large loss: its `place` in the list of images, its class, the answer and its probability."""

    place: int
    image: str
    true: str
    answer: str
    probability: float
    loss: float


def largest_losses(logits: Tensor, examples: Sequence[Example], classes: Sequence[str]) -> tuple[Mistake, ...]:
    """The images that logits [images, classes] are most wrong about, by cross entropy; right answers of more than 50%
    are left out."""
    labels = torch.tensor([example.label for example in examples])
    log_probabilities = logits.double().log_softmax(-1)
    losses = -log_probabilities[torch.arange(len(labels)), labels]
    answers = logits.argmax(-1)
    mistakes = []
    for place in losses.argsort(descending=True)[:_MOST].tolist():
        answer, label = int(answers[place]), int(labels[place])
        probability = float(log_probabilities[place, answer].exp())
        if answer != label or probability < 0.5:
            image = str(examples[place].picture)
            mistakes.append(Mistake(place, image, classes[label], classes[answer], probability, float(losses[place])))
    return tuple(mistakes)


def write_mistakes(path: Path, mistakes: Sequence[Mistake], examples: Sequence[Example]) -> None:
    """Writes a sheet with the picture, the class, the answer and its probability of each mistake."""
    entries = []
    for mistake in mistakes:
        picture, answer = examples[mistake.place].picture, f"{100 * mistake.probability:.0f}% {mistake.answer}"
        if mistake.answer != mistake.true:
            entries.append((picture, f"is {mistake.true}", f"not {answer}", ALARM))
        else:
            entries.append((picture, "", f"right, but unsure: {answer}", SOFT))
    write_sheet(path, entries)


def write_sheet(path: Path, entries: Sequence[tuple[Picture, str, str, tuple[int, int, int]]]) -> None:
    """Writes a PNG of the first pictures, each with two lines below it, the second one in a colour."""
    entries = entries[:_MOST]
    columns = max(1, min(_COLUMNS, len(entries)))
    step_x, step_y = _CELL + _GAP, _CELL + _CAPTION + _GAP
    size = _GAP + columns * step_x, _GAP + math.ceil(len(entries) / columns) * step_y
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, (picture, first, second, color) in enumerate(entries):
        x, y = _GAP + number % columns * step_x, _GAP + number // columns * step_y
        paste(sheet, open_or_grey(picture), (x, y), _CELL)
        draw.text((x, y + _CELL + 4), fit_text(first, _CELL, 14), INK, font(14))
        draw.text((x, y + _CELL + 22 if first else y + _CELL + 4), fit_text(second, _CELL, 14), color, font(14))
    with atomic_path(path) as temporary:
        sheet.save(temporary, "PNG")


def open_or_grey(picture: Picture) -> Image.Image:
    """The picture, or a grey square if its file has been removed meanwhile."""
    try:
        return picture.open()
    except DearError:
        return Image.new("RGB", (_CELL, _CELL), RULE)
