"""The phrases that may describe a head: the shipped corpus, those of Attribute World, or a file of the user's."""

from pathlib import Path

from dear.core.errors import DearError
from dear.core.files import read_text

ASSETS = Path(__file__).parent / "assets"
SHIPPED = ASSETS / "phrases.tsv"
WORLD = ASSETS / "world_phrases.tsv"


def load_phrases(path: str | Path | None = None) -> list[str]:
    """The phrases of a file, one per line, without duplicates and in order; None: the shipped corpus.

    Blank lines and lines that start with # are ignored. A line may be `concept<TAB>phrase`; the concept is dropped,
    because only an evaluation may use it.
    """
    return list(dict.fromkeys(phrase for _, phrase in _read(path)))


def labelled_phrases(path: str | Path | None = None) -> list[tuple[str, str]]:
    """(phrase, hidden concept) of a `concept<TAB>phrase` file. Only for evaluating a clustering."""
    labels: dict[str, str] = {}
    for concept, phrase in _read(path):
        if not concept:
            raise DearError(f'"{phrase}" in {path} has no concept; write it as concept<TAB>phrase.')
        labels.setdefault(phrase, concept)
    return list(labels.items())


def _read(path: str | Path | None) -> list[tuple[str, str]]:
    """(concept or "", phrase) of every line with a phrase."""
    path = SHIPPED if path is None else Path(path)
    lines = [line.strip() for line in read_text(path).splitlines()]
    pairs = [line.rpartition("\t") for line in lines if line and not line.startswith("#")]
    if not pairs:
        raise DearError(f"{path} has no phrases; write one per line.")
    return [(concept.strip(), phrase.strip()) for concept, _, phrase in pairs]
