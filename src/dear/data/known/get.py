"""Downloads known datasets and lays them out as CoOp does (`dear data get`)."""

import shutil
from pathlib import Path, PurePosixPath

from dear.core.errors import DearError, warn
from dear.core.files import write_bytes, write_text
from dear.data.dataset import CLASS_NAMES_FILE
from dear.data.known.archives import download, read_member, unpack, zip_names
from dear.data.known.layouts import KnownDataset
from dear.data.known.sources import SOURCES, Origin

DOWNLOADS = ".downloads"
_IMAGENET = ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz")


def get_dataset(entry: KnownDataset, root: Path, accept_licence: bool = False) -> str:
    """Downloads and unpacks what is missing, and returns a line on what is there now."""
    source = SOURCES[entry.name]
    if entry.missing(root) is not None or _lacks_split(entry, root):
        if source.asks and not accept_licence:
            raise DearError(
                f"{entry.name} asks for consent ({source.licence}): read its licence, then add --accept-licence."
            )
        if entry.name == "ImageNet":
            _unpack_imagenet(root / entry.folder)
        elif entry.missing(root) is not None:
            _get_images(entry, source, root)
        _add_lists(entry, source, root)
    dataset = entry.load(root)
    differences = entry.differences(dataset)
    counts = f"{len(dataset.train)} / {len(dataset.val)} / {len(dataset.test)} images to train / validate / test"
    return f"{counts}; " + (f"not as published: {', '.join(differences)}" if differences else "as published")


def steps(entry: KnownDataset, root: Path) -> list[str]:
    """The steps of `get_dataset`, one line each."""
    source = SOURCES[entry.name]
    if entry.missing(root) is None and not _lacks_split(entry, root):
        return ["is already there"]
    if entry.name == "ImageNet":
        return [_how_to_get_imagenet(root / entry.folder)]
    lines = []
    for number, way in enumerate(source.ways if entry.missing(root) else ()):
        size = sum(archive.megabytes for archive in way)
        names = ", ".join(archive.url for archive in way)
        known = {archive.checksum.partition(":")[0].upper() if archive.checksum else "no checksum" for archive in way}
        checks = f"{' and '.join(sorted(known))} known"
        lines.append(f"{'or' if number else 'download'} {size} MB: {names} (seen {way[0].seen}; {checks})")
    if source.split_in and _lacks_split(entry, root):
        lines.append(f"read {entry.split_name} from {source.split_in.url} without the rest (SHA-256 known)")
    if CLASS_NAMES_FILE in entry.required:
        lines.append(f"write {CLASS_NAMES_FILE}: CLIP's names, as OpenCLIP has them")
    lines.append(f"licence: {source.licence}" + ("; needs --accept-licence" if source.asks else ""))
    return lines


def _lacks_split(entry: KnownDataset, root: Path) -> bool:
    return bool(entry.split_name) and not (root / entry.folder / entry.split_name).is_file()


def _get_images(entry: KnownDataset, source: Origin, root: Path) -> None:
    work = root / DOWNLOADS / entry.folder
    _require_space(root, 2 * min(sum(archive.megabytes for archive in way) for way in source.ways))
    for way in source.ways:
        try:
            files = [download(archive, work) for archive in way]
            break
        except DearError as error:
            if way is source.ways[-1]:
                raise
            warn(f"{error} Trying the mirror.")
    unpacked = work / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)  # left by a run that was killed
    for archive, file in zip(way, files, strict=True):
        unpack(file, unpacked, archive.take or {_dataset_folder(file, entry): "."})
    for inner in [*unpacked.glob("*.tar.gz")]:  # Caltech101 has one archive in another
        unpack(inner, unpacked, {"": "."})
        inner.unlink()
    _move(unpacked, root / entry.folder)
    shutil.rmtree(work)
    if not any((root / DOWNLOADS).iterdir()):
        (root / DOWNLOADS).rmdir()


def _dataset_folder(archive: Path, entry: KnownDataset) -> str:
    """The folder of a mirror's zip that holds the dataset: where its split file, its lists or its images are."""
    paths = [PurePosixPath(name) for name in zip_names(archive)]
    lists = [name for name in (entry.split_name, *entry.required) if name]
    for path in paths:
        if path.name in lists:
            return str(path.parent)
    for path in paths:
        if entry.image_folder in path.parts:
            return str(PurePosixPath(*path.parts[: path.parts.index(entry.image_folder)]))
    raise DearError(f"{archive.name} holds no {lists[0] if lists else entry.image_folder}: it is not {entry.name}.")


def _move(unpacked: Path, folder: Path) -> None:
    """Moves files and folders into `folder`, but replaces none that is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    for item in unpacked.iterdir():
        target = folder / item.name
        if target.is_dir() and item.is_dir():
            _move(item, target)
        elif not target.exists():
            item.replace(target)


def _add_lists(entry: KnownDataset, source: Origin, root: Path) -> None:
    folder = root / entry.folder
    if CLASS_NAMES_FILE in entry.required and not (folder / CLASS_NAMES_FILE).is_file():
        write_text(folder / CLASS_NAMES_FILE, imagenet_class_names())
    if source.split and source.split_in and _lacks_split(entry, root):
        try:
            write_bytes(folder / entry.split_name, read_member(source.split_in, entry.split_name, *source.split))
        except DearError as error:
            if entry.loader is None:
                raise
            warn(f"{error} The images are split by a fixed rule.")


def imagenet_class_names() -> str:
    """The text of classnames.txt, "n01440764 tench" and so on: CLIP's names, as OpenCLIP has them, by WordNet id.

    CoOp copied the same list from OpenAI in 2021; a few names have been corrected since.
    """
    from open_clip import IMAGENET_CLASSNAMES
    from timm.data import ImageNetInfo

    return "".join(f"{w} {n}\n" for w, n in zip(ImageNetInfo().label_names(), IMAGENET_CLASSNAMES, strict=True))


def _how_to_get_imagenet(folder: Path) -> str:
    return (
        f"ImageNet is available from its owners only: sign in at image-net.org, download {', '.join(_IMAGENET)} into "
        f"{folder}, and run this command again; it unpacks them"
    )


def _unpack_imagenet(folder: Path) -> None:
    """Unpacks, with torchvision, the archives that the user has downloaded."""
    if (folder / "images" / "train").is_dir() and (folder / "images" / "val").is_dir():
        return
    if not all((folder / name).is_file() for name in _IMAGENET):
        raise DearError(_how_to_get_imagenet(folder) + ".")
    from torchvision.datasets import ImageNet

    try:
        for split in ("train", "val"):
            ImageNet(str(folder), split)
        (folder / "images").mkdir(exist_ok=True)
        for split in ("train", "val"):
            (folder / split).replace(folder / "images" / split)
    except (RuntimeError, OSError, ImportError) as error:
        raise DearError(f"ImageNet cannot be unpacked in {folder}: {error}") from None


def _require_space(root: Path, megabytes: int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free // 2**20
    if free < megabytes:
        raise DearError(f"{root} has {free} MB free, but this needs about {megabytes}: free space, or change --root.")
