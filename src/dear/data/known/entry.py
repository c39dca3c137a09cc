"""The description of a known dataset: its folder, layout and published counts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dear.core.errors import DearError
from dear.core.schema import damaged
from dear.data.dataset import Dataset
from dear.data.folder import read_split


@dataclass(frozen=True)
class KnownDataset:
    """A dataset of the paper in CoOp's layout: `folder` under the root, `image_folder` in it.

    `split_name` is CoOp's split file. Without that file, `loader` reads the dataset from `required`.
    """

    name: str
    folder: str
    image_folder: str
    template: str
    class_count: int  # as published
    image_counts: tuple[int, int, int]  # train, val and test images as published
    split_name: str = ""
    loader: Callable[["KnownDataset", Path], Dataset] | None = None
    required: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)  # class name in the files -> in prompts
    aliases: tuple[str, ...] = ()

    def split_file(self, root: Path) -> Path | None:
        """CoOp's split file, or a split.json of the same form in its place."""
        files = [root / self.folder / name for name in (self.split_name, "split.json") if name]
        return next((file for file in files if file.is_file()), None)

    def missing(self, root: Path) -> Path | None:
        """The first file or folder that is needed but absent."""
        folder = root / self.folder
        if not (folder / self.image_folder).is_dir():
            return folder / self.image_folder
        if self.split_file(root):
            return None
        absent = [folder / name for name in self.required if not (folder / name).exists()]
        if self.split_name and (absent or self.loader is None):
            return folder / self.split_name
        return absent[0] if absent else None

    def load(self, root: Path) -> Dataset:
        if missing := self.missing(root):
            how = f"get it with: dear data get {self.name} --root {root}"
            raise DearError(f"{self.name} needs {missing}, which is not there: {how}.")
        folder, file = root / self.folder, self.split_file(root)
        if file:
            dataset = read_split(file, [folder / self.image_folder], self.template, self.name)
            if file.name != self.split_name:
                dataset = replace(dataset, note=f"split by {file}: not comparable with published numbers")
        else:
            assert self.loader is not None  # otherwise `missing` names the split file
            with damaged(f"{self.name} in {folder}", "download it again"):
                dataset = self.loader(self, folder)
            if self.split_name:
                note = f"split by a fixed rule, without {self.split_name}: not comparable with published numbers"
                dataset = replace(dataset, note=note)
        return replace(dataset, classes=tuple(self.renames.get(name, name) for name in dataset.classes))

    def differences(self, dataset: Dataset) -> list[str]:
        """Counts that differ from the published ones: "26 of 102 classes"."""
        counts = (len(dataset.classes), len(dataset.train), len(dataset.val), len(dataset.test))
        units = ("classes", "training images", "validation images", "test images")
        pairs = zip(counts, (self.class_count, *self.image_counts), units, strict=True)
        return [f"{actual} of {published} {unit}" for actual, published, unit in pairs if actual != published]
