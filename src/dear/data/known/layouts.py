"""Known datasets in CoOp's layout, and loaders for those that need no split JSON.

A loader follows the dataset's own lists, its folders, or CoOp's rule.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dear.core.errors import DearError
from dear.core.files import read_text
from dear.core.schema import damaged
from dear.data.dataset import CLASS_NAMES_FILE, Dataset, Example, ImageFile, make_dataset, split_by_rule
from dear.data.folder import SUFFIXES, read_split, subfolders
from dear.data.splits import COOP_SPLIT, SPLITS

_NOT_CLASSES = {"BACKGROUND_Google", "Faces_easy"}  # folders of Caltech101 that CoOp leaves out, too


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
        """The first file or folder that is needed but absent; None if nothing is missing."""
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
            raise DearError(
                f"{self.name} needs {missing}, which is not there: get it with dear data get {self.name} --root {root}."
            )
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
        """Counts that differ from the published ones, such as "26 of 102 classes"."""
        counts = (len(dataset.classes), len(dataset.train), len(dataset.val), len(dataset.test))
        units = ("classes", "training images", "validation images", "test images")
        pairs = zip(counts, (self.class_count, *self.image_counts), units, strict=True)
        return [f"{actual} of {published} {unit}" for actual, published, unit in pairs if actual != published]


def class_folders(entry: KnownDataset, folder: Path) -> Dataset:
    """One folder per class by CoOp's rule: each class is shuffled, then split 50/20/30 into train/val/test."""
    classes = [name for name in _class_folders(folder / entry.image_folder) if name not in _NOT_CLASSES]
    files = [_class_images(folder / entry.image_folder / name) for name in classes]
    names = [name.replace("_", " ") for name in classes]
    return split_by_rule(entry.name, names, entry.template, files, COOP_SPLIT)


def pets(entry: KnownDataset, folder: Path) -> Dataset:
    """OxfordPets by its own lists: val is a shuffled fifth of each class of the trainval list."""
    names: dict[int, str] = {}

    def read_list(file: Path) -> list[Example]:
        examples = []
        for image, number, *_ in _words_of_lines(file):
            label = int(number) - 1
            names[label] = image.rpartition("_")[0].lower().replace("_", " ")
            examples.append(Example(ImageFile(folder / entry.image_folder / f"{image}.jpg"), label))
        return examples

    trainval, test = (read_list(folder / "annotations" / f"{part}.txt") for part in ("trainval", "test"))
    train, val = [], []
    for label in sorted(names):
        examples = [e for e in trainval if e.label == label]
        random.Random(0).shuffle(examples)
        fifth = round(0.2 * len(examples))
        val += examples[:fifth]
        train += examples[fifth:]
    return make_dataset(entry.name, [names[i] for i in sorted(names)], entry.template, (train, val, test))


def aircraft(entry: KnownDataset, folder: Path) -> Dataset:
    """FGVCAircraft by its own lists; its classes are the variants."""
    classes = [line.strip() for line in read_text(folder / "variants.txt").splitlines() if line]
    number = {name: label for label, name in enumerate(classes)}
    splits = []
    for split in SPLITS:
        file = folder / f"images_variant_{split}.txt"
        rows = [(image, " ".join(words)) for image, *words in _words_of_lines(file)]
        if unknown := next((name for _, name in rows if name not in number), None):
            raise DearError(f"{file} names the variant {unknown!r}, which is not in {folder / 'variants.txt'}.")
        splits.append([Example(ImageFile(folder / entry.image_folder / f"{i}.jpg"), number[name]) for i, name in rows])
    return make_dataset(entry.name, classes, entry.template, splits)


def imagenet(entry: KnownDataset, folder: Path) -> Dataset:
    """ImageNet with its validation folder as test. There is no val: its images would be those of test."""
    train, test = folder / entry.image_folder / "train", folder / entry.image_folder / "val"
    classes = _class_folders(train)
    absent = next((name for name in classes if not (test / name).is_dir()), None)
    if absent:
        raise DearError(f"{entry.name} needs {test / absent}: sort the validation images into a folder for each class.")
    splits = (_labelled_images(train, classes), (), _labelled_images(test, classes))
    return make_dataset(entry.name, _names_of(classes, folder), entry.template, splits)


def imagenet_variant(entry: KnownDataset, folder: Path) -> Dataset:
    """Images for testing only; the classes are the folders, with ImageNet's class names."""
    classes = _class_folders(folder / entry.image_folder)
    return _test_only(entry, folder, classes, _names_of(classes, folder))


def imagenet_v2(entry: KnownDataset, folder: Path) -> Dataset:
    """ImageNetV2, for testing only; its folders are numbered in the order of classnames.txt."""
    names = list(_imagenet_names(folder).values())
    return _test_only(entry, folder, [str(number) for number in range(len(names))], names)


def _test_only(entry: KnownDataset, folder: Path, folders: list[str], names: list[str]) -> Dataset:
    test = _labelled_images(folder / entry.image_folder, folders)
    return make_dataset(entry.name, names, entry.template, ((), (), test), "for testing only")


def _names_of(keys: list[str], folder: Path) -> list[str]:
    names = _imagenet_names(folder)
    if unknown := [key for key in keys if key not in names]:
        file = folder / CLASS_NAMES_FILE
        raise DearError(f"{file} has no line for {unknown[0]}: take CoOp's file, which names all 1000.")
    return [names[key] for key in keys]


def _imagenet_names(folder: Path) -> dict[str, str]:
    """Class names by WordNet id, such as {"n01440764": "tench", ...}, in the order of the file."""
    return {key: " ".join(words) for key, *words in _words_of_lines(folder / CLASS_NAMES_FILE)}


def _words_of_lines(file: Path) -> list[list[str]]:
    """The words of each line that is not empty, of which there must be two or more."""
    rows = [line.split() for line in read_text(file).splitlines() if line.strip()]
    if bad := next((row for row in rows if len(row) < 2), None):
        raise DearError(f"{file} has the line {' '.join(bad)!r}, which has too few words: download the file again.")
    return rows


def _class_folders(path: Path) -> list[str]:
    if names := [folder.name for folder in subfolders(path)]:
        return names
    raise DearError(f"{path} has no class folders: unpack the images there, with a folder for each class.")


def _labelled_images(path: Path, folders: list[str]) -> list[Example]:
    return [Example(image, label) for label, name in enumerate(folders) for image in _class_images(path / name)]


def _class_images(path: Path) -> list[ImageFile]:
    """The images of a class by their suffix alone: ImageNet has over a million files, too many to look at each."""
    files = [p for p in path.iterdir() if p.suffix.lower() in SUFFIXES] if path.is_dir() else []
    if not files:
        raise DearError(f"There are no images in {path}: unpack the dataset again.")
    return [ImageFile(file) for file in sorted(files)]
