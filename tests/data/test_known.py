"""The fifteen known datasets: tiny trees in each layout are read as CoOp reads the real ones."""

import json
from collections import Counter
from pathlib import Path

import pytest

from dear.cli import main
from dear.core.errors import DearError
from dear.data.known import KNOWN, find_known
from dear.data.resolve import resolve_dataset

from .conftest import LAYOUTS, V2, counts, picture

NAMES = [entry.name for entry in KNOWN]


# --- reading --------------------------------------------------------------------------------------------------


def test_these_are_the_fifteen() -> None:
    assert list(LAYOUTS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_layout_is_read(name: str, tree) -> None:
    root, layout = tree(name), LAYOUTS[name]
    dataset = resolve_dataset(name.upper(), root=str(root))
    assert (dataset.name, dataset.classes, counts(dataset)) == (name, layout.classes, layout.counts)
    assert dataset.template == find_known(name).template
    for example in (*dataset.train, *dataset.val, *dataset.test):
        assert example.picture.open().size == (8, 6)
    labels = Counter(e.label for e in dataset.test)
    assert sorted(labels) == list(range(len(layout.classes)))
    assert (dataset.note == "for testing only") is (not dataset.train)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_missing_is_named_with_its_place(name: str, tree) -> None:
    entry, root = find_known(name), tree(name)
    # Where the loader can do without the split file: see below.
    needed = entry.required if not entry.split_name else () if entry.loader else (entry.split_name,)
    for file in needed:
        path = root / entry.folder / file
        path.rename(path.with_name("hidden"))
        with pytest.raises(DearError) as caught:
            resolve_dataset(name, root=str(root))
        assert f"{name} needs {path}, which is not there: get " in str(caught.value)
        path.with_name("hidden").rename(path)
    (root / entry.folder / entry.image_folder).rename(root / "moved")
    with pytest.raises(DearError, match="which is not there: get ") as caught:
        resolve_dataset(name, root=str(root))
    assert str(root / entry.folder / entry.image_folder) in str(caught.value)


def test_labels_are_those_of_the_lists_and_folders(tree) -> None:
    planes = resolve_dataset("aircraft", root=str(tree("FGVCAircraft")))
    assert [(e.picture.path.name, e.label) for e in planes.val] == [("010.jpg", 1), ("011.jpg", 0), ("012.jpg", 2)]
    sketch = resolve_dataset("ImageNetSketch", root=str(tree("ImageNet-Sketch")))
    assert [(e.picture.path.parent.name, e.label) for e in sketch.test] == [("n01440764", 0), ("n01443537", 1)]


def test_imagenet_needs_sorted_validation_images_and_known_folders(tree) -> None:
    root = tree("ImageNet")
    images = root / "imagenet" / "images"
    (images / "val" / "n01484850").rename(root / "aside")
    with pytest.raises(DearError, match=r"needs .*val/n01484850: sort the validation images into a folder for each"):
        resolve_dataset("ImageNet", root=str(root))
    (root / "aside").rename(images / "val" / "n01484850")
    for split in ("train", "val"):
        (images / split / "n01484850").rename(images / split / "n9")
    with pytest.raises(DearError, match=r"classnames.txt has no line for n9: take CoOp's file"):
        resolve_dataset("ImageNet", root=str(root))


def test_empty_and_damaged_trees_are_said(tree) -> None:
    root = tree("ImageNetV2")
    (root / "imagenetv2" / V2 / "1" / "a.jpg").unlink()
    with pytest.raises(DearError, match=f"no images in .*{V2}/1: unpack the dataset again"):
        resolve_dataset("ImageNetV2", root=str(root))
    root = tree("FGVCAircraft")
    (root / "fgvc_aircraft" / "images_variant_val.txt").write_text("010 Zeppelin\n")
    with pytest.raises(DearError, match=r"variant 'Zeppelin', which is not in .*variants.txt"):
        resolve_dataset("FGVCAircraft", root=str(root))
    (root / "fgvc_aircraft" / "images_variant_val.txt").write_text("010\n")
    with pytest.raises(DearError, match="the line '010', which has too few words: download the file again"):
        resolve_dataset("FGVCAircraft", root=str(root))
    (root / "imagenet-sketch" / "images").mkdir(parents=True)
    (root / "imagenet-sketch" / "classnames.txt").write_text("n01440764 tench\n")
    with pytest.raises(DearError, match="images has no class folders: unpack the images there"):
        resolve_dataset("ImageNet-Sketch", root=str(root))


# --- without CoOp's split file ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "folders", "classes"),
    [
        ("EuroSAT", ("AnnualCrop", "Forest", "SeaLake"), ("Annual Crop Land", "Forest", "Sea or Lake")),
        ("Caltech101", ("BACKGROUND_Google", "Faces", "Faces_easy", "cougar_body"), ("face", "cougar body")),
        ("Food101", ("apple_pie", "waffles"), ("apple pie", "waffles")),
        ("DTD", ("banded", "polka-dotted"), ("banded", "polka-dotted")),
    ],
)
def test_class_folders_are_split_half_fifth_rest(name: str, folders, classes, tmp_path: Path) -> None:
    entry = find_known(name)
    for folder in folders:
        for i in range(10):
            picture(tmp_path / entry.folder / entry.image_folder / folder / f"{i}.jpg")
    dataset = resolve_dataset(name, root=str(tmp_path))
    assert dataset.classes == classes
    assert counts(dataset) == (5 * len(classes), 2 * len(classes), 3 * len(classes))
    assert f"without {entry.split_name}: not comparable" in dataset.note
    assert dataset == resolve_dataset(name, root=str(tmp_path))


