"""Words of messages."""

from dear.core.errors import shortened


def counted(number: int, noun: str) -> str:
    """A number and its noun: "1 cell", "2 cells"; for nouns with a regular plural."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def backbone_line(model: str, pretrained: str | None, note: str = "") -> str:
    """The first line of every command that loads a backbone."""
    return f"backbone: {shortened(' '.join(filter(None, (model, pretrained))))}{note}"
