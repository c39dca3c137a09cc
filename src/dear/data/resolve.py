"""From what a user writes after --data to a dataset."""

from dear.data.dataset import Dataset
from dear.data.world.tasks import world_task
from dear.errors import DearError

HELP = "world:TASK or world:TASK:STYLE of Attribute World, e.g. world:signs or world:textures:sketch"


def resolve_dataset(name: str) -> Dataset:
    kind, _, rest = name.partition(":")
    if kind != "world" or not rest:
        raise DearError(f"Unknown data {name!r}: give {HELP}.")
    return world_task(*rest.split(":", 1))