def test_pets_are_split_by_their_own_lists(tmp_path: Path) -> None:
    folder = tmp_path / "oxford_pets"
    (folder / "annotations").mkdir(parents=True)
    breeds = ("Abyssinian", "great_pyrenees")
    for file, count in (("trainval", 10), ("test", 3)):
        rows = [(f"{breed}_{file}{i}", label) for label, breed in enumerate(breeds, 1) for i in range(count)]
        for image, _ in rows:
            picture(folder / "images" / f"{image}.jpg")
        (folder / "annotations" / f"{file}.txt").write_text("".join(f"{image} {n} 1 1\n" for image, n in rows))
    dataset = resolve_dataset("pets", root=str(tmp_path))
    assert dataset.classes == ("abyssinian", "great pyrenees")
    assert counts(dataset) == (16, 4, 6)
    assert all("_test" in e.picture.path.name for e in dataset.test)
    assert not any("_test" in e.picture.path.name for e in (*dataset.train, *dataset.val))
    (folder / "annotations" / "test.txt").unlink()
    with pytest.raises(DearError, match=r"OxfordPets needs .*split_zhou_OxfordPets.json, which is not there"):
        resolve_dataset("pets", root=str(tmp_path))


def test_a_split_json_takes_the_place_of_coops(tree) -> None:
    root = tree("Flowers102")
    folder = root / "oxford_flowers"
    (folder / "split_zhou_OxfordFlowers.json").rename(folder / "split.json")
    dataset = resolve_dataset("oxford_flowers", root=str(root))
    assert counts(dataset) == (4, 4, 4)
    assert "split.json: not comparable with published numbers" in dataset.note


# --- names ------------------------------------------------------------------------------------------------------


def test_other_names_mean_one_dataset() -> None:
    others = {"OxfordFlowers": "Flowers102", "oxford_flowers": "Flowers102", "DescribableTextures": "DTD",
              "food-101": "Food101", "imagenet_a": "ImageNet-A", "ImageNetR": "ImageNet-R", "imagenet": "ImageNet",
              "cars": "StanfordCars"}  # fmt: skip
    assert {alias: find_known(alias).name for alias in others} == others
    for entry in KNOWN:
        for name in (entry.name, entry.folder, *entry.aliases):
            assert find_known(name) is entry


def test_where_they_lie_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(DearError, match="Flowers102 needs --data-root: give the folder that holds oxford_flowers"):
        resolve_dataset("flowers102")
    with pytest.raises(DearError, match="--data-root must be the folder that holds dtd"):
        resolve_dataset("DTD", root=str(tmp_path / "nowhere"))


def test_a_folder_here_does_not_hide_a_known_dataset(tree, monkeypatch) -> None:
    root = tree("DTD")
    monkeypatch.chdir(root)
    assert resolve_dataset("dtd", root=".").template == "{} texture."
    assert resolve_dataset("dtd").template == "a photo of a {}."  # without a root it is one's own folder


# --- dear data --------------------------------------------------------------------------------------------------


def test_data_list_says_what_is_found_and_where_to_get_the_rest(tree, capsys) -> None:
    root = tree("DTD")
    (root / "sun397" / "SUN397").mkdir(parents=True)
    assert main(["data", "list", "--data-root", str(root)]) == 0
    page = capsys.readouterr().out
    found, sources = page.split("\n\n")[:2]
    row = {line.split()[0]: line for line in found.splitlines()}
    assert row["DTD"].endswith("yes, with split_zhou_DescribableTextures.json")
    assert row["SUN397"].endswith("needs split_zhou_SUN397.json")
    assert row["ImageNet"].endswith("no")
    assert {line.split()[0] for line in sources.splitlines()} > {entry.name for entry in KNOWN}
    assert "vision.princeton.edu: 404 since" in sources
    assert main(["data", "list"]) == 0
    assert main(["data", "list", "--data-root", str(root / "nowhere")]) == 2
    assert "--data-root must be the folder of the datasets" in capsys.readouterr().err


def test_data_check_compares_with_what_is_known(tree, capsys) -> None:
    root = tree("ImageNet-A")
    assert main(["data", "check", "imagenet-a", "--data-root", str(root)]) == 0
    page = capsys.readouterr().out
    assert "1 classes: goldfish" in page
    assert "not the published counts: 1 of 200 classes, 1 of 7500 test images" in page


def test_templates_are_the_papers(shared: Path) -> None:
    templates = json.loads((shared / "paper" / "templates.json").read_text())
    assert {find_known(name).name: template for name, template in templates.items()} == {
        entry.name: entry.template for entry in KNOWN
    }


def test_the_shared_packs_are_read_by_their_names(shared: Path) -> None:
    expected = {"EuroSAT": (10, 317, 40, 1000), "OxfordPets": (37, 1044, 148, 740), "Flowers102": (26, 670, 104, 520),
                "Caltech101": (26, 682, 104, 520), "DTD": (10, 262, 40, 240)}  # fmt: skip
    for name, sizes in expected.items():
        dataset = resolve_dataset(name, root=str(shared / "data"))
        assert (len(dataset.classes), *counts(dataset)) == sizes
        assert not any("_" in name for name in dataset.classes)
        assert dataset.train[0].picture.open().mode == "RGB"
    flowers = resolve_dataset("Flowers102", root=str(shared / "data"))
    assert "26 of 102 classes" in find_known("Flowers102").differences(flowers)
