"""From what a user writes after --data to a dataset."""

from pathlib import Path

from dear.data.dataset import Dataset
from dear.data.folder import TEMPLATE, read_dataset
from dear.data.world.tasks import world_task
from dear.errors import DearError

HELP = "a folder with one folder of images a class, a split JSON, or world:TASK[:STYLE] of Attribute World"


def resolve_dataset(name: str, template: str | None = None) -> Dataset:
    """`template` (with one {}) replaces the dataset's own."""
    if template is not None and template.count("{}") != 1:
        raise DearError(f"The template {template!r} must have one {{}} where the class name goes.")
    kind, _, rest = name.partition(":")
    if kind == "world":
        dataset = world_task(*rest.split(":", 1))
        return dataset if template is None else dataset.with_template(template)
    return read_dataset(Path(name), template or TEMPLATE)
