"""The results of a run as a page with the pictures of its mistakes, and these pictures as one sheet."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from PIL import Image, ImageDraw

from dear.core.errors import DearError
from dear.core.files import atomic_path, write_text
from dear.core.sheet import INK, PAPER, RULE, SOFT, fit_text, font, paste, thumbnail_url
from dear.core.version import __version__
from dear.data.dataset import Example, Picture
from dear.model.results import Mistake, PartResult, RunResult, Scores
from dear.training.run_folder import MISTAKES, RESULTS_PAGE, RunFolder

_TEMPLATE = Path(__file__).parent / "assets" / "results.html.j2"
_CELL, _GAP, _CAPTION, _COLUMNS = 168, 12, 54, 6
_THUMBNAIL = 168  # pixels on the longer side
_CONFUSIONS, _PICTURES = 8, 6  # pairs of classes, and pictures of each


def write_results(folder: RunFolder, result: RunResult, scores: Scores, facts: Sequence[str]) -> None:
    """test.json, results.html and, if anything went wrong, mistakes.png in a run's folder."""
    results = {name: part.to_json() for name, part in result.parts.items()}
    folder.write_test(result.accuracies(), {"facts": list(facts), "parts": results})
    parts = {name: (part, scores.examples[name]) for name, part in result.parts.items()}
    write_page(folder.path / RESULTS_PAGE, folder.path.resolve().name, facts, parts)
    losses, examples = next(((part.largest_losses, own) for part, own in parts.values()), ((), ()))
    if losses:
        write_mistakes(folder.path / MISTAKES, losses, examples)


def write_page(
    path: Path, title: str, facts: Sequence[str], parts: Mapping[str, tuple[PartResult, Sequence[Example]]]
) -> None:
    """`facts`: lines on the run; `parts`: results and the test examples they are of."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        title=title, facts=facts, version=__version__, parts=[_part(*part) for part in parts.values()]
    )
    write_text(path, page)


def _part(result: PartResult, examples: Sequence[Example]) -> dict[str, Any]:
    def figure(mistake: Mistake) -> dict[str, Any]:
        picture = _open(examples[mistake.place].picture)
        return {"mistake": mistake, "address": thumbnail_url(picture, _THUMBNAIL)}

    wrong = [mistake for mistake in result.largest_losses if mistake.true != mistake.answer]
    confusions = []
    for true, answer, count in result.evaluation.confused[:_CONFUSIONS]:
        own = [figure(m) for m in wrong if (m.true, m.answer) == (true, answer)]
        confusions.append({"true": true, "answer": answer, "count": count, "figures": own[:_PICTURES]})
    per_class = sorted(result.evaluation.per_class.items(), key=lambda item: item[1].accuracy)
    return {
        "result": result,
        "per_class": per_class,
        "confusions": confusions,
        "losses": [figure(mistake) for mistake in result.largest_losses],
    }


def write_mistakes(path: Path, losses: Sequence[Mistake], examples: Sequence[Example]) -> None:
    """A contact sheet of the images with the largest losses: true class, answer and its probability below each."""
    columns = min(_COLUMNS, len(losses))
    step_x, step_y = _CELL + _GAP, _CELL + _CAPTION + _GAP
    size = _GAP + columns * step_x, _GAP + math.ceil(len(losses) / columns) * step_y
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, mistake in enumerate(losses):
        x, y = _GAP + number % columns * step_x, _GAP + number // columns * step_y
        paste(sheet, _open(examples[mistake.place].picture), (x, y), _CELL)
        answer = f"{100 * mistake.probability:.0f}% {mistake.answer}"
        if mistake.answer != mistake.true:
            draw.text((x, y + _CELL + 4), fit_text(f"is {mistake.true}", _CELL, 14), INK, font(14))
            draw.text((x, y + _CELL + 22), fit_text(f"not {answer}", _CELL, 14), (170, 40, 40), font(14))
        else:
            draw.text((x, y + _CELL + 4), fit_text(f"right, but unsure: {answer}", _CELL, 14), SOFT, font(14))
    with atomic_path(path) as temporary:
        sheet.save(temporary, "PNG")


def _open(picture: Picture) -> Image.Image:
    """The picture; a grey square for one that has been removed meanwhile."""
    try:
        return picture.open()
    except DearError:
        return Image.new("RGB", (_CELL, _CELL), RULE)
