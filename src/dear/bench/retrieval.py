"""Searching by attribute, in a report: what benchmarks/retrieval.py measured, from the retrieval*.json of a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dear.bench.tables import Block, Chapter
from dear.core.files import read_json
from dear.core.schema import damaged
from dear.core.table import Table


def retrieval_chapters(folders: Sequence[Path]) -> list[Chapter]:
    """One chapter, or none. Several files, such as those of several adapters, follow one another."""
    blocks = []
    for path in sorted(path for folder in folders for path in folder.glob("retrieval*.json")):
        with damaged(str(path), "make it again with benchmarks/retrieval.py"):
            blocks += _blocks(path.stem, read_json(path))
    return [Chapter("retrieval", "Searching by attribute", blocks)] if blocks else []


def _blocks(name: str, found: dict[str, Any]) -> list[Block]:
    measured = Table(list(found["measured"][0]))
    for row in found["measured"]:
        measured.add(*(row[column] for column in measured.header))
    title = found["title"]
    note = f"Means over {found['images']} photos with {found['labels']} labels, each a query once, and its ten nearest "
    note += "others. Color distance: between mean colors, in CIELAB."
    examples = Table(["query", "searched by", "labels of the five nearest"])
    for example in found["examples"]:
        for component, labels in example["nearest"].items():
            examples.add(f"{example['query']} ({example['file']})", component, ", ".join(labels))
    return [
        Block(name, title, measured, note),
        Block(f"{name}_examples", f"{title}: examples", examples, main=False),
    ]
