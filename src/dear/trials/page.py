"""The page of a run: its leaderboard and verdict, its accuracy per class, and the pictures of its mistakes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dear.core.files import write_text
from dear.core.pages import render_template
from dear.core.sheet import thumbnail_url
from dear.core.version import __version__
from dear.data.dataset import Example
from dear.training.run_folder import MISTAKES, RESULTS_PAGE, RunFolder
from dear.trials.mistakes import Mistake, open_or_grey, write_mistakes
from dear.trials.run_result import GUESSING, PartResult, RunResult

_TEMPLATE = Path(__file__).parent / "assets" / "run.html.j2"
_THUMBNAIL = 168  # pixels on the longer side
_CONFUSIONS, _PICTURES = 8, 6  # pairs of classes, and pictures of each
_MOST_IN_MATRIX = 40  # classes; the confusions name the pairs that matter


def write_results(
    folder: RunFolder, result: RunResult, examples: Mapping[str, Sequence[Example]], facts: Sequence[str]
) -> None:
    """Writes test.json, results.html and, if anything went wrong, mistakes.png into a run's folder.

    `examples`: the test images of each part; `facts`: lines about the run.
    """
    folder.write_test(result.accuracies(), {"facts": list(facts), "parts": result.to_json()})
    write_results_page(folder.path / RESULTS_PAGE, folder.path.resolve().name, result, examples, facts)
    name, part = next(iter(result.parts.items()))
    if part.mistakes:
        write_mistakes(folder.path / MISTAKES, part.mistakes, examples[name])


def write_results_page(
    path: Path, title: str, result: RunResult, examples: Mapping[str, Sequence[Example]], facts: Sequence[str]
) -> None:
    """Writes results as one HTML file."""
    page = render_template(
        _TEMPLATE, title=title, facts=facts, version=__version__, guessing=GUESSING,
        parts=[_part_of_page(part, examples[name]) for name, part in result.parts.items()],
    )  # fmt: skip
    write_text(path, page)


def _part_of_page(result: PartResult, examples: Sequence[Example]) -> dict[str, Any]:
    def figure(mistake: Mistake) -> dict[str, Any]:
        picture = open_or_grey(examples[mistake.place].picture)
        return {"mistake": mistake, "address": thumbnail_url(picture, _THUMBNAIL)}

    figures = [figure(mistake) for mistake in result.mistakes]
    confusions = []
    for true, answer, count in result.outcome.confused[:_CONFUSIONS]:
        own = [f for f in figures if (f["mistake"].true, f["mistake"].answer) == (true, answer)]
        confusions.append({"true": true, "answer": answer, "count": count, "figures": own[:_PICTURES]})
    outcome = result.outcome
    matrix = outcome.matrix() if len(outcome.per_class) <= _MOST_IN_MATRIX else {}
    return {"result": result, "outcome": outcome, "confusions": confusions, "losses": figures, "matrix": matrix}
