"""What is known about a dataset: where it lies, how it is read, how much there should be, where to get it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dear.core.errors import DearError
from dear.core.schema import damaged
from dear.data.dataset import Dataset
from dear.data.splits import read_split


@dataclass(frozen=True)
class KnownDataset:
    """`folder` lies under the root, `images` in it; `counts` are train, val and test images as published.

    `split` is CoOp's split file; without one, `rule` reads the dataset from what lies at `needs`.
    """

    name: str
    folder: str
    images: str
    template: str
    classes: int
    counts: tuple[int, int, int]
    get: str
    split: str = ""
    rule: Callable[["KnownDataset", Path], Dataset] | None = None
    needs: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    def split_file(self, root: Path) -> Path | None:
        """CoOp's split file, or a split.json of the same form in its place."""
        files = [root / self.folder / name for name in (self.split, "split.json") if name]
        return next((file for file in files if file.is_file()), None)

    def missing(self, root: Path) -> Path | None:
        """The first thing that should be there and is not."""
        folder = root / self.folder
        if not (folder / self.images).is_dir():
            return folder / self.images
        if self.split_file(root):
            return None
        gaps = [folder / name for name in self.needs if not (folder / name).exists()]
        if self.split and (gaps or self.rule is None):
            return folder / self.split
        return gaps[0] if gaps else None

    def read(self, root: Path) -> Dataset:
        if gap := self.missing(root):
            raise DearError(f"{self.name} needs {gap}, which is not there: {self.get}.")
        folder, file = root / self.folder, self.split_file(root)
        if file:
            dataset = read_split(file, [folder / self.images], self.template, self.name)
            if file.name != self.split:
                dataset = replace(dataset, note=f"split by {file}: not comparable with published numbers")
        else:
            assert self.rule is not None  # `missing` has said so otherwise
            with damaged(f"{self.name} in {folder}", "download it again"):
                dataset = self.rule(self, folder)
            if self.split:
                note = f"split by a fixed rule, without {self.split}: not comparable with published numbers"
                dataset = replace(dataset, note=note)
        return replace(dataset, classes=tuple(self.renames.get(name, name) for name in dataset.classes))

    def differences(self, dataset: Dataset) -> list[str]:
        """How the counts differ from the published ones: "26 of 102 classes"."""
        found = (len(dataset.classes), len(dataset.train), len(dataset.val), len(dataset.test))
        units = ("classes", "training images", "validation images", "test images")
        pairs = zip(found, (self.classes, *self.counts), units, strict=True)
        return [f"{have} of {want} {unit}" for have, want, unit in pairs if have != want]
